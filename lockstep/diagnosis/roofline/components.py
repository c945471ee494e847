# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""The component roofline of an operator (Squeezing Operator Performance ... Ascend, ASPLOS 2025, section 4).

A component is one instruction queue of the core: instructions in one queue run in sequence, components run
concurrently. For each component, over an operator of T_total:

    I = sum O_p / sum(O_p / P_p)                ideal performance, with the operator's own mix of precisions (eq. 4)
    U = O / T_total / I                         utilisation (eq. 1, 5)
    R = T_component / T_total                   time ratio
    E = sum(O_p / P_p) / T_component            efficiency (eq. 7), U = E R (eq. 6)

Any U >= U_th: bound by that component. Else all R < R_th: insufficient parallelism. Else a component with R >= R_th has
E < U_th / R_th (the paper prints the inverse): an inefficient MTE or an inefficient compute unit.

Shape suffixes: N operators, C components, K kinds of work (precisions, transfers).
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.roofline.roofline_limits import TIME_RATIO, UTILISATION, VECTOR_UTILISATION

Ratios = NDArray[np.float64]


class Bound(IntEnum):
    """What limits an operator; UNDECIDED if the captured counters do not show it."""

    UNDECIDED = 0
    COMPUTE_BOUND = 1
    MTE_BOUND = 2
    INSUFFICIENT_PARALLELISM = 3
    INEFFICIENT_COMPUTE = 4
    INEFFICIENT_MTE = 5


@dataclass(frozen=True, slots=True)
class Component:
    """An instruction queue: a compute unit, or a memory transfer engine."""

    name: str
    is_compute: bool


CUBE = Component("Cube", is_compute=True)
VECTOR = Component("Vector", is_compute=True)
SCALAR = Component("Scalar", is_compute=True)
MTE_L1 = Component("MTE-L1", is_compute=False)
MTE_GM = Component("MTE-GM", is_compute=False)
MTE_UB = Component("MTE-UB", is_compute=False)
FIXPIPE = Component("FixPipe", is_compute=False)
COMPONENTS = (CUBE, VECTOR, SCALAR, MTE_L1, MTE_GM, MTE_UB, FIXPIPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentTable:
    """Operators by components: `time_ratio` is R, `utilisation` U, arrays of shape (n_operators, n_components).

    NaN means not measured; a component that an operator does not use has 0. `uses_cube`, of shape (n_operators,),
    selects U_th.
    """

    components: tuple[Component, ...]
    time_ratio: Ratios
    utilisation: Ratios
    uses_cube: NDArray[np.bool_]

    @property
    def efficiency(self) -> Ratios:
        """Return E = U / R, of shape (n_operators, n_components), NaN where a component was not active."""
        active = np.where(self.time_ratio > 0, self.time_ratio, np.nan)
        return self.utilisation / active

    @property
    def utilisation_limit(self) -> Ratios:
        """Return U_th of each operator, of shape (n_operators, 1)."""
        return np.where(self.uses_cube, UTILISATION.value, VECTOR_UTILISATION.value)[:, None]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """`bound` of each operator as int8 `Bound` and the component that shows it (-1: none), shape (n_operators,)."""

    bound: NDArray[np.int8]
    component: NDArray[np.int64]


def ideal_performance(operations_K: Ratios, peak_K: Ratios) -> float:
    """Return I (equation 4), the operator-aware ideal performance in operations (or bytes) a second."""
    return float(operations_K.sum() / (operations_K / peak_K).sum())


def utilisation(operations_NK: Ratios, peak_K: Ratios, total_s_N: Ratios) -> Ratios:
    """Return U of one component (equations 1, 4, 5): ideal time over total time, of shape (n_operators,)."""
    busy_s_N: Ratios = (operations_NK / peak_K).sum(axis=1)
    return busy_s_N / total_s_N


def component_table(
    components: tuple[Component, ...],
    operations: dict[str, tuple[Ratios, Ratios]],
    active_s: dict[str, Ratios],
    total_s_N: Ratios,
) -> ComponentTable:
    """Return the table of counted work and active times, both by component name.

    `operations` holds work of shape (n_operators, n_kinds) and its peaks of shape (n_kinds,), operations or bytes and
    per second; `active_s` the times that components were active, of shape (n_operators,). What is missing is NaN.
    """
    unknown = np.full(len(total_s_N), np.nan)
    used = [
        utilisation(*operations[each.name], total_s_N) if each.name in operations else unknown for each in components
    ]
    ratio = [active_s[each.name] / total_s_N if each.name in active_s else unknown for each in components]
    table_NC, ratio_NC = np.stack(used, axis=1), np.stack(ratio, axis=1)
    cube = [at for at, each in enumerate(components) if each is CUBE]
    uses_cube: NDArray[np.bool_] = np.any((table_NC[:, cube] > 0) | (ratio_NC[:, cube] > 0), axis=1)
    return ComponentTable(components=components, time_ratio=ratio_NC, utilisation=table_NC, uses_cube=uses_cube)


def classify(table: ComponentTable) -> Verdicts:
    """Return what limits each operator, as far as its counters show it.

    U <= R always, so a component with R < U_th is not bound even if its work was not counted.
    """
    u_NC, r_NC, limit_N1 = table.utilisation, table.time_ratio, table.utilisation_limit
    compute_C = np.array([each.is_compute for each in table.components])
    bound_NC = u_NC >= limit_N1
    free_NC = (u_NC < limit_N1) | (r_NC < limit_N1)
    is_bound, is_free = bound_NC.any(axis=1), free_NC.all(axis=1)
    busy_NC = r_NC >= TIME_RATIO.value
    is_idle, is_busy = (r_NC < TIME_RATIO.value).all(axis=1), busy_NC.any(axis=1)
    bound = np.full(len(u_NC), Bound.UNDECIDED, np.int8)
    component = np.full(len(u_NC), -1, np.int64)
    most_used = _largest(np.where(bound_NC, u_NC, np.nan))
    busiest = _largest(r_NC)
    component[is_bound] = most_used[is_bound]
    bound[is_bound] = np.where(compute_C[most_used[is_bound]], Bound.COMPUTE_BOUND, Bound.MTE_BOUND)
    idle = is_free & ~is_bound & is_idle
    bound[idle], component[idle] = Bound.INSUFFICIENT_PARALLELISM, busiest[idle]
    slow = is_free & ~is_bound & is_busy
    bound[slow] = np.where(compute_C[busiest[slow]], Bound.INEFFICIENT_COMPUTE, Bound.INEFFICIENT_MTE)
    component[slow] = busiest[slow]
    return Verdicts(bound, component)


def _largest(values_NC: Ratios) -> NDArray[np.int64]:
    """Return the index of the largest value of each row, -1 if none is known."""
    filled = np.where(np.isnan(values_NC), -np.inf, values_NC)
    place = filled.argmax(axis=1) if values_NC.shape[1] else np.zeros(len(values_NC), np.int64)
    return np.where(np.isneginf(filled.max(axis=1, initial=-np.inf)), -1, place)
