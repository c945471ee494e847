"""What a training may say of itself: where its steps end, what they hold, which phase runs.

For loops that no hook understands and for frameworks other than torch; torch's own loops need none of it. Nothing here
raises: without an agent in this process (not under `lockstep run` and no rank set, or one that took itself out) every
call is nothing, and a value that makes no sense is named once on stderr and left out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
    """End the running training step here; from the first call on, no step ends anywhere else."""
    agent = bootstrap.current()
    if agent is not None:
        agent.mark("step_end")()


@contextmanager
def step() -> Iterator[None]:
    """Make the block one training step; what runs until the next block belongs to the next step.

    A block that raises ends no step: it was not completed.
    """
    agent = bootstrap.current()
    if agent is not None:
        agent.mark("begin_explicit")()
    yield
    step_end()


def annotate(**quantities: float) -> None:
    """Add to the running step's `tokens`, `samples`, `work` or `flops` (model FLOPs of this rank), whole numbers.

    What was annotated once is from then on not counted automatically.
    """
    agent = bootstrap.current()
    if agent is None:
        return
    for name, value in quantities.items():
        if name not in ANNOTATED:
            _complain(f"annotate: got {name!r}, expected tokens, samples, work or flops")
        elif not isinstance(value, int | float) or not 0 <= value < _QUANTITY_MAX:
            _complain(f"annotate: {name}: got {value!r}, expected a number of at least 0")
        else:
            agent.mark("annotate")(ANNOTATED.index(name), int(value))


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Make the block a phase of the step: `data`, `forward`, `backward` or `optimizer`. An outer phase wins."""
    agent = bootstrap.current()
    number = PHASES.get(name)
    if agent is None or number is None:
        if number is None:
            _complain(f"phase: got {name!r}, expected one of {', '.join(PHASES)}")
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

    `bus_bytes` is what crosses the slowest link for it, the payload if not given.
    """
    agent = bootstrap.current()
    if agent is None or kind not in DOMAIN_KINDS:
        if kind not in DOMAIN_KINDS:
            _complain(f"communication: got {kind!r}, expected one of {', '.join(DOMAIN_KINDS)}")
        yield
        return
    moved = payload_bytes if bus_bytes is None else bus_bytes
    is_noted = agent.guard(_begin_communication)(agent, DOMAIN_KINDS.index(kind), payload_bytes, moved)
    try:
        yield
    finally:
        if is_noted:
            agent.mark("wait_end")()


def _begin_communication(agent: "Agent", domain: int, payload_bytes: int, bus_bytes: int) -> bool:
    """Note a collective that is done when the wait that begins here ends; return False where it is no step's."""
    if not agent.records_here() and agent.adopt() != 1:
        return False
    marks = agent.marks
    site = pack_call_site(_ANY_OPERATOR, synchronous=True, domain=domain, slot=OTHER_SLOT, group_size=2)
    ordinal = marks.issue(site, min(max(payload_bytes, 0), PAYLOAD_BYTES_MAX))
    if ordinal is not None:
        if bus_bytes != payload_bytes:
            marks.issue_bus(ordinal, bus_bytes)
        marks.expect(ordinal)
        marks.wait_begin()
    return ordinal is not None


def _complain(message: str) -> None:
    """Say what is wrong, once: it is said at every step otherwise."""
    if message not in _complaints:
        _complaints.add(message)
        warn(message)
