"""Counts the parameters that work on a token of this rank, the N of 6 N D, in its optimizers.

May live here: how sharding libraries change parameters. Not here: hooks, state.
"""

import sys
from collections.abc import Iterable
from typing import Any

_SPLITS_WORK = frozenset(("tp", "tensor", "tensor_parallel", "etp", "ep", "expert"))
"""Mesh dimensions whose ranks share a parameter's work; those of FSDP gather it, and each rank does all of it."""


def count_parameters(parameters: Iterable[Any]) -> int | None:
    """Return the number of distinct parameters, or None where shards do not show what they are shards of.

    A distributed tensor counts whole, less what tensor parallelism gives to other ranks; FSDP's and DeepSpeed's
    shards count as what they are shards of. Flat shards without that information (DeepSpeed's and Megatron-LM's
    distributed optimizers) are known by their shape: a model has at least one matrix.
    """
    total = 0
    has_matrix = False
    seen: set[int] = set()
    for parameter in parameters:
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        count = _whole_size(parameter)
        if count is None:
            return None
        has_matrix = has_matrix or parameter.ndim > 1 or count != parameter.numel()
        total += count
    return total if has_matrix else None


def _whole_size(parameter: Any) -> int | None:
    """Return what `parameter` counts for on this rank, or None if that is unknown."""
    deepspeed = getattr(parameter, "ds_numel", None)
    if deepspeed is not None:
        return int(deepspeed)
    if getattr(parameter, "_fsdp_flattened", False):
        unsharded = getattr(parameter, "_unpadded_unsharded_size", None)
        return None if unsharded is None else int(unsharded.numel())
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(parameter, distributed.DTensor):
        return int(parameter.numel()) // _work_divisor(parameter)
    return int(parameter.numel())


def _work_divisor(parameter: Any) -> int:
    """Return among how many ranks a distributed parameter's work is divided."""
    mesh = parameter.device_mesh
    names = mesh.mesh_dim_names or ()
    divisor = 1
    for dimension, name in enumerate(names):
        if parameter.placements[dimension].is_shard() and name in _SPLITS_WORK:
            divisor *= mesh.size(dimension)
    return divisor
