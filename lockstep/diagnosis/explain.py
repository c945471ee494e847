"""Derives function, root cause and advice from the captures of ranks, for online incidents and for offline traces.

The call tree of the suspect is compared with its peers' (`diagnose`): it names the function, and also the kind of work
if no detector has measured the cause. The causes that rules found on each rank give the reason (`root_cause`).
Behaviour patterns decide if the host's calls are alike: for a slow device, and for a job that is slower as a whole, by
comparison with healthy jobs (`localisation`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from lockstep.contracts.finding import COMPUTE, CPU, IO, LOW, MEDIUM, Advice, Finding
from lockstep.contracts.messages import TraceSummary
from lockstep.diagnosis.diagnose import COMPUTE as WORK
from lockstep.diagnosis.diagnose import EXPLAINING_RATIO, UNKNOWN, cause_of, diagnose
from lockstep.diagnosis.excess import Scope, compare
from lockstep.diagnosis.frames import is_own, short_name
from lockstep.diagnosis.host_causes.collection import GC
from lockstep.diagnosis.host_causes.data import PROCESSING
from lockstep.diagnosis.localisation import findings_of, gather, localise
from lockstep.diagnosis.localisation.findings import SLOW_FUNCTION
from lockstep.diagnosis.remedies import advise_finding
from lockstep.diagnosis.root_cause import causes_beyond_peers, causes_of_many
from lockstep.diagnosis.steady import recurring_steps, steady_captures
from lockstep.diagnosis.threshold import Threshold
from lockstep.diagnosis.verdict import INSUFFICIENT, Diagnosis
from lockstep.trace.names import COMMUNICATION_KIND
from lockstep.trace.patterns import FunctionClass, patterns_of
from lockstep.trace.patterns.pattern import OUTSIDE

JOB, RANK = "job", "rank"
COSTING = Threshold(0.05, "ratio of the step", "PerfTracker, section 4.1: 5 % is a fluctuation")
_ANY = Scope(without=frozenset({COMMUNICATION_KIND}), outside=True)
UNRECORDED = "unrecorded_time"
_CAUSE_OF_FUNCTION = {"data": (IO, PROCESSING), "gc": (CPU, GC)}
"""Kinds of excess: the root cause if the call trees name a function and no rule gives a reason."""
_COUNTED_KINDS = ("data", "gc")
"""Causes counted by detectors over many steps: occasional collections and stalls may miss the few captured steps."""
_NO_FUNCTION = (INSUFFICIENT, OUTSIDE)
_NS = 1e9
_ALSO_MAX = 3  # other causes listed after the first


def explain(
    *,
    cause: str,
    scope: str,
    suspects: Sequence[TraceSummary],
    peers: Sequence[TraceSummary],
    step_seconds: float,
    excess_seconds: float,
) -> Diagnosis:
    """Explain an incident: what slows its ranks down, why, and what to do, each advice with its predicted gain.

    `cause` is one of `metrics.CAUSES` (`unknown`: the call trees decide), `scope` the incident's; `step_seconds` is the
    job's step, `excess_seconds` the excess over peers or history measured outside the capture (0 or less: unknown).
    Pure, except for reading the table of remedies.
    """
    step_ns, excess_ns, is_counted = step_seconds * _NS, excess_seconds * _NS, cause in _COUNTED_KINDS
    first = next((each for each in suspects if not each.error), suspects[0] if suspects else None)
    if scope != JOB and first is not None and cause != "link" and not is_counted:
        recurring = explain_recurring(
            cause=cause, suspect=first, peers=peers, step_seconds=step_seconds, excess_seconds=excess_seconds
        )
        if recurring is not None:
            return recurring
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
        found = causes_of_many(everyone, step_ns=step_ns, cause=cause) or _localised(everyone)
    else:
        cause, base, found = _of_rank(
            cause,
            first,
            suspects,
            peers,
            lambda kind: diagnose(
                cause=kind, suspect=first, peers=list(peers), step_seconds=step_seconds, excess_seconds=excess_seconds
            ),
            excess_ns,
        )
    if not found:
        answer = _with_code_as_cause(base, cause)
    else:
        answer = _joined(base, [advise_finding(_within(each, excess_ns), round(step_ns)) for each in found])
    return answer if scope == JOB or is_counted else _recurring(answer, first, peers)


def explain_recurring(
    *,
    cause: str,
    suspect: TraceSummary,
    peers: Sequence[TraceSummary],
    step_seconds: float,
    excess_seconds: float,
) -> Diagnosis | None:
    """Return the cause of the suspect's excess in every step, None if there is none.

    Arguments are those of `explain`, which calls this first: totals include pauses of a busy host, whose sum over
    hundreds of calls exceeds a fault.
    """
    steady = steady_captures(suspect, [each for each in peers if each.step_ns])
    if steady is None:
        return None
    steady_seconds = compare(*steady, _ANY).explained_ns / _NS
    if steady_seconds < COSTING.value * step_seconds:
        return None
    found = explain(
        cause=cause,
        scope=RANK,
        suspects=[steady[0]],
        peers=steady[1],
        step_seconds=step_seconds,
        excess_seconds=min(excess_seconds, steady_seconds) if excess_seconds > 0 else steady_seconds,
    )
    return found if found.root_cause and found.confidence != LOW else None


def _recurring(diagnosis: Diagnosis, suspect: TraceSummary | None, peers: Sequence[TraceSummary]) -> Diagnosis:
    """Return the diagnosis, without its cause if its function holds the excess in at most half of the steps.

    A host pauses healthy ranks too. Diagnoses that cannot be checked by step are unchanged.
    """
    if suspect is None or diagnosis.function not in diagnosis.path:
        return diagnosis
    until = len(diagnosis.path) - diagnosis.path[::-1].index(diagnosis.function)
    found = recurring_steps(suspect, [each for each in peers if each.step_ns], diagnosis.path[:until])
    if found is None or found.is_usual:
        return diagnosis
    few = (
        f"{short_name(diagnosis.function)} takes longer in only {found.held} of {found.steps} steps, which does not "
        "explain why the rank is slow; the rank may have lacked its CPU core"
    )
    return replace(diagnosis, root_cause="", bottleneck="", evidence=[*diagnosis.evidence, few])


def _of_rank(  # noqa: PLR0917  (what `explain` was given)
    cause: str,
    first: TraceSummary | None,
    suspects: Sequence[TraceSummary],
    peers: Sequence[TraceSummary],
    diagnosed: Callable[[str], Diagnosis],
    excess_ns: float,
) -> tuple[str, Diagnosis, list[Finding]]:
    """Return the kind of excess, the diagnosis of the call trees, and the causes that explain it, the first of them."""
    is_measured = cause != UNKNOWN
    if not is_measured and first is not None:
        cause = cause_of(first, list(peers))
    base = diagnosed(cause)
    found = causes_beyond_peers(cause, suspects, peers, excess_ns=excess_ns)
    if not found and base.function == INSUFFICIENT and cause != "link":
        found = _unlike_peers(suspects, peers, excess_ns)
    other = "" if is_measured or cause != WORK else _cause_outside_work(found)
    if not other:
        return cause, base, found
    if (found[0].lost_ns or 0) < (base.held_ns or 0):
        also = [f"also: {_title(each)}" for each in found[:_ALSO_MAX]]
        return cause, replace(base, evidence=[*base.evidence, *also]), []
    return other, diagnosed(other), causes_beyond_peers(other, suspects, peers, excess_ns=excess_ns)


def _cause_outside_work(found: Sequence[Finding]) -> str:
    """Return the kind of excess of the first cause, empty if it is a kind of work: data and gc rules cannot explain it.

    If no kind has most of the excess, as on a crowded machine, work is compared first, without loading and collections.
    A data or gc cause then belongs to another function than the one found for work.
    """
    if not found:
        return ""
    return "data" if found[0].bottleneck == IO else "gc" if found[0].cause == GC else ""


def _within(found: Finding, excess_ns: float) -> Finding:
    """Limit the finding's loss to the measured excess per step, if known: no cause costs more."""
    if found.lost_ns is None or excess_ns <= 0:
        return found
    return replace(found, lost_ns=min(found.lost_ns, round(excess_ns)))


def _with_code_as_cause(base: Diagnosis, cause: str) -> Diagnosis:
    """Return the diagnosis with the function as its own cause, if the call trees found one with high confidence."""
    if base.function == INSUFFICIENT or base.confidence == LOW or cause == "link":
        return base
    bottleneck, root_cause = _CAUSE_OF_FUNCTION.get(cause, (CPU, SLOW_FUNCTION))
    return replace(base, bottleneck=bottleneck, root_cause=UNRECORDED if base.function == OUTSIDE else root_cause)


def _of_job(captured: Sequence[TraceSummary]) -> str:
    ranks = ", ".join(str(each.rank) for each in captured)
    return f"every rank is slower: there is no healthy one to compare with; ranks {ranks} were captured"


def _joined(base: Diagnosis, found: list[Finding]) -> Diagnosis:
    """Add causes to the diagnosis: the first is the root cause, others are listed after it."""
    cause = found[0]
    function, confidence = base.function, base.confidence
    if function in _NO_FUNCTION and cause.subject:
        function, confidence = cause.subject, min(cause.confidence, MEDIUM, key=_trust)
    also = [f"also: {_title(each)}" for each in found[1 : 1 + _ALSO_MAX]]
    return replace(
        base,
        function=function,
        confidence=confidence,
        evidence=[*base.evidence, f"{_title(cause)}: {'; '.join(cause.evidence)}", *also],
        advice=_ordered([*cause.advice, *base.advice]),
        root_cause=cause.cause,
        bottleneck=cause.bottleneck,
        held_ns=base.held_ns if cause.lost_ns is None else cause.lost_ns,
    )


def _trust(confidence: str) -> int:
    return (LOW, MEDIUM).index(confidence) if confidence in (LOW, MEDIUM) else 2


def _title(found: Finding) -> str:
    cost = "" if not found.lost_ns else f", {found.lost_ns / 1e6:.1f} ms a step"
    return f"{found.cause.replace('_', ' ')}{cost}"


def _ordered(advice: list[Advice]) -> list[Advice]:
    """Return each remedy once, the largest predicted gain first, those without a prediction last.

    Removing a cause also removes its excess, so the same remedy may follow from both; the one for the excess, later in
    `advice`, names the training's own line.
    """
    once = {(each.source, each.how): each for each in advice}
    return sorted(once.values(), key=lambda each: -(each.predicted_gain_ratio or 0.0))


def _unlike_peers(suspects: Sequence[TraceSummary], peers: Sequence[TraceSummary], excess_ns: float) -> list[Finding]:
    """Return what takes longer on the suspects' devices than on their peers', if that explains the excess."""
    named = {each.rank for each in suspects}
    return [
        each
        for each in _localised([*suspects, *peers])
        if each.bottleneck == COMPUTE
        and set(each.ranks) <= named
        and (each.lost_ns or 0) >= EXPLAINING_RATIO * excess_ns
    ]


def _localised(captured: Sequence[TraceSummary]) -> list[Finding]:
    """Return the abnormal functions, their loss in ns a step; none without a device."""
    patterns = {each.rank: patterns_of(each.patterns) for each in captured if each.patterns is not None}
    if not any(each.kind == FunctionClass.COMPUTE for reported in patterns.values() for each in reported.patterns):
        return []
    localised = findings_of(localise(gather(patterns)))
    steps = max((summary.steps for summary in captured), default=1)
    return [
        replace(each, lost_ns=None if each.lost_ns is None else each.lost_ns // steps)
        for each in (localised if isinstance(localised, list) else [])
        if not is_own(each.subject)
    ]
