"""Detects that a run makes no steps: since when, and where each of its ranks stands in its collectives.

A step's record is written at its end. If a collective never ends, neither does the step, so no record shows which rank
has not arrived. The counts of issued collectives (`contracts/ring.py`) do. Only the coordinator sees all nodes, so
nothing is decided here: a node whose ranks write no records reports their progress as long as that lasts.
"""

import logging

from exporter.reading.run_state import RankState, RunState
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import RUNNING, GroupInfo, IssueCount, NodeAnnouncement, RankInfo, RankProgress

_log = logging.getLogger(__name__)

_STEPS = 5  # mean steps without a record: PerfTracker's rule for a blocked run
_LEAST_NS = 5 * 10**9  # several batches and ticks, and still earlier than the coordinator's own test


def watch(run: RunState, now_ns: int) -> None:
    """Notice when a run becomes silent or progresses again (`now_ns` CLOCK_MONOTONIC); both trigger an announcement."""
    progress_watch = run.progress_watch
    records = int(run.histogram.counts.sum())
    progress = records, sum(rank_state.steps.ends for rank_state in run.ranks.values())
    if progress != progress_watch.progress:
        progress_watch.progress, progress_watch.progress_ns = progress, now_ns
    mean_ns = run.histogram.sum_ns / records if records else 0.0
    is_alive = any(rank_state.ring is not None and rank_state.state == RUNNING for rank_state in run.ranks.values())
    is_silent = is_alive and now_ns - progress_watch.progress_ns > max(_LEAST_NS, _STEPS * mean_ns)
    if is_silent != progress_watch.is_announced:
        progress_watch.is_announced = is_silent
        run.revision += 1


def announcement(run: RunState, node: str) -> NodeAnnouncement:
    """Return what this node announces of a run, ranks ascending; of a silent run, including where its ranks stand."""
    groups = run.groups()
    place = {_identity(group): index for index, group in enumerate(groups)}
    infos = [_info(rank_state, place, is_silent=run.progress_watch.is_announced) for rank_state in run.announced()]
    return NodeAnnouncement(run=run.name, node=node, ranks=infos, groups=groups, revision=run.revision)


def _info(rank_state: RankState, place: dict[tuple[str, str, str], int], *, is_silent: bool) -> RankInfo:
    # An unnumbered rank's last step would be far behind.
    if not is_silent or rank_state.ring is None or rank_state.steps.is_unnumbered:
        return rank_state.info()
    try:
        issues = rank_state.ring.issues()
    except (MalformedError, OSError) as error:  # the reader of records counts it
        _log.debug("rank %d: %s", rank_state.rank, error)
        return rank_state.info()
    offset_ns = rank_state.header.clock_offset_ns
    counts = [
        IssueCount(
            group=place[_identity(use.group)],
            operation=use.operation,
            peer=use.peer,
            issued=int(issues.counts[use.slot]),
            last_unix_ns=int(issues.times_ns[use.slot]) + offset_ns,
        )
        for use in rank_state.slots
        if issues.counts[use.slot] and _identity(use.group) in place
    ]
    return rank_state.info(
        RankProgress(
            last_step=rank_state.totals.last_step,
            flags=issues.flags,
            issues=counts,
            is_alive=issues.is_alive,
        )
    )


def _identity(group: GroupInfo) -> tuple[str, str, str]:
    return group.kind, group.name, str(group.ranks)
