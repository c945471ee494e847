"""Which functions with different behaviour (localisation) are relevant: those with a cost that nothing else explains.

Two measures decide, not names of functions. First, waiting: healthy ranks of a small job on shared cores always differ
in something, and in a synchronous job that costs time only if the others wait for them. Second, the host's time:
functions on the critical path of one rank share no time, so what a rule and a function together claim beyond the time
in which the device computes nothing is the same loss counted twice.

A pattern covers the whole window, in which one pause of the host is as long as a fault in every step. Pauses affect
different functions on each rank, so a host function counts only if many ranks show what it usually takes, or if several
ranks take longer in it. One of few ranks is evaluated by its calls in each step (`steady_ranks`).
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from lockstep.analysis.merge import window_of
from lockstep.analysis.rank import RankAnalysis
from lockstep.analysis.stragglers import are_waited_for, evaluated_groups, waited_ns
from lockstep.contracts.finding import CPU, IO, Finding, NotEvaluated
from lockstep.diagnosis.communication_causes.collectives import collective_kind
from lockstep.diagnosis.communication_causes.thresholds import WAIT_RATIO, WORTH_RATIO
from lockstep.diagnosis.communication_causes.waiting import GroupWaiting
from lockstep.diagnosis.localisation.findings import (
    LATE_ARRIVAL,
    RULE,
    SLOW_COLLECTIVE,
    SLOW_COPY,
    SLOW_DEVICE,
    SLOW_FUNCTION,
)
from lockstep.diagnosis.localisation.limits import FEW_WORKERS
from lockstep.diagnosis.threshold import Threshold
from lockstep.simulator.hardware.collectives import SEND
from lockstep.trace.columns import OPERATOR
from lockstep.trace.names import COMMUNICATION_KIND, kind_of
from lockstep.trace.patterns.pattern import OUTSIDE

LOCAL = (SLOW_DEVICE, SLOW_COPY, SLOW_FUNCTION, LATE_ARRIVAL)
"""Causes on a rank itself. Collectives that are slow on some ranks are evaluated separately."""
OVERLAP = Threshold(0.5, "ratio of the function's cost", "own: a function most of which is explained is no other loss")
_DISPATCHED = re.compile(r"\w+::\w.*|(?:cu|cuda|hip|acl)[A-Z]\w*")
_NAMED_RANKS = 8


def new_differences(
    findings: Iterable[Finding],
    waiting: Sequence[GroupWaiting],
    *,
    collectives: Sequence[GroupWaiting],
    slow: Collection[int],
    ranks: Mapping[int, RankAnalysis],
    explained: Iterable[Finding] = (),
) -> tuple[list[Finding], list[NotEvaluated]]:
    """Return the relevant differences, and why the others are left out.

    `waiting` is the waiting between ranks, `collectives` the waiting in their collectives. The causes of `slow` ranks
    are already in `explained`. Kept are differences that are no single rank's behaviour, that all ranks of its groups
    share, or that occur on several ranks that together cause most of the waiting. Without shared collectives no
    difference can be ruled out, except a host function of one of few ranks. Left out are differences that cost less
    than 1 % of the window, and time in no recorded call of all ranks alike.
    """
    groups, explained = evaluated_groups(waiting), list(explained)
    in_collectives = evaluated_groups(collectives)
    held_back = {each.subject: each.ranks for each in explained if set(each.ranks) & set(slow)}
    windows_ns = {rank: each.length_ns for rank, each in ranks.items()}
    kept, refused = [], []
    for each in findings:
        if each.subject in held_back:
            reason = f"{each.subject} is what holds rank {_named(held_back[each.subject])} back"
            refused.append(NotEvaluated(rule=RULE, reason=reason))
        elif reason := (_against(each, groups, in_collectives, slow, windows_ns) or _twice(each, ranks, explained)):
            refused.append(NotEvaluated(rule=RULE, reason=reason))
        else:
            kept.append(each)
    return kept, refused


def _against(
    finding: Finding,
    groups: Sequence[GroupWaiting],
    in_collectives: Sequence[GroupWaiting],
    slow: Collection[int],
    windows_ns: Mapping[int, int],
) -> str:
    """Return why a finding is left out, empty if it is relevant."""
    if finding.cause == SLOW_FUNCTION and kind_of(finding.subject, OPERATOR) == COMMUNICATION_KIND:
        return f"{finding.subject} waits for other ranks: collectives are evaluated by who comes last"
    if finding.cause in LOCAL:
        return _against_local(finding, groups, slow, windows_ns)
    if finding.cause == SLOW_COLLECTIVE and collective_kind(finding.subject) == SEND:
        return f"{finding.subject} takes as long as the other rank is away: sends and receives show no slow link"
    if finding.cause == SLOW_COLLECTIVE and _is_waiting(finding, in_collectives):
        return f"{finding.subject} takes longer on ranks {_named(finding.ranks)} because they wait for others in it"
    return ""


def _against_local(
    finding: Finding, groups: Sequence[GroupWaiting], slow: Collection[int], windows_ns: Mapping[int, int]
) -> str:
    if (finding.lost_ns or 0) < WORTH_RATIO.value * window_of(finding, windows_ns):
        return "some functions differ by less than 1 % of the window"
    shared = [group for group in groups if not set(group.ranks).isdisjoint(finding.ranks)]
    if finding.cause == SLOW_FUNCTION and len(finding.ranks) == len(windows_ns) and _is_dispatch(finding.subject):
        return f"{finding.subject} takes as long on all ranks: launching is evaluated as a whole, not by operators"
    if finding.subject == OUTSIDE and (shared or len(finding.ranks) == len(windows_ns)):
        return f"{(finding.lost_ns or 0) / 1e6:.1f} ms in no recorded call: capture with stacks to see in which"
    if set(finding.ranks) & set(slow) and len(finding.ranks) < len(windows_ns):
        return f"{finding.subject} is part of what holds rank {_named(set(finding.ranks) & set(slow))} back"
    return "" if len(finding.ranks) == len(windows_ns) else _against_some(finding, shared, len(windows_ns))


def _against_some(finding: Finding, shared: Sequence[GroupWaiting], rank_count: int) -> str:
    """Return why what some of the ranks do otherwise does not hold; `shared` are the groups of these ranks."""
    if shared and not are_waited_for(finding.ranks, shared):
        unlike = f"{finding.subject} is unlike the peers' on ranks {_named(finding.ranks)}"
        return f"{unlike}, and the others do not wait for them"
    if finding.cause == SLOW_FUNCTION and len(finding.ranks) == 1 and rank_count < FEW_WORKERS.value:
        return f"{finding.subject} is longer on one of few ranks, as after a pause: their calls are compared by step"
    return ""


def _is_dispatch(subject: str) -> bool:
    """Whether a host function is an operator or a call into the device's runtime, which cannot be shortened alone."""
    return _DISPATCHED.fullmatch(subject) is not None


def _twice(finding: Finding, ranks: Mapping[int, RankAnalysis], explained: Sequence[Finding]) -> str:
    """Return that rules explain most of a host function's cost, empty if enough time is left for it."""
    if finding.cause != SLOW_FUNCTION:
        return ""
    for rank in finding.ranks:
        analysis = ranks[rank]
        own = [each for each in (*analysis.findings, *explained) if rank in each.ranks]
        reported_ns = sum(each.lost_ns or 0 for each in own if each.bottleneck in (IO, CPU))
        left_ns = analysis.length_ns - analysis.breakdown.compute_active_ns - reported_ns
        if left_ns >= (1 - OVERLAP.value) * (finding.lost_ns or 0):
            return ""
    return f"{finding.subject} is part of what rules found on ranks {_named(finding.ranks)}"


def _named(ranks: Iterable[int]) -> str:
    named = sorted(ranks)
    return ", ".join(map(str, named[:_NAMED_RANKS])) + (", ..." if len(named) > _NAMED_RANKS else "")


def _is_waiting(finding: Finding, groups: Sequence[GroupWaiting]) -> bool:
    """Whether the ranks of a collective wait for others in it, or transmit as fast as others of their groups.

    If the vendor reports transmission separately and it is equal on all ranks, the rest is waiting. A collective of
    several groups is evaluated in each of them.
    """
    known = [each for each in groups if not np.isnan(each.transit_ratio)]
    if shared := _together(known, finding.ranks):
        return all(each.transit_ratio < WAIT_RATIO.value for each in shared)
    most_ns = OVERLAP.value * (finding.lost_ns or 0)
    if all(waited_ns(groups, rank) >= max(most_ns, 1) for rank in finding.ranks):
        return True
    mixed = [
        each for each in groups if not set(each.ranks) <= set(finding.ranks) and np.nan_to_num(each.transmits_ns).any()
    ]
    shared = _together(mixed, finding.ranks)
    return bool(shared) and all(_slower_ns(each, finding.ranks) < most_ns for each in shared)


def _together(groups: Iterable[GroupWaiting], ranks: Collection[int]) -> list[GroupWaiting]:
    """Return the groups with any of some ranks, empty unless these contain all of them together."""
    found = [each for each in groups if not set(each.ranks).isdisjoint(ranks)]
    return found if set(ranks) <= {rank for each in found for rank in each.ranks} else []


def _slower_ns(group: GroupWaiting, ranks: Collection[int]) -> float:
    """Return how much longer some ranks of a group transmit than its others, in the collectives that all share, ns.

    By the median collective: a slow link is slow every time, a thread without a core only once.
    """
    mine = np.isin(group.ranks, list(ranks))
    present_ns = group.transmits_ns[~np.isnan(group.transmits_ns).any(axis=1)]
    if not len(present_ns):
        return 0.0
    slower_ns = present_ns[:, mine].mean(axis=1) - present_ns[:, ~mine].mean(axis=1)
    return float(np.median(slower_ns)) * len(present_ns)
