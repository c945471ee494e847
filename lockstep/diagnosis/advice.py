"""Selects remedies for a cause and predicts the gain of each.

Predicted gain = min(removed, step) / step, i.e. the share of the current step that a remedy removes. A synchronous
job's step is as long as its slowest rank takes, so a rank's excess is also the job's, until the next slowest rank sets
the pace. `removed` is the rank's excess over its peers, the part of it in the named function, or the rest.
"""

from lockstep.contracts.finding import Advice
from lockstep.diagnosis.advice_table import EXCESS, EXPLAINED, REMEDIES, REST, Remedy
from lockstep.diagnosis.frames import readable


def advise(
    *,
    cause: str,
    function: str,
    operator: str,
    path: list[str],
    step_seconds: float,
    excess_seconds: float,
    explained_seconds: float | None,
) -> list[Advice]:
    """Return the advice for `cause`, the largest predicted gain first, advice without a prediction last.

    If `explained_seconds` is None (no function was found), remedies that need a function are left out.
    """
    rest_seconds = excess_seconds - (explained_seconds or 0.0)
    removed_seconds = {EXCESS: excess_seconds, EXPLAINED: explained_seconds, REST: rest_seconds}
    found = []
    for remedy in REMEDIES:
        if not _applies(remedy, cause, path) or (remedy.removes == EXPLAINED and explained_seconds is None):
            continue
        found.append(
            Advice(
                suggestion=remedy.suggestion.format(function=readable(function), operator=operator or "the operator"),
                how=remedy.how,
                predicted_gain_ratio=gain_ratio(removed_seconds.get(remedy.removes), step_seconds),
                source=remedy.source,
            )
        )
    return sorted(found, key=lambda advice: -(advice.predicted_gain_ratio or 0.0))


def gain_ratio(removed_seconds: float | None, step_seconds: float) -> float | None:
    """Return the share of the step that `removed_seconds` is, None if either is unknown."""
    if removed_seconds is None or removed_seconds <= 0 or step_seconds <= 0:
        return None
    return min(removed_seconds, step_seconds) / step_seconds


def _applies(remedy: Remedy, cause: str, path: list[str]) -> bool:
    if remedy.cause != cause:
        return False
    if remedy.unless and any(remedy.unless in name for name in path):
        return False
    return not remedy.when or any(remedy.when in name for name in path)
