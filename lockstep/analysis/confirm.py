"""Whether a rank that behaves otherwise is the one that holds the others back (Hermes 4.2.1: between devices first).

Healthy ranks of a small job on shared cores differ from each other in something, always; in a synchronous job that
costs only where the others wait for them. So what localisation says of some ranks is held against who is waited for.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from lockstep.analysis.merge import window_of
from lockstep.diagnosis.communication_causes.thresholds import BLAME_SHARE, COLLECTIVES, WORTH_RATIO
from lockstep.diagnosis.communication_causes.waiting import GroupWaiting
from lockstep.diagnosis.finding import Finding, NotJudged
from lockstep.diagnosis.localisation.findings import (
    LATE_ARRIVAL,
    RULE,
    SLOW_COLLECTIVE,
    SLOW_COPY,
    SLOW_DEVICE,
    SLOW_FUNCTION,
)
from lockstep.trace.patterns.pattern import OUTSIDE

LOCAL = (SLOW_DEVICE, SLOW_COPY, SLOW_FUNCTION, LATE_ARRIVAL)
"""Causes on a rank itself. Collectives that are slow on some ranks are judged by themselves."""
_NAMED_RANKS = 8


def confirm(
    findings: Iterable[Finding],
    waiting: Sequence[GroupWaiting],
    *,
    slow: Collection[int],
    windows_ns: Mapping[int, int],
    explained: Collection[str] = (),
) -> tuple[list[Finding], list[NotJudged]]:
    """Return the findings that hold, and why the others do not.

    Kept is what is no rank's own behaviour, what is on every rank of its groups, and what is on ranks that are waited
    for: `slow` ones (`judge_waiting`), or several that cause most of the waiting together. Without collectives that
    ranks share nothing can be held against it. A collective that takes longer on those who wait for a slow rank is that
    rank's doing. Left out is what costs less than 1 % of the window (`windows_ns`, by
    rank), what another rule has `explained` by its subject, and time in no recorded call of all ranks alike.
    """
    groups = [each for each in waiting if each.collectives >= COLLECTIVES.value and float(each.caused_ns.sum()) > 0]
    kept, refused = [], []
    for each in findings:
        reason = _against(each, groups, slow, windows_ns)
        if each.subject in explained:
            continue
        if reason:
            refused.append(NotJudged(rule=RULE, reason=reason))
        else:
            kept.append(each)
    return kept, refused


def _against(
    finding: Finding, groups: Sequence[GroupWaiting], slow: Collection[int], windows_ns: Mapping[int, int]
) -> str:
    """Return why a finding does not hold, empty if it does."""
    if finding.cause == SLOW_COLLECTIVE and (awaited := _awaited(finding, groups, slow)):
        return f"{finding.subject} takes longer where it waits for rank {_told(awaited)}"
    if finding.cause not in LOCAL:
        return ""
    if (finding.lost_ns or 0) < WORTH_RATIO.value * window_of(finding, windows_ns):
        return "some functions differ by less than 1 % of the window"
    if finding.subject == OUTSIDE and len(finding.ranks) == len(windows_ns):
        return f"{(finding.lost_ns or 0) / 1e6:.1f} ms in no recorded call: capture with stacks to see in which"
    shared = [group for group in groups if not set(group.ranks).isdisjoint(finding.ranks)]
    if not shared or set(finding.ranks) & set(slow) or _blamed(finding.ranks, shared):
        return ""
    return (
        f"{finding.subject} is unlike the peers' on ranks {_told(finding.ranks)}, and the others do not wait for them"
    )


def _told(ranks: Iterable[int]) -> str:
    named = sorted(ranks)
    return ", ".join(map(str, named[:_NAMED_RANKS])) + (", ..." if len(named) > _NAMED_RANKS else "")


def _awaited(finding: Finding, groups: Sequence[GroupWaiting], slow: Collection[int]) -> set[int]:
    """Return the slow ranks for which the ranks of a collective wait, none if a slow one is among them."""
    awaited = {rank for group in groups if set(finding.ranks) <= set(group.ranks) for rank in group.ranks} & set(slow)
    return set() if awaited & set(finding.ranks) else awaited


def _blamed(ranks: Collection[int], groups: Sequence[GroupWaiting]) -> bool:
    """Whether ranks together cause the waiting of a group, beyond what so many would by chance.

    One of many must cause `BLAME_SHARE`, and the larger a part of the group they are, the nearer to all of it.
    """
    for group in groups:
        mine = np.isin(group.ranks, list(ranks))
        share = float(group.caused_ns[mine].sum() / group.caused_ns.sum())
        if share >= 1 - (1 - BLAME_SHARE.value) * (1 - float(mine.mean())):
            return True
    return False
