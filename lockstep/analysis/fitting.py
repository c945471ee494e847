"""Cuts a capture's summary to its size limit: the least important parts first, and the cut parts are counted.

First functions of small beta, then reasons of rules that could not be evaluated, more than two sentences of a finding,
the times of steps after the first ones, the smallest nodes of the call tree; only then, for traces made to be large,
the input of the diagnosis.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from lockstep.contracts.codec import packed_bytes
from lockstep.contracts.limits import SUMMARY_MAX_BYTES, SUMMARY_WIRE_MAX_BYTES
from lockstep.contracts.messages import TraceSummary
from lockstep.trace.patterns import PatternSummary, table_of
from lockstep.trace.reduced_tree import largest_nodes

HOST_BYTES = 1 << 10
"""Reserved for the exporter's additions: its host watch names three commands, at most 128 bytes each."""
AIM_BYTES = SUMMARY_WIRE_MAX_BYTES - HOST_BYTES
_PLAIN_AIM_BYTES = SUMMARY_MAX_BYTES - HOST_BYTES
PATTERNS_MAX = 512


class _ListLimits(NamedTuple):
    """Kept entries of each list; `sentences` are per finding, `steps` those with totals of their own."""

    patterns: int
    reasons: int
    sentences: int
    steps: int
    nodes: int
    collectives: int
    path: int
    findings: int


_FLOORS = (
    *(
        ("patterns", 40),
        ("reasons", 8),
        ("sentences", 2),
        ("steps", 4),
        ("nodes", 128),
        ("collectives", 16),
        ("patterns", 10),
    ),
    *(("reasons", 0), ("sentences", 1), ("steps", 0), ("nodes", 48), ("findings", 4), ("collectives", 4), ("path", 4)),
    *(("patterns", 0), ("nodes", 8), ("findings", 1), ("sentences", 0), ("collectives", 0), ("path", 0), ("nodes", 0)),
)
"""Lists in cutting order, with the least number kept; the next is cut only if that was not enough."""


@dataclass(frozen=True, slots=True)
class _Parts:
    summary: TraceSummary
    patterns: PatternSummary | None

    def whole(self) -> _ListLimits:
        summary = self.summary
        return _ListLimits(
            patterns=0 if self.patterns is None else min(len(self.patterns.patterns), PATTERNS_MAX),
            reasons=len(summary.not_evaluated),
            sentences=max((len(each.evidence) for each in summary.findings), default=0),
            steps=len(summary.step_ns),
            nodes=len(summary.tree),
            collectives=len(summary.collectives),
            path=len(summary.path),
            findings=len(summary.findings),
        )

    def cut(self, kept: _ListLimits) -> TraceSummary:
        summary = self.summary
        tree = [
            replace(each, by_step_ns=each.by_step_ns[: kept.steps]) for each in largest_nodes(summary.tree, kept.nodes)
        ]
        findings = [replace(each, evidence=each.evidence[: kept.sentences]) for each in summary.findings]
        omitted = dict(summary.omitted)
        for name, count in (
            ("not_evaluated", len(summary.not_evaluated) - kept.reasons),
            ("steps", len(summary.step_ns) - kept.steps),
            ("collectives", len(summary.collectives) - kept.collectives),
            ("path", len(summary.path) - kept.path),
            ("findings", len(summary.findings) - kept.findings),
            ("sentences", sum(max(len(each.evidence) - kept.sentences, 0) for each in summary.findings)),
        ):
            if count > 0:
                omitted[name] = omitted.get(name, 0) + count
        return replace(
            summary,
            tree=tree,
            step_ns=summary.step_ns[: kept.steps],
            omitted_nodes=summary.omitted_nodes + len(summary.tree) - len(tree),
            collectives=dict(list(summary.collectives.items())[: kept.collectives]),
            path=summary.path[: kept.path],
            patterns=None if self.patterns is None else table_of(self.patterns, kept.patterns),
            findings=findings[: kept.findings],
            not_evaluated=dict(list(summary.not_evaluated.items())[: kept.reasons]),
            omitted=omitted,
        )


def fitted(summary: TraceSummary, patterns: PatternSummary | None, *, max_bytes: int = AIM_BYTES) -> TraceSummary:
    """Return the summary with the patterns, cut to `max_bytes`.

    Its lists come most important first. A summary whose fixed part alone is larger is not cut further.
    """
    parts = _Parts(summary, patterns)
    kept = parts.whole()
    found = parts.cut(kept)
    for name, floor in _FLOORS:
        if _fits(found, max_bytes):
            break
        if getattr(kept, name) > floor:
            kept = _largest(parts, kept, name, floor, lambda made: _fits(made, max_bytes))
            found = parts.cut(kept)
    return found


def _largest(
    parts: _Parts, kept: _ListLimits, name: str, floor: int, fits: Callable[[TraceSummary], bool]
) -> _ListLimits:
    """Return the most entries of one list that fit, at least `floor`, given what is kept of the others."""
    low, high = floor, getattr(kept, name) - 1
    while low < high:  # the size grows with the number
        middle = (low + high + 1) // 2
        if fits(parts.cut(kept._replace(**{name: middle}))):
            low = middle
        else:
            high = middle - 1
    return kept._replace(**{name: low})


def _fits(summary: TraceSummary, max_bytes: int) -> bool:
    data, plain_bytes = packed_bytes(summary)
    return len(data) <= max_bytes and plain_bytes <= _PLAIN_AIM_BYTES
