"""What a rank runs on. The agent writes it once into its ring (`ring.FACTS_OFFSET`, JSON); announcements carry it."""

from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

from lockstep.contracts.bounds import Name, Range
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import NAME_MAX_BYTES

_PEAK_MAX = 1e21  # a million times today's fastest device
_PARAMETERS_MAX = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """Facts that do not change while a rank trains; None and the empty text mean unknown.

    `device` is the name that the framework reports, and `device_uuid` its UUID in the form of DCGM's and nvidia-smi's
    ("GPU-" and 8-4-4-4-12 hexadecimal digits). `device_kind` is cpu, cuda, rocm or npu. `dtype` is the number format of
    the model's matrix products (`peaks.DTYPES`), `parameters` the count in this rank's share of the work.
    `flops_source` is where the model FLOPs of a step come from: configured, parameters, measured or none.

    `mark_writer` is the language of the agent's mark writer (`agent/mark_writer.py`). `collective_kernels` is that of
    its kernels in front of collectives, `C++` or `Python`, and `collective_kernels_reason` why it is not C++
    (`agent/hooks/native.py`). `stacks` is the signal at which the process writes its stacks, or why it does not
    (`agent/stack_dumps.py`). `flight_recorder` is the prefix of the paths of torch's Flight Recorder dumps,
    `flight_recorder_pipe` that of the named pipes that request one; both as the training process has set them.
    """

    device: Name = ""
    device_kind: Name = ""
    dtype: Name = ""
    peak_flops_per_second: Annotated[float, Range(1.0, _PEAK_MAX)] | None = None
    parameters: Annotated[int, Range(0, _PARAMETERS_MAX)] | None = None
    flops_source: Name = ""
    torch_version: Name = ""
    backend: Name = ""
    device_uuid: Name = ""
    mark_writer: Name = ""
    collective_kernels: Name = ""
    collective_kernels_reason: Name = ""
    stacks: Name = ""
    flight_recorder: Name = ""
    flight_recorder_pipe: Name = ""


def facts_to_json(facts: RankFacts) -> dict[str, Any]:
    """Return the JSON form of facts."""
    return asdict(facts)


def facts_from_json(value: Any, *, where: str) -> RankFacts:
    """Return the facts in a ring's region, with every field checked, because the texts end up in labels.

    A missing field is unknown; an unknown field is ignored.

    Raises
    ------
    MalformedError
        A field has the wrong type or is out of bounds.
    """
    if not isinstance(value, dict):
        raise MalformedError("facts", where=where, got=type(value).__name__, expected="an object")
    known = {field.name: value[field.name] for field in fields(RankFacts) if field.name in value}
    for name, item in known.items():
        if name == "parameters":
            _check(item is None or (type(item) is int and 0 <= item <= _PARAMETERS_MAX), name, where, item, "a count")
        elif name == "peak_flops_per_second":
            _check(item is None or _is_peak(item), name, where, item, f"a number from 1 to {_PEAK_MAX:g}")
            known[name] = None if item is None else float(item)
        else:
            _check(_is_label(item), name, where, item, f"up to {NAME_MAX_BYTES} bytes of printable text")
    return RankFacts(**known)


def _check(good: bool, what: str, where: str, got: Any, expected: str) -> None:  # noqa: FBT001  (the condition itself)
    if not good:
        raise MalformedError(what, where=where, got=repr(got)[:NAME_MAX_BYTES], expected=expected)


def _is_peak(value: Any) -> bool:
    return type(value) in (int, float) and 1 <= value <= _PEAK_MAX


def _is_label(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value.encode(errors="replace")) <= NAME_MAX_BYTES
