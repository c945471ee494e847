"""Strategy and number formats from DeepSpeed's JSON; the model comes from elsewhere."""

from collections.abc import Mapping
from typing import Any

from lockstep.contracts.errors import MalformedError
from lockstep.simulator.imports.values import section, whole

_STAGES = 3
_BUCKET_ELEMENTS = 500_000_000
_LIVE_PARAMETERS = 1_000_000_000
_HALF_BYTES = 2
_FULL_BYTES = 4


def document_of_deepspeed(values: Mapping[str, Any], where: str, *, ranks: int) -> dict[str, Any]:
    """Return what a specification has of it, for data parallelism over so many ranks.

    Raises
    ------
    MalformedError
        A value is wrong, or sizes of batches that do not fit each other.
    """
    zero = section(values, "zero_optimization", where)
    stage = zero.get("stage", 0)
    if isinstance(stage, bool) or stage not in range(_STAGES + 1):
        raise MalformedError("zero_optimization.stage", where=where, got=stage, expected=f"0 to {_STAGES}")
    for name in ("offload_optimizer", "offload_param"):
        device = section(zero, name, where).get("device", "none")
        if device != "none":
            raise MalformedError(name, where=where, got=device, expected="none: offloading is not simulated")
    size = whole(values, "train_micro_batch_size_per_gpu", where, 1)
    steps = whole(values, "gradient_accumulation_steps", where, 1)
    batch = whole(values, "train_batch_size", where, size * steps * ranks)
    if batch % (size * ranks):
        expected = f"a multiple of {size} samples x {ranks} ranks"
        raise MalformedError("train_batch_size", where=where, got=batch, expected=expected)
    is_bf16 = bool(section(values, "bf16", where).get("enabled"))
    is_fp16 = bool(section(values, "fp16", where).get("enabled"))
    precision = "deepspeed_bf16" if is_bf16 and stage <= 1 else "deepspeed_fp16" if is_bf16 or is_fp16 else "full"
    width = _FULL_BYTES if precision != "deepspeed_fp16" else _HALF_BYTES
    buffers = 2 if zero.get("overlap_comm") else 1
    elements = whole(zero, "reduce_bucket_size", where, _BUCKET_ELEMENTS)
    strategy: dict[str, Any] = {"dp": ranks, "zero": stage, "micro_batch_size": size}
    if stage:
        strategy |= {"bucket_bytes": elements * width, "gradient_buffer_bytes": buffers * elements * width}
    if stage == _STAGES:
        strategy["live_parameters"] = whole(zero, "stage3_max_live_parameters", where, _LIVE_PARAMETERS)
    return {"model": {"precision": precision}, "batch": batch, "strategy": strategy}
