"""The JSON summary of an analysis: integers in ns and bytes, unknown is null.

Lists are cut to what a report can show; the cut part of a sum is one entry of its own.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from lockstep.analysis.cluster import ClusterAnalysis
from lockstep.analysis.group_kinds import GroupKind
from lockstep.analysis.merge import Refusal, key_of
from lockstep.analysis.rank import RankAnalysis, RankPath
from lockstep.analysis.sources import SkippedPath
from lockstep.analysis.totals import CollectiveTotal, totals_of_rank
from lockstep.contracts.finding import Finding, NotEvaluated
from lockstep.contracts.version import VERSION
from lockstep.diagnosis.communication_causes.waiting import GroupWaiting
from lockstep.diagnosis.localisation import AbnormalFunction
from lockstep.diagnosis.roofline.classic import Rooflines
from lockstep.trace.patterns import Pattern
from lockstep.trace.steps import Steps

FORMAT = 1
STEPS_MAX = 64
PATH_MAX = 50
PATTERNS_MAX = 100
"""Of one rank, with stacks 500 bytes each; PerfTracker meets at most 20 functions that matter."""
_PATTERNS_LEAST, _PATTERNS_TOGETHER = 10, 20_000
"""Of each of many ranks, and of all of them: 10,000 ranks make 50 MB."""
_NAMED_MAX = 64
"""Ranks of a finding that each of them repeats; what more ranks share is given once, for all."""
REST = "(rest)"
NO_KIND = GroupKind(None, "not looked at")


def summary_of(cluster: ClusterAnalysis, paths: Mapping[int, str], skipped: Iterable[SkippedPath]) -> dict[str, Any]:
    """Return the summary; `paths` states by rank where its trace came from."""
    rates = {(each.kind, each.group): each.bus_bandwidth for each in cluster.collectives}
    reported = {(each.subject, each.lost_ns) for each in cluster.findings}
    patterns_max = min(PATTERNS_MAX, max(_PATTERNS_LEAST, _PATTERNS_TOGETHER // max(len(cluster.ranks), 1)))
    return {
        "format": FORMAT,
        "tool": f"lockstep analyze {VERSION}",
        "ranks": [_rank(each, cluster, paths.get(each.rank, ""), rates, patterns_max) for each in cluster.ranks],
        "collectives": [_total(each) for each in cluster.collectives],
        "groups": [_group(each, cluster.kinds.get(each.group, NO_KIND)) for each in cluster.groups],
        "localisation": [
            {
                "device_type": device,
                **_abnormal(each, is_finding=(each.function.name, round(each.lost_s * 1e9)) in reported),
            }
            for device, localisation in cluster.localisations.items()
            for each in localisation.abnormal
        ],
        "findings": [_finding(each) for each in cluster.findings],
        "not_evaluated": [_refusal(each) for each in cluster.not_evaluated],
        "skipped": [{"path": each.path, "error": each.error} for each in skipped],
    }


def _rank(
    analysis: RankAnalysis,
    cluster: ClusterAnalysis,
    path: str,
    rates: Mapping[Any, float | None],
    patterns_max: int,
) -> dict[str, Any]:
    metadata = analysis.metadata
    totals = [] if analysis.collectives is None else totals_of_rank(analysis.collectives)
    patterns = [] if analysis.patterns is None else analysis.patterns.patterns[:patterns_max]
    held = analysis.component_shares
    return {
        "rank": analysis.rank,
        "host": metadata.host or None,
        "path": path,
        "vendor": metadata.vendor,
        "devices": list(metadata.devices),
        "trace_bytes": analysis.trace_bytes,
        "event_count": analysis.event_count,
        "dropped_count": analysis.dropped_count,
        "window_ns": analysis.length_ns,
        "steps": _steps(analysis.steps),
        "breakdown": analysis.breakdown.as_json(),
        "steps_breakdown": [each.as_json() for each in analysis.steps_breakdown[:STEPS_MAX]],
        "critical_path": [] if analysis.path is None else _path(analysis.path),
        "critical_path_guessed_ratio": _ratio(analysis.path.guessed_ns, analysis.length_ns) if analysis.path else None,
        "collectives": [_total(each, rates.get((each.kind, each.group))) for each in totals],
        "patterns": [_pattern(each) for each in patterns],
        "roofline": _roofline(analysis.rooflines),
        "components": None if held is None else [{"bound": name, "share": _real(held[name])} for name in held],
        "findings": [_finding(each) for each in _findings_of(analysis, cluster)],
        "not_evaluated": [_not_evaluated(each) for each in analysis.not_evaluated],
    }


def _findings_of(analysis: RankAnalysis, cluster: ClusterAnalysis) -> list[Finding]:
    """Return a rank's own findings, and those on it that only the comparison of all ranks gives."""
    own = set(map(key_of, analysis.findings))
    shared = [
        each
        for each in cluster.findings
        if len(each.ranks) <= _NAMED_MAX and analysis.rank in each.ranks and key_of(each) not in own
    ]
    return [*analysis.findings, *shared]


def _steps(steps: Steps) -> dict[str, Any]:
    return {
        "source": steps.source.value,
        "count": len(steps),
        "numbers": steps.number[:STEPS_MAX].tolist(),
        "duration_ns": (steps.end_ns - steps.start_ns)[:STEPS_MAX].tolist(),
        "partial": steps.partial[:STEPS_MAX].tolist(),
    }


def _path(path: RankPath) -> list[dict[str, Any]]:
    """Return the largest shares, and one for all others, so that they sum to the window."""
    shown = [each.as_json() for each in path.shares[:PATH_MAX]]
    rest_ns = sum(each.ns for each in path.shares[PATH_MAX:])
    return [*shown, {"name": REST, "class": "rest", "ns": rest_ns}] if rest_ns else shown


def _total(total: CollectiveTotal, bus_bandwidth: float | None = None) -> dict[str, Any]:
    rate = total.bus_bandwidth if bus_bandwidth is None else bus_bandwidth
    return {
        "name": total.kind,
        "group": total.group[0],
        "count": total.count,
        "total_ns": total.total_ns,
        "shortest_ns": total.shortest_ns,
        "bytes": total.bytes,
        "bus_bandwidth_bytes_per_second": _real(rate),
    }


def _pattern(pattern: Pattern) -> dict[str, Any]:
    return {
        "function": pattern.function,
        "stack": list(pattern.stack),
        "class": pattern.kind.value,
        "beta": pattern.beta,
        "mu": _real(pattern.mu),
        "sigma": _real(pattern.sigma),
    }


def _roofline(rooflines: Rooflines | None) -> dict[str, Any] | None:
    if rooflines is None or not rooflines.points:
        return None
    roofs = {each.roof.number_format: each.roof for each in rooflines.points if each.roof is not None}
    return {
        "device": rooflines.device,
        "roofs": {
            name: {"flops_per_second": roof.flops_per_second, "bytes_per_second": roof.bytes_per_second}
            for name, roof in sorted(roofs.items())
        },
        "points": [
            {
                "name": each.operator,
                "format": each.roof.number_format if each.roof else each.number_format,
                "intensity": _real(each.intensity),
                "flops_per_second": _real(each.flops_per_second),
                "bytes_per_second": _real(each.bytes_per_second),
                "time_ns": each.device_ns,
                "bound": each.verdict or None,
            }
            for each in rooflines.points
        ],
    }


def _group(waiting: GroupWaiting, kind: GroupKind) -> dict[str, Any]:
    caused = float(waiting.caused_ns.sum())
    shares = (waiting.caused_ns / caused).tolist() if caused > 0 else [0.0] * len(waiting.ranks)
    return {
        "kind": kind.kind,
        "kind_source": kind.source,
        "group": waiting.group[0],
        "ranks": list(waiting.ranks),
        "is_whole": waiting.is_whole,
        "collectives": waiting.collectives,
        "r_wait_ratio": _real(waiting.compute_ratio),
        "r_wait_elapsed_ratio": _real(waiting.elapsed_ratio),
        "r_wait_transit_ratio": _real(waiting.transit_ratio),
        "blame": {str(rank): share for rank, share in zip(waiting.ranks, shares, strict=True)},
        "waited_ns": {str(rank): round(ns) for rank, ns in zip(waiting.ranks, waiting.waited_ns.tolist(), strict=True)},
        "slowest_rank": waiting.ranks[int(waiting.caused_ns.argmax())] if caused > 0 else None,
    }


def _abnormal(abnormal: AbnormalFunction, *, is_finding: bool) -> dict[str, Any]:
    return {
        "function": abnormal.function.name,
        "stack": list(abnormal.function.stack),
        "class": abnormal.function.kind.value,
        "ranks": abnormal.ranks.tolist(),
        "unexpected": abnormal.unexpected.tolist(),
        "unlike": abnormal.unlike.tolist(),
        "outliers": abnormal.outliers.tolist(),
        "group_kind": abnormal.group_kind or None,
        "differences": [
            {
                "dimension": each.dimension,
                "against": each.against.value,
                "count": each.count,
                "value": _real(each.value),
                "reference": _real(each.reference),
            }
            for each in abnormal.differences
        ],
        "lost_ns": round(abnormal.lost_s * 1e9),
        "is_finding": is_finding,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "bottleneck": finding.bottleneck,
        "cause": finding.cause,
        "ranks": list(finding.ranks),
        "subject": finding.subject,
        "evidence": list(finding.evidence),
        "advice": [
            {
                "suggestion": each.suggestion,
                "how": each.how,
                "predicted_gain_ratio": _real(each.predicted_gain_ratio),
                "source": each.source,
            }
            for each in finding.advice
        ],
        "predicted_gain_ratio": _real(finding.predicted_gain_ratio),
        "lost_ns": finding.lost_ns,
        "steps": None if finding.steps is None else list(finding.steps),
        "confidence": finding.confidence,
    }


def _not_evaluated(refusal: NotEvaluated) -> dict[str, Any]:
    return {"rule": refusal.rule, "reason": refusal.reason}


def _refusal(refusal: Refusal) -> dict[str, Any]:
    return {"rule": refusal.rule, "reason": refusal.reason, "ranks": list(refusal.ranks)}


def _real(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
