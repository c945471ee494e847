"""Runs all rules on operators of one rank's device: classic and component roofline, and the vendor's."""

from dataclasses import dataclass

from lockstep.contracts.finding import Finding, NotEvaluated
from lockstep.diagnosis.roofline.ascend_rules import find_affinity, find_aicpu, find_private_formats
from lockstep.diagnosis.roofline.classic import Rooflines, operator_rooflines
from lockstep.diagnosis.roofline.classic_rules import evaluate_rooflines
from lockstep.diagnosis.roofline.component_rules import evaluate_components
from lockstep.diagnosis.roofline.kernel_counters import KernelCounters, component_table_of
from lockstep.trace.columns import TraceColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCauses:
    """Findings of the rules, the most expensive first, rules that could not be evaluated, and the roofline points."""

    findings: tuple[Finding, ...]
    not_evaluated: tuple[NotEvaluated, ...]
    rooflines: Rooflines | None


def evaluate_operators(
    columns: TraceColumns, rank: int, *, kernels: KernelCounters | None = None, device: str = ""
) -> OperatorCauses:
    """Run all rules on one rank; `kernels` are the vendor's rows with counters, if any.

    The clock is compared over ranks, so `find_frequency_drop` is separate.
    """
    rooflines = operator_rooflines(columns, device=device)
    answers: list[list[Finding] | NotEvaluated] = [evaluate_rooflines(rooflines, rank)]
    if kernels is not None:
        answers += [
            evaluate_components(kernels, component_table_of(kernels), rank),
            find_aicpu(kernels, rank),
            find_private_formats(kernels, rank),
            find_affinity(kernels, rank),
        ]
    findings = [finding for answer in answers if isinstance(answer, list) for finding in answer]
    return OperatorCauses(
        findings=tuple(sorted(findings, key=lambda each: -(each.lost_ns or 0))),
        not_evaluated=tuple(answer for answer in answers if isinstance(answer, NotEvaluated)),
        rooflines=rooflines if isinstance(rooflines, Rooflines) else None,
    )
