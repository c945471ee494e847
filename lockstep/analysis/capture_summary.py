"""Summarises one rank's trace for the coordinator: call tree, causes, critical path and behaviour in kilobytes."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from lockstep.analysis.evidence import NOTHING, Evidence, with_notes, with_samples
from lockstep.analysis.fitting import fitted
from lockstep.analysis.kept_allocations import kept_allocations
from lockstep.analysis.rank import RankAnalysis, analyse_rank
from lockstep.contracts import limits
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.finding import Finding
from lockstep.contracts.messages import TraceSummary
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.summarise import empty_summary, summarise_columns

FINDINGS_MAX = 8
OF_ONE_CAUSE_MAX = 3
"""Dozens of operators are below a roofline; the first ones show what is wrong."""
SENTENCES_MAX = 4
SENTENCE_CHARS = 300
PATH_MAX = 12
REASONS_MAX = 16
NAME_CHARS = 256
"""Characters of names on the path and of collectives: kernels of templates have kilobytes."""
ERROR_CHARS = 1024


def summarise(
    path: Path,
    *,
    run: str,
    node: str,
    rank: int,
    request_id: int,
    steps: int,
    evidence: Evidence = NOTHING,
    max_bytes: int = limits.TRACE_MAX_BYTES,
) -> TraceSummary:
    """Return the summary of a rank's trace file, which is not changed.

    `steps` is the number that the capture reports; step marks in the trace take precedence. A file that cannot be used
    gives a summary with `error` set.

    Raises
    ------
    LocalError
        `steps` is not positive.
    """
    try:
        columns = load_trace(path, max_bytes=max_bytes)
    except MalformedError as error:
        reason = str(error)[:ERROR_CHARS]
        return empty_summary(run=run, node=node, rank=rank, request_id=request_id, steps=steps, error=reason)
    evidence = with_samples(with_notes(evidence, path), path)
    summary = summarise_columns(columns, run=run, node=node, rank=rank, request_id=request_id, steps=steps)
    summary = replace(summary, kept=kept_allocations(path, columns))
    return with_analysis(summary, analyse_rank(columns, rank=rank, evidence=evidence, has_peers=False))


def with_analysis(summary: TraceSummary, analysis: RankAnalysis) -> TraceSummary:
    """Add the results of an analysis to the summary, the most expensive first, cut to the limits."""
    findings = [
        Finding(
            bottleneck=found.bottleneck,
            cause=found.cause,
            ranks=(summary.rank,),
            subject=found.subject[:SENTENCE_CHARS],
            evidence=tuple(sentence[:SENTENCE_CHARS] for sentence in found.evidence[:SENTENCES_MAX]),
            confidence=found.confidence,
            lost_ns=found.lost_ns,
        )
        for found in _dearest(analysis.findings)
    ]
    shares = analysis.path.shares if analysis.path else ()
    reasons = {each.rule[:NAME_CHARS]: each.reason[:SENTENCE_CHARS] for each in analysis.not_evaluated}
    left_out = {
        "findings": len(analysis.findings) - len(findings),
        "path": len(shares) - PATH_MAX,
        "not_evaluated": len(reasons) - REASONS_MAX,
    }
    filled = replace(
        summary,
        collectives={name[:NAME_CHARS]: numbers for name, numbers in summary.collectives.items()},
        breakdown={name: value for name, value in _numbers(analysis).items() if isinstance(value, int)},
        path=[(share.name[:NAME_CHARS], share.path_class.value, share.ns) for share in shares[:PATH_MAX]],
        findings=findings,
        not_evaluated=dict(list(reasons.items())[:REASONS_MAX]),
        omitted={name: count for name, count in left_out.items() if count > 0},
    )
    return fitted(filled, analysis.patterns)


def _dearest(findings: tuple[Finding, ...]) -> list[Finding]:
    """Return the findings to send, the most expensive first, a few of each cause."""
    counts: Counter[str] = Counter()
    kept = []
    for found in sorted(findings, key=lambda each: -(each.lost_ns or 0)):
        counts[found.cause] += 1
        if counts[found.cause] <= OF_ONE_CAUSE_MAX:
            kept.append(found)
    return kept[:FINDINGS_MAX]


def _numbers(analysis: RankAnalysis) -> dict[str, object]:
    return {} if analysis.breakdown is None else dict(analysis.breakdown.as_json())
