"""Abnormal functions as findings, in the form that all rules of the diagnosis share."""

from lockstep.contracts.finding import COMMUNICATION, COMPUTE, CPU, HIGH, MEDIUM, Finding, NotEvaluated
from lockstep.diagnosis.localisation.abnormal import AbnormalFunction, Localisation
from lockstep.diagnosis.localisation.outlier_ranks import OutlierBy
from lockstep.trace.patterns import FunctionClass

RULE = "localisation"

SLOW_DEVICE = "slow_device"
SLOW_COPY = "slow_copy"
SLOW_COLLECTIVE = "slow_collective"
SLOW_LINK = "slow_link"
"""A collective in whose groups some ranks use their links differently."""
LATE_ARRIVAL = "late_arrival"
"""A collective in which all ranks wait for the last one: a symptom of what is slow on that rank."""
SLOW_FUNCTION = "slow_function"

_CAUSES = {
    FunctionClass.COMPUTE: (COMPUTE, SLOW_DEVICE),
    FunctionClass.MEMORY: (COMPUTE, SLOW_COPY),
    FunctionClass.COLLECTIVE: (COMMUNICATION, SLOW_COLLECTIVE),
    FunctionClass.HOST: (CPU, SLOW_FUNCTION),
}
_CAUSES_OF_OUTLIERS = {OutlierBy.USAGE: SLOW_LINK, OutlierBy.SHORTEST: LATE_ARRIVAL}
_NS_PER_S = 1_000_000_000


def findings_of(localisation: Localisation) -> list[Finding] | NotEvaluated:
    """Return a finding for each abnormal function, those that lose most time first.

    `NotEvaluated` if nothing is abnormal and there were no peers to compare it with.
    """
    if not localisation.abnormal and not localisation.has_peers:
        reason = f"{localisation.workers} workers summarised, and no two that do the same work: no peer to compare with"
        return NotEvaluated(rule=RULE, reason=reason)
    return [_finding(each, localisation.workers) for each in localisation.abnormal]


def _finding(abnormal: AbnormalFunction, workers: int) -> Finding:
    bottleneck, cause = _CAUSES[abnormal.function.kind]
    return Finding(
        bottleneck=bottleneck,
        cause=_CAUSES_OF_OUTLIERS.get(abnormal.outlier_by, cause),
        ranks=tuple(abnormal.suspects.tolist()),
        evidence=tuple(_evidence(abnormal, workers)),
        subject=abnormal.function.name,
        lost_ns=round(abnormal.lost_s * _NS_PER_S),
        confidence=HIGH if len(abnormal.unlike) else MEDIUM,
    )


def _evidence(abnormal: AbnormalFunction, workers: int) -> list[str]:
    reported = [f"abnormal on {len(abnormal.ranks)} of {workers} workers"]
    reported += map(str, abnormal.differences)
    if len(abnormal.outliers):
        count, kind = len(abnormal.outliers), abnormal.group_kind
        reported.append(f"{count} outlier{'s' if count > 1 else ''} in their {kind} groups, by {abnormal.outlier_by}")
    if abnormal.function.stack:
        reported.append(f"called from {abnormal.function.stack[-1]}")
    return reported
