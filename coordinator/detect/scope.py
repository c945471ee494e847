"""The findings that an operator wants: runs, domain kinds and detectors that are switched off are left out.

Pure. Detectors go on learning whatever is left out here, so that a switch takes effect at the next step, both ways.
"""

from collections.abc import Iterable
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from coordinator.detect.findings import FLUCTUATION, HANG, SLOW_LINK

if TYPE_CHECKING:
    from coordinator.detect.findings import Judgement, RunFinding
    from coordinator.settings.policy import Policy
    from coordinator.settings.run_policy import DetectorPolicy


def is_watched(run: str, patterns: Iterable[str]) -> bool:
    """Whether a run's name fits one of the shell patterns."""
    return any(fnmatchcase(run, pattern) for pattern in patterns)


def detectors_off(policy: "DetectorPolicy") -> set[str]:
    """Return the kinds of findings whose detector is switched off."""
    return {item.name for item in fields(policy) if not getattr(policy, item.name)}


def in_scope(judgement: "Judgement", policy: "Policy", run: str) -> "Judgement":
    """Return the judgement without what is switched off or out of scope."""
    if not is_watched(run, policy.scope.runs):
        return replace(judgement, findings=(), fluctuating=False, held=None)
    off = detectors_off(policy.detectors)
    return replace(
        judgement,
        findings=tuple(finding for finding in judgement.findings if _is_reported(finding, policy, off)),
        fluctuating=judgement.fluctuating and FLUCTUATION not in off,
        held=None if HANG in off else judgement.held,
        imbalance_ratios={} if "imbalance" in off else judgement.imbalance_ratios,
    )


def _is_reported(finding: "RunFinding", policy: "Policy", off: set[str]) -> bool:
    if finding.kind in off:
        return False
    return finding.kind != SLOW_LINK or finding.domain is None or finding.domain[0] in policy.scope.domain_kinds
