"""Which ranks the others wait for, why, and which costs of other ranks do not count because they wait anyway.

In a synchronous job a rank's loss costs the job only the time that the others wait for it (Hermes 4.2.1: between
devices first). The cause is the same as the coordinator would give from the same captures: both call
`lockstep.diagnosis.explain`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lockstep.analysis.capture_summary import with_analysis
from lockstep.analysis.merge import Refusal
from lockstep.analysis.rank import RankAnalysis
from lockstep.contracts.finding import CPU, HIGH, IO, LOW, MEDIUM, Finding
from lockstep.contracts.messages import TraceSummary
from lockstep.diagnosis.communication_causes.thresholds import BLAME_SHARE, COLLECTIVES
from lockstep.diagnosis.communication_causes.waiting import SLOW_RANK, GroupWaiting
from lockstep.diagnosis.diagnose import UNKNOWN
from lockstep.diagnosis.explain import RANK, explain
from lockstep.diagnosis.verdict import Diagnosis

PEERS_MAX = 8
"""Captures to compare a slow rank with: more improve the median little, and each is summarised first."""
_HOST = (IO, CPU)
_NS = 1e9
_CONFIDENCES = (LOW, MEDIUM, HIGH)
_WAITING_SENTENCES = 3


def explain_stragglers(
    findings: Sequence[Finding], ranks: Mapping[int, RankAnalysis], peers: Mapping[int, Sequence[int]]
) -> list[Finding]:
    """Return the findings, with `SLOW_RANK` symptoms (a rank that others wait for) replaced by their causes.

    `peers` are, by rank, those that do the same work on the same device. If the captures do not show the cause, the
    symptom stays, with the reason. A rank that was late by chance (a symptom of low confidence) is not named.
    """
    findings = [each for each in findings if each.cause != SLOW_RANK or each.confidence != LOW]
    slow = {rank for each in findings if each.cause == SLOW_RANK for rank in each.ranks}
    explained: dict[int, Diagnosis] = {}
    for rank in sorted(slow):
        cost_ns = max(each.lost_ns or 0 for each in findings if each.cause == SLOW_RANK and rank in each.ranks)
        explained[rank] = _explained(ranks, rank, [each for each in peers[rank] if each not in slow], cost_ns)
    return [
        _with_cause(each, explained[each.ranks[0]], ranks) if each.cause == SLOW_RANK else each for each in findings
    ]


def _explained(ranks: Mapping[int, RankAnalysis], rank: int, peers: Sequence[int], cost_ns: int) -> Diagnosis:
    suspect = captured(ranks[rank])
    others = [found for each in peers[:PEERS_MAX] if (found := captured(ranks[each])) is not None]
    steps = 1 if suspect is None else max(suspect.steps, 1)
    return explain(
        cause=UNKNOWN,
        scope=RANK,
        suspects=[] if suspect is None else [suspect],
        peers=others,
        step_seconds=ranks[rank].length_ns / steps / _NS,
        excess_seconds=cost_ns / steps / _NS,
    )


def captured(analysis: RankAnalysis) -> TraceSummary | None:
    """Return the summary that a coordinator would have received of this rank."""
    return None if analysis.calls is None else with_analysis(analysis.calls, analysis)


def _with_cause(symptom: Finding, diagnosis: Diagnosis, ranks: Mapping[int, RankAnalysis]) -> Finding:
    if not diagnosis.root_cause:
        return replace(symptom, evidence=(*symptom.evidence, *diagnosis.evidence))
    calls = ranks[symptom.ranks[0]].calls
    steps = 1 if calls is None else max(calls.steps, 1)
    held_ns = None if diagnosis.held_ns is None else diagnosis.held_ns * steps
    lost_ns = symptom.lost_ns if held_ns is None or symptom.lost_ns is None else min(symptom.lost_ns, held_ns)
    operator = [f"most of it in {diagnosis.operator}"] if diagnosis.operator else []
    return replace(
        symptom,
        bottleneck=diagnosis.bottleneck,
        cause=diagnosis.root_cause,
        subject=diagnosis.function,
        evidence=(*diagnosis.evidence, *operator, *symptom.evidence[:_WAITING_SENTENCES]),
        lost_ns=lost_ns,
        confidence=min(diagnosis.confidence, symptom.confidence, key=_CONFIDENCES.index),
        context=(*symptom.context, *diagnosis.path),
    )


def unexplained_ns(
    findings: Iterable[Finding], waiting: Sequence[GroupWaiting], slow: Collection[int]
) -> dict[int, float]:
    """Return, by slow rank, the time that the others wait for it beyond the causes in `findings`, ns."""
    found = {
        rank: max((float(each.lost_ns[each.ranks.index(rank)]) for each in waiting if rank in each.ranks), default=0.0)
        for rank in slow
    }
    for each in findings:
        if each.cause != SLOW_RANK and len(each.ranks) == 1 and each.ranks[0] in found:
            found[each.ranks[0]] -= each.lost_ns or 0
    return found


def costing(
    findings: Iterable[Finding], waiting: Sequence[GroupWaiting], slow: Mapping[int, float], rank_count: int
) -> tuple[list[Finding], list[Refusal]]:
    """Return each rank's own findings that cost the job time, and the others with the reason.

    A loss on the host of a few ranks costs nothing if these ranks wait for `slow` ones, or each other, for at least as
    long, or if the others do not wait for them. A loss shared by most ranks does cost, unless it occurs in only one of
    several steps and not on all ranks. A loader of a single rank that is slow in one step may have been paused. On a
    slow rank a loss costs at most the waiting that the rank's named causes leave: `slow` is `unexplained_ns`.
    """
    findings = list(findings)
    having, repeating = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
    for each in findings:
        having[each.cause].update(each.ranks)
        repeating[each.cause].update(() if each.is_once else each.ranks)
    kept, left_out = [], []
    for each in findings:
        together = repeating[each.cause]
        is_common = len(having[each.cause]) == rank_count and not (rank_count == 1 and _may_be_pause(each))
        if each.bottleneck not in _HOST or is_common:
            kept.append(each)
        elif each.is_once and each.steps is not None:
            reason = (
                f"it occurs in 1 of {each.steps[1]} steps and not on several ranks: start-up, or a pause of the host"
            )
            left_out.append(Refusal(rule=each.cause, reason=reason, ranks=each.ranks))
        elif 2 * len(together) > rank_count:
            kept.append(each)
        elif reason := _explained_otherwise(each, slow) or _costs_nothing(each, together, waiting, slow):
            left_out.append(Refusal(rule=each.cause, reason=reason, ranks=each.ranks))
        else:
            kept.append(each)
    return kept, left_out


def _may_be_pause(finding: Finding) -> bool:
    """Whether the host's scheduler may have made a loss: one long loader, whereas no pause compiles or collects."""
    return finding.bottleneck == IO and finding.is_once


def _explained_otherwise(finding: Finding, slow: Mapping[int, float]) -> str:
    """Return why a loss of a slow rank is not what the others wait for; empty if it is, or if the rank is not slow."""
    rest_ns = max((slow[rank] for rank in finding.ranks if rank in slow), default=np.inf)
    lost_ns = finding.lost_ns or 0
    if 2 * rest_ns >= lost_ns:
        return ""
    return (
        f"the rank's named cause leaves {max(rest_ns, 0) / 1e6:.1f} ms of the others' waiting unexplained; "
        f"this would account for {lost_ns / 1e6:.1f} ms"
    )


def _costs_nothing(
    finding: Finding, together: Collection[int], waiting: Sequence[GroupWaiting], slow: Collection[int]
) -> str:
    """Return why a host's loss costs the job nothing, empty if it does; `together` are all ranks with its cause."""
    if set(finding.ranks) & set(slow):
        return ""
    lost_ms = (finding.lost_ns or 0) / 1e6
    slack_ms = min((waited_ns(waiting, rank) for rank in finding.ranks), default=0.0) / 1e6
    if slack_ms >= lost_ms:
        return f"its {lost_ms:.1f} ms cost the job nothing: the rank waits {slack_ms:.1f} ms for others anyway"
    shared = [group for group in waiting if set(finding.ranks) & set(group.ranks) and group.repeated.has_enough_steps]
    if shared and not are_waited_for(together, shared):
        return f"it costs the rank {lost_ms:.1f} ms, but the others do not wait for that rank in step after step"
    return ""


def waited_ns(waiting: Sequence[GroupWaiting], rank: int) -> float:
    """Return how long a rank waits for others, in the group in which it waits most, ns."""
    return max((float(each.waited_ns[each.ranks.index(rank)]) for each in waiting if rank in each.ranks), default=0.0)


def evaluated_groups(waiting: Iterable[GroupWaiting]) -> list[GroupWaiting]:
    """Return the groups with enough collectives and waiting to show which ranks are waited for."""
    return [each for each in waiting if each.collectives >= COLLECTIVES.value and float(each.caused_ns.sum()) > 0]


def are_waited_for(ranks: Collection[int], groups: Sequence[GroupWaiting]) -> bool:
    """Whether ranks together cause a group's waiting by more than chance explains.

    A single rank must cause `BLAME_SHARE`; the larger the ranks' part of the group, the closer the limit is to 1.
    """
    for group in groups:
        mine = np.isin(group.ranks, list(ranks))
        share = float(group.caused_ns[mine].sum() / group.caused_ns.sum())
        if not mine.all() and group.repeated.is_chance(np.flatnonzero(mine).tolist()):
            continue
        if share >= 1 - (1 - BLAME_SHARE.value) * (1 - float(mine.mean())):
            return True
    return False
