"""Filters anomalies: runs, domain kinds and detectors that the operator has switched off are left out.

Pure. Detectors continue to learn what is left out here, so that a switch takes effect at the next step, both ways.
"""

from collections.abc import Iterable
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from coordinator.detect.anomalies import FLUCTUATION, HANG, SLOW_LINK

if TYPE_CHECKING:
    from coordinator.detect.anomalies import Anomaly, StepResult
    from coordinator.settings.policy import Policy
    from coordinator.settings.run_policy import DetectorPolicy


def is_watched(run: str, patterns: Iterable[str]) -> bool:
    """Whether a run's name matches one of the shell patterns."""
    return any(fnmatchcase(run, pattern) for pattern in patterns)


def detectors_off(policy: "DetectorPolicy") -> set[str]:
    """Return the kinds of anomalies whose detector is switched off."""
    return {item.name for item in fields(policy) if not getattr(policy, item.name)}


def in_scope(step_result: "StepResult", policy: "Policy", run: str) -> "StepResult":
    """Return the step result without anomalies that are switched off or out of scope."""
    if not is_watched(run, policy.scope.runs):
        return replace(step_result, anomalies=(), fluctuating=False, held=None)
    off = detectors_off(policy.detectors)
    return replace(
        step_result,
        anomalies=tuple(anomaly for anomaly in step_result.anomalies if _is_reported(anomaly, policy, off)),
        fluctuating=step_result.fluctuating and FLUCTUATION not in off,
        held=None if HANG in off else step_result.held,
        imbalance_ratios={} if "imbalance" in off else step_result.imbalance_ratios,
    )


def _is_reported(anomaly: "Anomaly", policy: "Policy", off: set[str]) -> bool:
    if anomaly.kind in off:
        return False
    return anomaly.kind != SLOW_LINK or anomaly.domain is None or anomaly.domain[0] in policy.scope.domain_kinds
