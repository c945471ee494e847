"""Applies changes to the announced ranks and groups of a run. No I/O.

When thousands of nodes announce themselves within seconds, and their groups later, applying each announcement would
rearrange everything known of the others. A large job is therefore arranged when it is complete; until then, once for
all announcements before the next step batch or tick.
"""

from typing import TYPE_CHECKING

from coordinator.decide import events as ev
from coordinator.intake.refusals import DEGREES, Refusals
from coordinator.intake.timeline import StepTimeline
from lockstep.contracts.errors import ConfigError

if TYPE_CHECKING:
    from collections import Counter

    from coordinator.intake.topology import MembershipChange
    from coordinator.run import Orders, Run
    from lockstep.contracts.domains import Topology

_SMALL_RANKS = 1024  # arranging them takes milliseconds, and there are at most as many nodes


def is_reshaped_at_once(run: "Run", change: "MembershipChange") -> bool:
    """Whether a due change is applied now: the run is complete or small, or has no topology yet."""
    return run.reshape_is_due and (
        run.topology is None or change.is_completed or run.membership.world_size <= _SMALL_RANKS
    )


def reshape(run: "Run", now_s: float, rejected: "Counter[str]", refusals: Refusals) -> "Orders":
    """Apply the announced ranks and groups; if the shape changed, the detector is discarded."""
    run.reshape_is_due = False
    ranks = run.membership.ranks
    if not set(run.timeline.ranks.tolist()).issubset(ranks):  # a smaller world: nothing of the old one is usable
        run.timeline.drop_pending()
        run.timeline = StepTimeline(run.policy.timeline, rejected)
        run.generation = -1
    if run.timeline.know(ranks):
        run.detector = None
    topology = _topology(run, refusals)
    if topology != run.topology:
        run.detector = None
    run.topology = topology
    return announce(run, now_s)


def announce(run: "Run", now_s: float) -> "Orders":
    """Pass ranks, groups and nodes to the run's machine."""
    assert run.topology is not None
    event = ev.AnnounceEvent(
        unix_s=now_s,
        cause_id="announce",
        topology=run.topology,
        ranks=tuple(run.membership.ranks),
        is_finished=run.membership.is_finished,
        nodes=run.membership.nodes,
    )
    return run.feed(event)


def _topology(run: "Run", refusals: Refusals) -> "Topology":
    try:
        return run.membership.topology()
    except ConfigError as error:
        refusals.add(DEGREES, f"run {run.name}: {error}; the announced groups are used")
        return run.membership.announced_topology()
