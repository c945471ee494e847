"""Byte layout of the control block, and the profile order and answer that travel through shared memory.

    0    header    magic, version
    64   order     blob: one ProfileOrder

One file per run and node, written only by the exporter's control thread, read by every rank at a step boundary with
one integer compare (the blob's generation). Ranks answer in their own ring file: every shared file has one writer.
"""

import struct
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from lockstep.contracts.blob import HEAD_BYTES
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.limits import PROFILE_RANKS_MAX, PROFILE_STEPS_MAX

CONTROL_MAGIC = b"LKSTCTRL"
CONTROL_VERSION = 1
ORDER_OFFSET = 64
CONTROL_BYTES = 8192
ORDER_BYTES = CONTROL_BYTES - ORDER_OFFSET

_HEADER = struct.Struct("<8sII")

NEXT_STEP = -1
"""`first_step` of an order that begins at the rank's next step boundary."""

ANSWER_STATES = ("accepted", "running", "done", "refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOrder:
    """What the ranks of one node are asked to capture.

    `first_step` is a step index of this attempt, or NEXT_STEP. A rank that is past it begins at its next step.
    `device` asks for the activity of the rank's device besides that of the host, where there is one.
    """

    request_id: int
    ranks: list[int]
    first_step: int
    steps: int
    stacks: bool
    shapes: bool
    memory: bool
    trace_max_bytes: int
    device: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderAnswer:
    """What one rank says of the order it last saw.

    `cost_ns` is the training thread's time spent on starting, stopping and writing, all of it outside the asked steps.
    `first_step` and `steps` are what was captured, `trace_bytes` the size of the file, `reason` why it was refused or,
    when done, why it ended before the asked steps.
    """

    request_id: int
    state: str
    reason: str = ""
    first_step: int = NEXT_STEP
    steps: int = 0
    start_ns: int = 0
    end_ns: int = 0
    trace_bytes: int = 0
    cost_ns: int = 0


def pack_control_header() -> bytes:
    """Return the header of a control block."""
    return _HEADER.pack(CONTROL_MAGIC, CONTROL_VERSION, CONTROL_BYTES)


def check_control_header(data: bytes | memoryview, *, where: str) -> None:
    """Refuse what is not a control block of this version.

    Raises
    ------
    MalformedError, ContractVersionError
        As their names say.
    """
    if len(data) < ORDER_OFFSET + HEAD_BYTES:
        raise MalformedError("control block size", where=where, got=len(data), expected=CONTROL_BYTES)
    magic, version, size = _HEADER.unpack_from(data)
    if magic != CONTROL_MAGIC:
        raise MalformedError("magic", where=where, got=magic, expected=CONTROL_MAGIC)
    if (version, size) != (CONTROL_VERSION, CONTROL_BYTES) or len(data) != CONTROL_BYTES:
        raise ContractVersionError(
            "control version, bytes",
            where=where,
            got=(version, size),
            expected=(CONTROL_VERSION, CONTROL_BYTES),
        )


def order_to_json(order: ProfileOrder) -> dict[str, Any]:
    """Return the JSON form of an order, without what has its default: an older rank knows only the rest."""
    return {f.name: getattr(order, f.name) for f in fields(order) if getattr(order, f.name) != f.default}


def answer_to_json(answer: OrderAnswer) -> dict[str, Any]:
    """Return the JSON form of an answer."""
    return asdict(answer)


def order_from_json(value: Any, *, where: str) -> ProfileOrder:
    """Return the order that a blob holds, every field checked.

    Raises
    ------
    MalformedError
        A field is missing, unknown, of another type or beyond its limit.
    """
    checked = _checked(ProfileOrder, value, where)
    order = ProfileOrder(**checked)
    if not 1 <= order.steps <= PROFILE_STEPS_MAX:
        raise MalformedError("steps", where=where, got=order.steps, expected=f"1 to {PROFILE_STEPS_MAX}")
    if len(order.ranks) > PROFILE_RANKS_MAX or not all(type(rank) is int and rank >= 0 for rank in order.ranks):
        raise MalformedError("ranks", where=where, got=order.ranks, expected=f"up to {PROFILE_RANKS_MAX} ranks")
    return order


def answer_from_json(value: Any, *, where: str) -> OrderAnswer:
    """Return the answer that a blob holds, every field checked.

    Raises
    ------
    MalformedError
        A field is missing, unknown, of another type or not a known state.
    """
    answer = OrderAnswer(**_checked(OrderAnswer, value, where))
    if answer.state not in ANSWER_STATES:
        raise MalformedError("state", where=where, got=answer.state, expected=ANSWER_STATES)
    return answer


def _checked(form: type, value: Any, where: str) -> dict[str, Any]:
    """Return `value` if it holds the fields of `form`, each of its plain type; those with a default may be missing."""
    if not isinstance(value, dict):
        raise MalformedError(form.__name__, where=where, got=type(value).__name__, expected="an object")
    types: dict[str, type] = {}
    required = set()
    for field in fields(form):
        types[field.name] = list if field.type == list[int] else field.type  # type: ignore[assignment]
        if field.default is MISSING:
            required.add(field.name)
    if not required <= value.keys() <= types.keys():
        raise MalformedError(f"fields of {form.__name__}", where=where, got=sorted(value), expected=sorted(types))
    for name, content in value.items():
        if type(content) is not types[name]:
            raise MalformedError(name, where=where, got=repr(content), expected=types[name].__name__)
    return value
