"""From the captures of an incident to function, root cause and advice: what the coordinator asks.

Three witnesses: the suspect's call tree against its peers' names the function (`diagnose`), the causes that each node
told of its ranks name the reason (`root_cause`), and for a job that is slower as a whole the behaviour of its functions
is held against what is expected of any job (`localisation`).
"""

from collections.abc import Sequence
from dataclasses import replace

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import TraceSummary
from lockstep.diagnosis.diagnose import diagnose
from lockstep.diagnosis.finding import Finding
from lockstep.diagnosis.localisation import findings_of, gather, localise
from lockstep.diagnosis.remedies import advise_finding
from lockstep.diagnosis.root_cause import causes_beyond_peers, causes_of_many
from lockstep.diagnosis.verdict import INSUFFICIENT, LOW, MEDIUM, Advice, Diagnosis
from lockstep.trace.patterns import FunctionClass, PatternSummary, decode_patterns

JOB = "job"
_NS = 1e9
_ALSO_MAX = 3  # other causes that are named beside the first


def explain(
    *,
    cause: str,
    scope: str,
    suspects: Sequence[TraceSummary],
    peers: Sequence[TraceSummary],
    step_seconds: float,
    excess_seconds: float,
) -> Diagnosis:
    """Return what holds an incident's ranks back, why, and what to do, each advice with its predicted gain.

    `cause` is one of `metrics.CAUSES`, `scope` the incident's; `step_seconds` the job's step, `excess_seconds` what was
    measured beyond peers or history outside the capture (0 or less: not known). Pure, but for the table of remedies.
    """
    step_ns, excess_ns = step_seconds * _NS, excess_seconds * _NS
    first = next((each for each in suspects if not each.error), suspects[0] if suspects else None)
    if scope == JOB:
        everyone = [*suspects, *peers]
        base = diagnose(
            cause=cause,
            suspect=first or (everyone[0] if everyone else None),
            peers=[],
            step_seconds=step_seconds,
            excess_seconds=excess_seconds,
        )
        base = replace(base, evidence=[_of_job(everyone)] if everyone else base.evidence)
        found = causes_of_many(everyone, step_ns=step_ns, cause=cause) or _unexpected(everyone)
    else:
        base = diagnose(
            cause=cause, suspect=first, peers=list(peers), step_seconds=step_seconds, excess_seconds=excess_seconds
        )
        found = causes_beyond_peers(cause, suspects, peers, excess_ns=excess_ns)
    if not found:
        return base
    return _joined(base, [advise_finding(each, round(step_ns)) for each in found])


def _of_job(captured: Sequence[TraceSummary]) -> str:
    ranks = ", ".join(str(each.rank) for each in captured)
    return f"every rank is slower: there is no healthy one to compare with; ranks {ranks} were captured"


def _joined(base: Diagnosis, found: list[Finding]) -> Diagnosis:
    """Return the diagnosis with its causes: the first is the reason, others are named beside it."""
    cause = found[0]
    function, confidence = base.function, base.confidence
    if function == INSUFFICIENT and cause.subject:
        function, confidence = cause.subject, min(cause.confidence, MEDIUM, key=_trust)
    also = [f"beside it: {_title(each)}" for each in found[1 : 1 + _ALSO_MAX]]
    return replace(
        base,
        function=function,
        confidence=confidence,
        evidence=[*base.evidence, f"{_title(cause)}: {'; '.join(cause.evidence)}", *also],
        advice=_ordered([*cause.advice, *base.advice]),
        root_cause=cause.cause,
        bottleneck=cause.bottleneck,
    )


def _trust(confidence: str) -> int:
    return (LOW, MEDIUM).index(confidence) if confidence in (LOW, MEDIUM) else 2


def _title(found: Finding) -> str:
    cost = "" if not found.lost_ns else f", {found.lost_ns / 1e6:.1f} ms a step"
    return f"{found.cause.replace('_', ' ')}{cost}"


def _ordered(advice: list[Advice]) -> list[Advice]:
    """Return each suggestion once, the largest predicted gain first, what cannot be predicted last."""
    once = {each.suggestion: each for each in reversed(advice)}
    kept = [each for each in advice if once.get(each.suggestion) is each]
    return sorted(kept, key=lambda each: -(each.predicted_gain_ratio or 0.0))


def _unexpected(captured: Sequence[TraceSummary]) -> list[Finding]:
    """Return the functions that behave as in no healthy job, where a device works: of hosts nothing is expected."""
    patterns: dict[int, PatternSummary] = {}
    for summary in captured:
        if summary.patterns:
            try:
                patterns[summary.rank] = decode_patterns(summary.patterns, where=f"patterns of rank {summary.rank}")
            except MalformedError:
                continue  # the capture's other witnesses still count
    if not any(each.kind == FunctionClass.COMPUTE for told in patterns.values() for each in told.patterns):
        return []
    judged = findings_of(localise(gather(patterns)))
    steps = max((summary.steps for summary in captured), default=1)
    return [
        replace(each, lost_ns=None if each.lost_ns is None else each.lost_ns // steps)
        for each in (judged if isinstance(judged, list) else [])
    ]
