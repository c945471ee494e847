"""Merges the operators of one rank into one finding per cause, or none if the device does not limit the step.

A trace has dozens of operators below a roofline. Listed individually they hide what matters, and none is worth fixing
alone; together they show what a better use of the device would save.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from lockstep.contracts.finding import Finding, NotEvaluated
from lockstep.diagnosis.roofline.roofline_limits import ADVISED, DEVICE_BOUND, WORTH_FIXING

RULE = "operators"
_NAMED = 3
_SENTENCES = 3


def roll_up(findings: Iterable[Finding], *, window_ns: int, computing_ns: int) -> list[Finding] | NotEvaluated:
    """Return one finding per cause, with its longest operators; findings without a known loss come last.

    Advice depends on what limits a large enough part of the loss (`ADVISED`).

    `computing_ns` is how long the device computes in the window. Causes whose operators together have a known loss that
    is not worth fixing are left out.
    """
    by_cause: dict[tuple[str, str], list[Finding]] = {}
    for each in findings:
        by_cause.setdefault((each.bottleneck, each.cause), []).append(each)
    if by_cause and computing_ns < DEVICE_BOUND.value * window_ns:
        share = f"{computing_ns / max(window_ns, 1):.0%}"
        reason = f"the device computes in {share} of the window: faster operators would not shorten the step"
        return NotEvaluated(rule=RULE, reason=reason)
    joined = [_joined(same) for same in by_cause.values()]
    return [each for each in joined if each.lost_ns is None or each.lost_ns >= WORTH_FIXING.value * window_ns]


def _joined(same: list[Finding]) -> Finding:
    same = sorted(same, key=lambda each: -(each.lost_ns or 0))
    subjects = list(dict.fromkeys(each.subject for each in same))
    more = f" and {len(subjects) - _NAMED} more" if len(subjects) > _NAMED else ""
    known = [each.lost_ns for each in same if each.lost_ns is not None]
    first = same[0]
    if len(same) == 1:
        return first
    return replace(
        first,
        subject=", ".join(subjects[:_NAMED]) + more,
        evidence=tuple(sentence for each in same[:_NAMED] for sentence in each.evidence[:_SENTENCES]),
        lost_ns=sum(known) if known else None,
        context=_context(same),
    )


def _context(same: list[Finding]) -> tuple[str, ...]:
    lost_ns = Counter[str]()
    for found in same:
        lost_ns.update(dict.fromkeys(found.context, found.lost_ns or 0))
    least_ns = ADVISED.value * sum(found.lost_ns or 0 for found in same)
    return tuple(each for each, ns in lost_ns.items() if ns >= least_ns)
