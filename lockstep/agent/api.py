"""What a training may say of itself: where its steps end, what they hold, which phase runs.

For loops that no hook understands and for frameworks other than torch; torch's own loops need none of it. Nothing here
raises: without an agent in this process (not under `lockstep run` and no rank set, or one that took itself out) every
call is nothing, and a value that makes no sense is named once on stderr and left out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import TYPE_CHECKING

from lockstep.agent import bootstrap
from lockstep.agent.account import BACKWARD, DATA, FORWARD, OPTIMIZER, Collective
from lockstep.agent.boundary import say
from lockstep.contracts.records import DOMAIN_KINDS

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

PHASES = {"data": DATA, "forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER}
_QUANTITY_MAX = 1 << 62  # a record holds 64 bits

_complaints: set[str] = set()


def step_end() -> None:
    """End the running training step here; from the first call on, no step ends anywhere else."""
    agent = bootstrap.current()
    if agent is not None:
        agent.guard(agent.recorder.end_explicit)()


@contextmanager
def step() -> Iterator[None]:
    """Make the block one training step; what runs until the next block belongs to the next step.

    A block that raises ends no step: it was not completed.
    """
    agent = bootstrap.current()
    if agent is not None:
        agent.guard(agent.recorder.begin_explicit)()
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
        if name not in ("tokens", "samples", "work", "flops"):
            _complain(f"annotate: got {name!r}, expected tokens, samples, work or flops")
        elif not isinstance(value, int | float) or not 0 <= value < _QUANTITY_MAX:
            _complain(f"annotate: {name}: got {value!r}, expected a number of at least 0")
        else:
            agent.guard(agent.recorder.annotate)(name, int(value))


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
    agent.guard(agent.recorder.enter_phase)(number)
    try:
        yield
    finally:
        agent.guard(agent.recorder.leave_phase)(number)


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
    began_ns = monotonic_ns()
    moved = payload_bytes if bus_bytes is None else bus_bytes
    agent.guard(_begin_communication)(
        agent, Collective(began_ns, DOMAIN_KINDS.index(kind), payload_bytes, moved, synchronous=True)
    )
    try:
        yield
    finally:
        agent.guard(agent.recorder.block)(began_ns, monotonic_ns())


def _begin_communication(agent: "Agent", collective: Collective) -> None:
    if agent.recorder.records_here() or agent.adopt():
        agent.recorder.issue(collective)
        agent.recorder.expect(collective)


def _complain(message: str) -> None:
    """Say what is wrong, once: it is said at every step otherwise."""
    if message not in _complaints:
        _complaints.add(message)
        say(message)
