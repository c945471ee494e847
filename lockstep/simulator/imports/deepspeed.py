"""Strategy and number formats from DeepSpeed's JSON, which does not contain the model."""

from collections.abc import Mapping
from typing import Any

from lockstep.contracts.errors import MalformedError
from lockstep.simulator.imports.values import AUTO, section, whole, without_auto

_STAGES = 3
_BUCKET, _BUCKET_ELEMENTS = "reduce_bucket_size", 500_000_000
_LIVE_PARAMETERS = 1_000_000_000
_HALF_BYTES = 2
_FULL_BYTES = 4
_SIZE, _STEPS, _BATCH = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
_UNSUPPORTED = ("zero_hpz_partition_size", "mics_shard_size")
"""Weights in parts of another size than the rest; 1 and -1 switch both off."""


def document_of_deepspeed(
    values: Mapping[str, Any], where: str, *, dp: int, hidden: int | None = None
) -> dict[str, Any]:
    """Return what a specification has of it, for so many data parallel ranks.

    `hidden` is the model's features of a token, from which Transformers computes a bucket that is left to it ("auto").

    Raises
    ------
    MalformedError
        A value is wrong or left to Transformers, sizes of batches do not fit each other, or what it asks for is not
        simulated.
    """
    zero = section(values, "zero_optimization", where)
    stage = zero.get("stage", 0)
    if isinstance(stage, bool) or stage not in range(_STAGES + 1):
        raise MalformedError("zero_optimization.stage", where=where, got=stage, expected=f"0 to {_STAGES}")
    _check_supported(values, zero, where)
    is_bf16, is_fp16 = (_is_enabled(values, name, where) for name in ("bf16", "fp16"))
    precision = "deepspeed_bf16" if is_bf16 and stage <= 1 else "deepspeed_fp16" if is_bf16 or is_fp16 else "full"
    width = _FULL_BYTES if precision != "deepspeed_fp16" else _HALF_BYTES
    strategy: dict[str, Any] = {"dp": dp, "zero": stage}
    if stage:
        elements = _bucket_elements(zero, where, hidden)
        buffers = 2 if zero.get("overlap_comm") else 1
        strategy |= {"bucket_bytes": elements * width, "gradient_buffer_bytes": buffers * elements * width}
    if stage == _STAGES:
        live = without_auto(zero, "stage3_max_live_parameters")
        strategy["live_parameters"] = whole(live, "stage3_max_live_parameters", where, _LIVE_PARAMETERS)
    found: dict[str, Any] = {"model": {"precision": precision}, "strategy": strategy}
    sizes = _sizes(values, where, dp)
    if sizes is not None:
        found["batch"], strategy["micro_batch_size"] = sizes
    return found


def _check_supported(values: Mapping[str, Any], zero: Mapping[str, Any], where: str) -> None:
    for name in ("offload_optimizer", "offload_param"):
        device = section(zero, name, where).get("device", "none")
        if device != "none":
            raise MalformedError(name, where=where, got=device, expected="none: offloading is not simulated")
    if zero.get("cpu_offload"):
        raise MalformedError("cpu_offload", where=where, got=True, expected="false: offloading is not simulated")
    for name in _UNSUPPORTED:
        if zero.get(name, 1) not in (1, -1):
            raise MalformedError(name, where=where, got=zero[name], expected="none: such parts are not simulated")
    if whole(section(values, "tensor_parallel", where), "autotp_size", where, 1) != 1:
        expected = "1: state tensor parallelism in the specification"
        raise MalformedError(
            "autotp_size", where=where, got=values["tensor_parallel"]["autotp_size"], expected=expected
        )


def _is_enabled(values: Mapping[str, Any], name: str, where: str) -> bool:
    enabled = section(values, name, where).get("enabled", False)
    if not isinstance(enabled, bool):
        expected = "true or false, as Transformers puts it there from the arguments of its Trainer"
        raise MalformedError(f"{name}.enabled", where=where, got=enabled, expected=expected)
    return enabled


def _bucket_elements(zero: Mapping[str, Any], where: str, hidden: int | None) -> int:
    """Return the elements of a bucket; where it is left to Transformers, the square of the features of a token."""
    given = dict(zero)
    if given.get(_BUCKET) == AUTO and hidden is not None:
        given[_BUCKET] = hidden**2
    return whole(given, _BUCKET, where, _BUCKET_ELEMENTS)


def _sizes(values: Mapping[str, Any], where: str, dp: int) -> tuple[int, int] | None:
    """Return batch and micro-batch, of which DeepSpeed computes one from the other; None where both are left out."""
    values = without_auto(values, _BATCH) if values.get(_SIZE) is not None else values
    steps = whole(values, _STEPS, where, 1)
    if values.get(_SIZE) is not None:
        size = whole(values, _SIZE, where)
        batch = whole(values, _BATCH, where, size * steps * dp)
    elif values.get(_BATCH) is not None:
        batch = whole(values, _BATCH, where)
        size = max(1, batch // (steps * dp))
    else:
        return None
    if batch % (size * dp):
        raise MalformedError(_BATCH, where=where, got=batch, expected=f"a multiple of {size} samples x {dp} ranks")
    return batch, size
