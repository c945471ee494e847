"""Ranks that do something longer than their peers in every step, where the noise of the host hides who is waited for.

On a crowded host healthy ranks come late in turn, often later than a fault makes its rank. Then no rank can be named by
the waiting alone (`stragglers`), but one can by its calls: what it does longer in each step (`diagnosis.steady`), if
the others waited for it at all.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from lockstep.analysis.capture_summary import with_analysis
from lockstep.analysis.rank import RankAnalysis
from lockstep.analysis.stragglers import PEERS_MAX, judged_groups
from lockstep.contracts.finding import LOW, MEDIUM, Finding
from lockstep.diagnosis.communication_causes.thresholds import WORTH_RATIO
from lockstep.diagnosis.communication_causes.waiting import GroupWaiting
from lockstep.diagnosis.diagnose import UNKNOWN
from lockstep.diagnosis.excess import Scope, compare
from lockstep.diagnosis.explain import RANK, explain
from lockstep.diagnosis.steady import steady_captures
from lockstep.diagnosis.threshold import Threshold
from lockstep.diagnosis.verdict import Diagnosis
from lockstep.trace.names import COMMUNICATION_KIND

COSTING = Threshold(0.05, "ratio of the step", "PerfTracker, section 4.1: 5 % is a fluctuation")
RANKS_MAX = 8
"""Ranks whose calls are compared, those first that cause most waiting."""
_ANY = Scope(without=frozenset({COMMUNICATION_KIND}), outside=True)
_NS = 1e9


def find_steady_ranks(
    ranks: Mapping[int, RankAnalysis],
    peers: Mapping[int, Sequence[int]],
    waiting: Sequence[GroupWaiting],
    slow: Collection[int],
) -> list[Finding]:
    """Return what ranks other than the `slow` ones do longer than their peers in every step, and the job waits for.

    `peers` are by rank those that do the same work on the same device. `lost_ns` is at most what all others waited for
    the rank with nothing else to do.
    """
    lost_ns = _lost_ns(waiting, ranks)
    chosen = sorted((rank for rank in lost_ns if rank not in slow), key=lambda rank: -lost_ns[rank])[:RANKS_MAX]
    others = {rank: [each for each in peers[rank] if each not in slow][:PEERS_MAX] for rank in chosen}
    found = [_judged(ranks, rank, others[rank], lost_ns[rank]) for rank in chosen]
    return [each for each in found if each is not None]


def _lost_ns(waiting: Sequence[GroupWaiting], ranks: Mapping[int, RankAnalysis]) -> dict[int, float]:
    """Return what was lost to each rank that comes later than the others of its group in the median step."""
    lost_ns: dict[int, float] = {}
    for group in judged_groups(waiting):
        for at, rank in enumerate(group.ranks):
            is_worth = group.lost_ns[at] >= WORTH_RATIO.value * ranks[rank].length_ns
            if is_worth and group.repeated.is_judged and _lead_ns(group, at) > 0:
                lost_ns[rank] = max(lost_ns.get(rank, 0.0), float(group.lost_ns[at]))
    return lost_ns


def _lead_ns(group: GroupWaiting, at: int) -> float:
    """Return by how much a rank comes later than the others' median, in the median step."""
    waited = group.repeated.waited_TR
    return float(np.median(np.median(np.delete(waited, at, axis=1), axis=1) - waited[:, at]))


def _judged(ranks: Mapping[int, RankAnalysis], rank: int, peers: Sequence[int], lost_ns: float) -> Finding | None:
    own = ranks[rank].calls
    known = [calls for each in peers if (calls := ranks[each].calls) is not None and calls.step_ns]
    steady = None if own is None else steady_captures(own, known)
    if steady is None:
        return None
    suspect = with_analysis(steady[0], ranks[rank])
    usual = [with_analysis(each, ranks[each.rank]) for each in steady[1]]
    step_ns = ranks[rank].length_ns / max(len(ranks[rank].steps), 1)
    excess_ns = compare(suspect, usual, _ANY).explained_ns
    if excess_ns < COSTING.value * step_ns:
        return None
    diagnosis = explain(
        cause=UNKNOWN,
        scope=RANK,
        suspects=[suspect],
        peers=usual,
        step_seconds=step_ns / _NS,
        excess_seconds=excess_ns / _NS,
    )
    return _finding(rank, diagnosis, suspect.steps, lost_ns)


def _finding(rank: int, diagnosis: Diagnosis, steps: int, lost_ns: float) -> Finding | None:
    if not diagnosis.root_cause or diagnosis.confidence == LOW:
        return None
    held_ns = (diagnosis.held_ns or 0) * steps
    return Finding(
        bottleneck=diagnosis.bottleneck,
        cause=diagnosis.root_cause,
        ranks=(rank,),
        subject=diagnosis.function,
        evidence=(
            f"rank {rank} is late by this in each of {steps} steps; in some it is delayed further, as its peers are",
            *diagnosis.evidence,
        ),
        lost_ns=round(min(lost_ns, held_ns)),
        steps=(steps, steps),
        confidence=MEDIUM,
        context=tuple(diagnosis.path),
    )
