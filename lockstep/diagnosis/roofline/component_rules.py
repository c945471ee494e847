# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""Findings of the component roofline: types of operators by what limits them.

Shape suffix: N kernels.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.finding import COMPUTE, Finding, NotEvaluated
from lockstep.diagnosis.roofline.components import Bound, ComponentTable, Verdicts, classify
from lockstep.diagnosis.roofline.kernel_counters import KernelCounters
from lockstep.diagnosis.roofline.roofline_limits import FINDINGS, OPERATOR_SHARE, TASK_NS, TIME_RATIO

RULE = "component roofline"

CAUSES = {
    Bound.COMPUTE_BOUND: "compute_bound",
    Bound.MTE_BOUND: "mte_bound",
    Bound.INSUFFICIENT_PARALLELISM: "insufficient_parallelism",
    Bound.INEFFICIENT_MTE: "inefficient_mte",
    Bound.INEFFICIENT_COMPUTE: "inefficient_compute",
}


def evaluate_components(kernels: KernelCounters, table: ComponentTable, rank: int) -> list[Finding] | NotEvaluated:
    """Return a finding for each type of operator and cause with a relevant share of the kernels' time, longest first.

    Tasks below 20 us are left out, as by the vendor. If the capture's counters decide for no operator, the result is
    NotEvaluated and names the group of counters that would.
    """
    verdicts = classify(table)
    total_ns = int(kernels.duration_ns.sum())
    long = kernels.duration_ns >= TASK_NS.value
    if not total_ns or not (long & (verdicts.bound != Bound.UNDECIDED)).any():
        return NotEvaluated(rule=RULE, reason=why_undecided(kernels, table, verdicts))
    places: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for place in np.flatnonzero(long & (verdicts.bound != Bound.UNDECIDED)).tolist():
        places[kernels.types[place], int(verdicts.bound[place]), int(verdicts.component[place])].append(place)
    groups = [_Group(key[0], Bound(key[1]), key[2], np.array(each)) for key, each in places.items()]
    worth = [each for each in groups if each.spent_ns(kernels) >= OPERATOR_SHARE.value * total_ns]
    worth.sort(key=lambda each: -each.spent_ns(kernels))
    return [_finding(each, kernels, table, rank) for each in worth[: int(FINDINGS.value)]]


@dataclass(frozen=True, slots=True)
class _Group:
    """Kernels `at` of one type that one component limits in one way."""

    kind: str
    bound: Bound
    component: int
    at: NDArray[np.int64]

    def spent_ns(self, kernels: KernelCounters) -> int:
        return int(kernels.duration_ns[self.at].sum())


def shares(kernels: KernelCounters, verdicts: Verdicts) -> dict[Bound, float]:
    """Return the share of the kernels' time by what limits it (the paper's figure 13a), including UNDECIDED."""
    total_ns = int(kernels.duration_ns.sum())
    spent = np.bincount(verdicts.bound, weights=kernels.duration_ns, minlength=len(Bound))
    return {bound: float(spent[bound]) / total_ns if total_ns else 0.0 for bound in Bound}


def why_undecided(kernels: KernelCounters, table: ComponentTable, verdicts: Verdicts) -> str:
    """Return what the counters leave undecided, and which group of counters (aic_metrics) would decide it."""
    if not len(kernels):
        return "there is no kernel with counters"
    open_N = verdicts.bound == Bound.UNDECIDED
    if np.isnan(table.time_ratio).all() and np.isnan(table.utilisation).all():
        return "the capture has no counters of the core's queues: capture with aic_metrics=PipeUtilization"
    if np.isnan(table.time_ratio).all():
        return (
            f"{int(open_N.sum())} of {len(kernels)} kernels are below every known bound, and the times of the queues "
            "were not taken: capture with aic_metrics=PipeUtilization"
        )
    return (
        f"{int(open_N.sum())} of {len(kernels)} kernels may keep a component busy for {TIME_RATIO.value:.0%} of the "
        "time, and how much it did was not counted: bound or inefficient; capture with "
        "aic_metrics=ArithmeticUtilization or Memory"
    )


def _finding(group: _Group, kernels: KernelCounters, table: ComponentTable, rank: int) -> Finding:
    spent_ns = group.spent_ns(kernels)
    share = spent_ns / int(kernels.duration_ns.sum())
    name = table.components[group.component].name
    longest = group.at[kernels.duration_ns[group.at].argmax()]
    ratio, used = (float(values[longest, group.component]) for values in (table.time_ratio, table.utilisation))
    limit = float(table.utilisation_limit[longest, 0])
    return Finding(
        bottleneck=COMPUTE,
        cause=CAUSES[group.bound],
        ranks=(rank,),
        subject=group.kind,
        evidence=(
            f"{group.kind} holds {share:.1%} of the kernels' time: {len(group.at)} tasks, {spent_ns / 1e6:.3f} ms",
            (
                f"its longest task: {name} is active for {_percent(ratio)} of the time and utilised {_percent(used)} "
                f"(thresholds {TIME_RATIO.value:.0%} and {limit:.0%})"
            ),
        ),
        lost_ns=_lost_ns(group, kernels, table),
    )


def _percent(value: float) -> str:
    return "an unknown part" if np.isnan(value) else f"{value:.1%}"


def _lost_ns(group: _Group, kernels: KernelCounters, table: ComponentTable) -> int | None:
    """Return what full parallelism, or an efficient component, would save, ns; a bound operator saves nothing."""
    if group.bound == Bound.INSUFFICIENT_PARALLELISM:
        part = table.time_ratio[group.at, group.component] / TIME_RATIO.value
    elif group.bound in {Bound.INEFFICIENT_COMPUTE, Bound.INEFFICIENT_MTE}:
        part = table.utilisation[group.at, group.component] / table.utilisation_limit[group.at, 0]
    else:
        return None
    return None if np.isnan(part).any() else int((kernels.duration_ns[group.at] * (1 - part)).sum())
