"""Replays a recording through the coordinator's own code, and returns the incidents that were reported live.

Pure: entries in, incidents out. All input is repeated in its original order and with its original times, including
diagnoses and results of captures, so the outcome cannot differ. Instructions are only noted. Invalid records are
counted and skipped, as they were live.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.decide import events as ev
from coordinator.record.backtest import ReplayResult
from coordinator.record.journal import CoordinatorStart, Entry
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from lockstep.contracts.domains import DEFAULT_ORDER, Topology, pack_ranks
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import GroupInfo, NodeAnnouncement

if TYPE_CHECKING:
    from coordinator.runs import Orders
    from lockstep.contracts.codec import Message
    from lockstep.contracts.messages import StepBatch

Shape = Callable[[int], Topology]
"""Returns the topology for a world size; raises ConfigError if there is none."""


def replay(entries: Iterable[Entry], shape: Shape | None = None) -> ReplayResult:
    """Return what a recorded coordinator reported for all of its runs; `shape` replaces the announced groups.

    Raises
    ------
    MalformedError
        The recording cannot be read.
    ConfigError
        `shape` has no topology for a run of the recording.
    """
    replayed = ReplayResult()
    runs: Runs | None = None
    for entry in entries:
        if isinstance(entry.what, CoordinatorStart) or runs is None:
            _end(runs, replayed)
            runs = _begin(entry.what, shape)
        if not isinstance(entry.what, CoordinatorStart):
            orders = _give(runs, entry.what, entry, shape)
            for run, instruction in [(run, each) for run, given in orders for each in given]:
                if isinstance(instruction, ev.ForgetRun):
                    runs.forget(run)
            replayed.note(orders)
    _end(runs, replayed)
    return replayed


def _begin(what: object, shape: Shape | None) -> Runs:
    start = (
        what
        if isinstance(what, CoordinatorStart)
        else CoordinatorStart(policy=Policy(), domains="", order=DEFAULT_ORDER)
    )
    config = CoordinatorConfig(domains=start.domains if shape is None else "", order=start.order)
    return Runs(config, start.policy, start.memories, clock=lambda: 0.0)


def _end(runs: Runs | None, replayed: ReplayResult) -> None:
    if runs is not None:
        replayed.note_open(runs)
        replayed.rejected += Counter(runs.rejected)
        replayed.evaluated_steps += runs.detection.steps


def _give(
    runs: Runs, what: "tuple[StepBatch, ...] | Message | ev.Event", entry: Entry, shape: Shape | None
) -> "Orders":
    if isinstance(what, tuple):
        return runs.take_batches(what, entry.unix_s)
    if isinstance(what, ev.TickEvent):
        return runs.tick(entry.unix_s)
    if isinstance(what, ev.Event):
        return runs.feed(entry.run, what)
    if shape is not None and isinstance(what, NodeAnnouncement):
        what = _shaped(what, shape)
    try:
        return runs.take(what, entry.unix_s)
    except MalformedError:  # refused live too
        return []


def _shaped(announcement: NodeAnnouncement, shape: Shape) -> NodeAnnouncement:
    """Replace the announced groups by those of a topology: the node of rank 0 announces all of them, others none."""
    world = next((info.world_size for info in announcement.ranks if info.rank == 0), 0)
    domains = shape(world).domains if world else ()
    groups = [GroupInfo(kind=domain.kind, name=domain.name, ranks=pack_ranks(domain.ranks)) for domain in domains]
    return replace(announcement, groups=groups)
