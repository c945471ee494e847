"""What a training may report itself: ends of steps, their content, and the current phase.

For loops that no hook recognises and for frameworks other than torch; torch's own loops need none of it. Nothing here
raises: without an agent in this process (not under `lockstep run` and no rank set, or removed after a failure) every
call does nothing, and an invalid value is reported once on stderr and ignored.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any

from lockstep.agent import bootstrap
from lockstep.agent.boundary import warn
from lockstep.contracts.marks import ANNOTATED, PAYLOAD_BYTES_MAX, pack_call_site
from lockstep.contracts.records import DOMAIN_KINDS
from lockstep.contracts.ring import OTHER_SLOT

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

PHASES = {"data": 0, "forward": 1, "backward": 2, "optimizer": 3}
"""As marks number them."""
_ANY_OPERATOR = "broadcast_"  # its bus bytes are its payload
_QUANTITY_MAX = 1 << 62  # a record holds 64 bits

_complaints: set[str] = set()


def step_end() -> None:
    """End the running training step here; from the first call on, steps end nowhere else."""
    agent = bootstrap.current()
    if agent is not None:
        agent.mark("step_end")()


@contextmanager
def step() -> Iterator[None]:
    """Make the block one training step; code between blocks belongs to the next step.

    A block that raises does not end a step, since the step was not completed.
    """
    agent = bootstrap.current()
    if agent is not None:
        agent.mark("begin_explicit")()
    yield
    step_end()


def annotate(**quantities: float) -> None:
    """Add to the running step's `tokens`, `samples`, `work` or `flops` (model FLOPs of this rank), whole numbers.

    A quantity that was annotated once is no longer counted automatically.
    """
    agent = bootstrap.current()
    if agent is None:
        return
    for name, value in quantities.items():
        if name not in ANNOTATED:
            _complain("annotate", name, "tokens, samples, work or flops")
            continue
        number = _whole(f"annotate: {name}", value)
        if number is not None:
            agent.mark("annotate")(ANNOTATED.index(name), number)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Make the block a phase of the step: `data`, `forward`, `backward` or `optimizer`; an outer phase prevails."""
    agent = bootstrap.current()
    number = PHASES.get(name) if isinstance(name, str) else None
    if agent is None or number is None:
        if number is None:
            _complain("phase", name, f"one of {', '.join(PHASES)}")
        yield
        return
    agent.mark("phase_begin")(number)
    try:
        yield
    finally:
        agent.mark("phase_end")(number)


@contextmanager
def communication(kind: str, payload_bytes: int = 0, bus_bytes: int | None = None) -> Iterator[None]:
    """Make the block a wait for a collective of a domain kind (`tp`, `cp`, `ep`, `dp`, `pp`, `world`).

    `bus_bytes` is the traffic on the slowest link, the payload if not given.
    """
    agent = bootstrap.current()
    is_kind = isinstance(kind, str) and kind in DOMAIN_KINDS
    if agent is None or not is_kind:
        if not is_kind:
            _complain("communication", kind, f"one of {', '.join(DOMAIN_KINDS)}")
        yield
        return
    payload = _whole("communication: payload_bytes", payload_bytes) or 0
    moved = None if bus_bytes is None else _whole("communication: bus_bytes", bus_bytes)
    is_noted = agent.guard(_begin_communication)(agent, DOMAIN_KINDS.index(kind), payload, moved)
    try:
        yield
    finally:
        if is_noted:
            agent.mark("wait_end")()


def _begin_communication(agent: "Agent", domain: int, payload_bytes: int, bus_bytes: int | None) -> bool:
    """Mark a collective that ends with the wait that begins here; return False if it belongs to no step."""
    if not agent.records_here() and agent.claim_thread() != 1:
        return False
    marks = agent.marks
    site = pack_call_site(_ANY_OPERATOR, synchronous=True, domain=domain, slot=OTHER_SLOT, group_size=2)
    ordinal = marks.issue(site, min(payload_bytes, PAYLOAD_BYTES_MAX))
    if ordinal is not None:
        if bus_bytes not in (None, payload_bytes):
            marks.issue_bus(ordinal, bus_bytes)
        marks.expect(ordinal)
        marks.wait_begin()
    return ordinal is not None


def _whole(where: str, value: Any) -> int | None:
    """Return `value` as a whole number that fits a record, without its fraction; None, and a complaint, if invalid.

    A tensor is invalid: reading its value would wait for the device that computes it.
    """
    is_number = isinstance(value, Real)
    if is_number and 0 <= value < _QUANTITY_MAX:
        return int(value)
    _complain(where, value, "a number of at least 0")
    return None


def _complain(where: str, got: Any, expected: str) -> None:
    """Report an invalid value once per place, since it recurs at every step with another value."""
    if where not in _complaints:
        _complaints.add(where)
        is_short = isinstance(got, str | float) or (isinstance(got, int) and abs(got) <= _QUANTITY_MAX)
        shown = repr(got) if is_short else type(got).__qualname__
        warn(f"{where}: got {shown:.80}, expected {expected}")
