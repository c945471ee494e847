"""The findings of a summary, the largest gain first."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.analysis.report import reading
from lockstep.analysis.report.parts import Summary
from lockstep.diagnosis.remedies import table

SYMPTOMS = frozenset({"waiting_for_straggler", "late_arrival"})
"""Causes that state that others wait for a rank, but not why it is late."""
_COMPARABLE_RATIO = 0.5  # of the weight of the first reason: a lighter one does not replace it
_MINORITY_RATIO = 0.5  # of the ranks: a finding on more of them names no rank


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyText:
    """One remedy; `gain_ratio` is None if it cannot be predicted."""

    suggestion: str
    how: str
    source: str
    gain_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCard:
    """A cause and subject on all its ranks; evidence, loss and advice are those of the rank that loses most."""

    bottleneck: str
    cause: str
    subject: str
    ranks: tuple[int, ...]
    evidence: tuple[str, ...]
    advice: tuple[RemedyText, ...]
    gain_ratio: float | None
    lost_ns: int | None
    confidence: str

    @property
    def title(self) -> str:
        """Return the cause in plain words."""
        return cause_title(self.cause)


def cause_title(cause: str) -> str:
    """Return the title of a cause, its own name where the remedies do not know it."""
    known = table().causes.get(cause)
    return known.title if known else cause.replace("_", " ").capitalize() or "Unnamed cause"


def findings_of(summary: Summary) -> list[FindingCard]:
    """Return what was found, by gain, then by lost time.

    The summary's own list has all findings; those of single ranks are the same ones again.
    """
    return sorted(map(_read, summary.findings), key=_order)


def _read(stored: dict[str, Any]) -> FindingCard:
    return FindingCard(
        bottleneck=reading.text(stored.get("bottleneck")),
        cause=reading.text(stored.get("cause")),
        subject=reading.text(stored.get("subject")),
        ranks=reading.ranks(stored.get("ranks")),
        evidence=tuple(reading.texts(stored.get("evidence"))),
        advice=tuple(
            sorted(map(_advice, reading.records(stored.get("advice"))), key=lambda each: -_gain(each.gain_ratio))
        ),
        gain_ratio=reading.share(stored.get("predicted_gain_ratio")),
        lost_ns=reading.nanoseconds(stored.get("lost_ns")),
        confidence=reading.text(stored.get("confidence")),
    )


def _advice(stored: dict[str, Any]) -> RemedyText:
    return RemedyText(
        suggestion=reading.text(stored.get("suggestion")),
        how=reading.text(stored.get("how")),
        source=reading.text(stored.get("source")),
        gain_ratio=reading.share(stored.get("predicted_gain_ratio")),
    )


def _gain(ratio: float | None) -> float:
    """Return the sort key of a gain: unknown gains sort after a gain of 0."""
    return -math.inf if ratio is None else ratio


def _order(found: FindingCard) -> tuple[float, float]:
    return -_gain(found.gain_ratio), -(found.lost_ns or 0)


def headline(findings: Sequence[FindingCard]) -> FindingCard | None:
    """Return the finding to name first: the one with the largest gain.

    If that one only states that others wait for a rank, the reason why the rank is late takes precedence, if it
    explains at least half as much.
    """
    if not findings:
        return None
    top = findings[0]
    if top.cause not in SYMPTOMS:
        return top
    late = set(top.ranks)
    reasons = (each for each in findings if each.cause not in SYMPTOMS and late & set(each.ranks))
    return next((each for each in reasons if _weight(each) >= _COMPARABLE_RATIO * _weight(top)), top)


def _weight(found: FindingCard) -> float:
    return found.gain_ratio if found.gain_ratio is not None else 0.0


def named_ranks(findings: Iterable[FindingCard], count: int) -> list[int]:
    """Return the ranks that findings name, in their order; a finding on more than half of `count` names none."""
    specific = [each for each in findings if len(each.ranks) <= max(count * _MINORITY_RATIO, 1)]
    return list(dict.fromkeys(number for each in specific for number in each.ranks))


def advice_by_gain(findings: Iterable[FindingCard]) -> list[tuple[RemedyText, FindingCard]]:
    """Return every advice once, with the finding of its largest gain; by gain, unknown ones last."""
    pairs = [(advice, found) for found in findings for advice in found.advice]
    pairs.sort(key=lambda pair: (-_gain(pair[0].gain_ratio), _order(pair[1])))
    once: dict[tuple[str, str], tuple[RemedyText, FindingCard]] = {}
    for advice, found in pairs:
        once.setdefault((advice.suggestion, advice.how), (advice, found))
    return list(once.values())
