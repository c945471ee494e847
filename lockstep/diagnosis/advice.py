"""Picks remedies for a cause and predicts what each would gain.

Predicted gain = min(removed, step) / step, the share of today's step that goes when what the remedy removes goes. In a
synchronous job the step is as long as its slowest rank takes, so a rank's excess is also the job's, until the next
slowest rank decides. `removed` is the rank's excess over its peers, the part of it that the named function holds, or
the rest.
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
    """Return the advice for `cause`, largest predicted gain first, what cannot be predicted last.

    `explained_seconds` is None where no function was found; remedies that need one are left out then.
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
    """Return the share of the step that goes with `removed_seconds`, None if either is not known."""
    if removed_seconds is None or removed_seconds <= 0 or step_seconds <= 0:
        return None
    return min(removed_seconds, step_seconds) / step_seconds


def _applies(remedy: Remedy, cause: str, path: list[str]) -> bool:
    if remedy.cause != cause:
        return False
    if remedy.unless and any(remedy.unless in name for name in path):
        return False
    return not remedy.when or any(remedy.when in name for name in path)
