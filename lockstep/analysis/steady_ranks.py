"""Ranks that take longer than their peers in every step, for hosts whose noise hides which rank is waited for.

On a crowded host healthy ranks are late in turn, often by more than a fault delays its rank. Then waiting alone names
no rank (`stragglers`), but calls can: the excess of a rank in each step (`diagnosis.steady`), if the others waited for
it at all.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from lockstep.analysis.rank import RankAnalysis
from lockstep.analysis.stragglers import PEERS_MAX, captured
from lockstep.contracts.finding import MEDIUM, Finding
from lockstep.diagnosis.communication_causes.thresholds import WORTH_RATIO
from lockstep.diagnosis.communication_causes.waiting import GroupWaiting
from lockstep.diagnosis.diagnose import UNKNOWN
from lockstep.diagnosis.explain import explain_recurring
from lockstep.diagnosis.verdict import Diagnosis

RANKS_MAX = 8
"""Number of ranks whose calls are compared, those that cause most waiting first."""
_NS = 1e9


def find_steady_ranks(
    ranks: Mapping[int, RankAnalysis],
    peers: Mapping[int, Sequence[int]],
    waiting: Sequence[GroupWaiting],
    slow: Collection[int],
) -> list[Finding]:
    """Return what takes ranks other than the `slow` ones longer than their peers in every step, if the job waits.

    `peers` are, by rank, those that do the same work on the same device. `lost_ns` is at most the time that all others
    waited for the rank with nothing else to do.
    """
    lost_ns = _lost_ns(waiting, ranks)
    chosen = sorted((rank for rank in lost_ns if rank not in slow), key=lambda rank: -lost_ns[rank])[:RANKS_MAX]
    others = {rank: [each for each in peers[rank] if each not in slow][:PEERS_MAX] for rank in chosen}
    found = [_finding_of(ranks, rank, others[rank], lost_ns[rank]) for rank in chosen]
    return [each for each in found if each is not None]


def _lost_ns(waiting: Sequence[GroupWaiting], ranks: Mapping[int, RankAnalysis]) -> dict[int, float]:
    """Return what was lost to each rank that comes later than the others of its group in the median step.

    One step with waiting suffices: the calls show what recurs.
    """
    lost_ns: dict[int, float] = {}
    for group in waiting:
        for at, rank in enumerate(group.ranks if group.repeated.steps else ()):
            is_worth = group.lost_ns[at] >= WORTH_RATIO.value * ranks[rank].length_ns
            if is_worth and _lead_ns(group, at) > 0:
                lost_ns[rank] = max(lost_ns.get(rank, 0.0), float(group.lost_ns[at]))
    return lost_ns


def _lead_ns(group: GroupWaiting, at: int) -> float:
    """Return how much later than the others' median a rank arrives, in the median step, ns."""
    waited = group.repeated.waited_TR
    return float(np.median(np.median(np.delete(waited, at, axis=1), axis=1) - waited[:, at]))


def _finding_of(ranks: Mapping[int, RankAnalysis], rank: int, peers: Sequence[int], lost_ns: float) -> Finding | None:
    suspect = captured(ranks[rank])
    known = [found for each in peers if (found := captured(ranks[each])) is not None]
    if suspect is None:
        return None
    diagnosis = explain_recurring(
        cause=UNKNOWN,
        suspect=suspect,
        peers=known,
        step_seconds=ranks[rank].length_ns / max(suspect.steps, 1) / _NS,
        excess_seconds=0.0,
    )
    return None if diagnosis is None else _finding(rank, diagnosis, suspect.steps, lost_ns)


def _finding(rank: int, diagnosis: Diagnosis, steps: int, lost_ns: float) -> Finding:
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
