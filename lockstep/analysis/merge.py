"""Merges findings and refusals of many ranks: those that several ranks share are listed once, with all ranks."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lockstep.contracts.finding import BOTTLENECKS, Finding, NotEvaluated
from lockstep.diagnosis.host_causes.compilation import COMPILATION
from lockstep.diagnosis.host_causes.dispatch import DISPATCH
from lockstep.diagnosis.remedies import advise_finding
from lockstep.diagnosis.roofline.classic import COMPUTE_BOUND, MEMORY_BOUND, UNDERUTILISED

_ROLLED_UP = frozenset((DISPATCH, COMPILATION, UNDERUTILISED, MEMORY_BOUND, COMPUTE_BOUND))
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_NAMED_RANKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A rule that could not be evaluated, and its ranks; the reason is the first rank's, numbers may differ."""

    rule: str
    reason: str
    ranks: tuple[int, ...]


def merge_findings(findings: Iterable[Finding], windows_ns: Mapping[int, int]) -> list[Finding]:
    """Return one finding for each cause and subject, with all its ranks and the evidence of its most expensive rank.

    For rules that roll up a rank's operators (`_ROLLED_UP`) the subject only gives examples, so the cause is the key.
    Two findings of one rank with the same key (one operator in two formats) stay two: the first merges with the first
    of other ranks. The predicted gain is that of the most expensive rank: its loss over its own window (`windows_ns`,
    by rank).
    """
    found: dict[object, list[Finding]] = {}
    seen: Counter[object] = Counter()
    for each in findings:
        key = key_of(each)
        found.setdefault((key, seen[key, each.ranks]), []).append(each)
        seen[key, each.ranks] += 1
    return [_merged(same, windows_ns) for same in found.values()]


def key_of(finding: Finding) -> tuple[str, str, str]:
    """Return the key under which findings of several ranks are merged."""
    subject = "" if finding.cause in _ROLLED_UP else finding.subject
    return finding.bottleneck, finding.cause, subject


def _merged(same: list[Finding], windows_ns: Mapping[int, int]) -> Finding:
    worst = max(same, key=lambda each: _share(each, windows_ns))
    if len(same) == 1:
        return worst
    ranks = tuple(sorted({rank for each in same for rank in each.ranks}))
    named = ", ".join(map(str, ranks[:_NAMED_RANKS])) + (", ..." if len(ranks) > _NAMED_RANKS else "")
    sentence = f"on {len(ranks)} of {len(windows_ns)} ranks ({named}); the numbers are those of rank {worst.ranks[0]}"
    return replace(worst, ranks=ranks, evidence=(*worst.evidence, sentence))


def _share(finding: Finding, windows_ns: Mapping[int, int]) -> float:
    return (finding.lost_ns or 0) / max(window_of(finding, windows_ns), 1)


def window_of(finding: Finding, windows_ns: Mapping[int, int]) -> int:
    """Return the window against which a finding's loss counts: the shortest of its ranks'."""
    known = [windows_ns[rank] for rank in finding.ranks if rank in windows_ns]
    return min(known or windows_ns.values(), default=0)


def advise(findings: Iterable[Finding], windows_ns: Mapping[int, int], framework: str) -> list[Finding]:
    """Return findings with their advice, the largest predicted gain first, then in Hermes' order of components."""
    advised = [advise_finding(each, window_of(each, windows_ns), framework=framework) for each in findings]
    return sorted(
        advised,
        key=lambda each: (
            -(each.predicted_gain_ratio or 0.0),
            -(each.lost_ns or 0),
            BOTTLENECKS.index(each.bottleneck),
        ),
    )


def merge_refusals(by_rank: Iterable[tuple[int, Iterable[NotEvaluated]]]) -> list[Refusal]:
    """Return one refusal for each rule and kind of reason; reasons that differ only in numbers are one kind."""
    found: dict[tuple[str, str], tuple[NotEvaluated, list[int]]] = {}
    for rank, refusals in by_rank:
        for each in refusals:
            found.setdefault((each.rule, _NUMBERS.sub("#", each.reason)), (each, []))[1].append(rank)
    return [Refusal(rule=each.rule, reason=each.reason, ranks=tuple(ranks)) for each, ranks in found.values()]
