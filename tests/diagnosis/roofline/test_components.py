"""The component roofline on the paper's case studies (ASPLOS 2025, sections 4.2 and 5), every iteration."""

import numpy as np
import pytest

from lockstep.diagnosis.roofline.components import (
    CUBE,
    MTE_GM,
    MTE_L1,
    MTE_UB,
    VECTOR,
    Bound,
    ComponentTable,
    classify,
    component_table,
    ideal_performance,
    utilisation,
)
from lockstep.diagnosis.roofline.roofline_limits import TIME_RATIO, UTILISATION, VECTOR_UTILISATION

UNKNOWN = float("nan")


def evaluated(components, time_ratio, used) -> tuple[Bound, str]:
    """Return the bound of one operator and the component that shows it."""
    table = ComponentTable(
        components=components,
        time_ratio=np.array([time_ratio], np.float64),
        utilisation=np.array([used], np.float64),
        uses_cube=np.array([CUBE in components]),
    )
    verdict = classify(table)
    at = int(verdict.component[0])
    return Bound(verdict.bound[0]), components[at].name if at >= 0 else ""


# The paper gives the highest utilisation and the highest time ratio of each iteration; the component is the one that
# decides. The others have less, so nine tenths of the same values stand for them.
CASES = {
    "Add_ReLU, 98.673 us": ((VECTOR, MTE_GM, MTE_UB), 0.3842, 0.5868, MTE_GM, Bound.INSUFFICIENT_PARALLELISM),
    "Add_ReLU after RSD": ((VECTOR, MTE_GM, MTE_UB), 0.6624, 0.8514, MTE_UB, Bound.MTE_BOUND),
    "Add_ReLU after MRT, 57.157 us": ((VECTOR, MTE_GM, MTE_UB), 0.7052, UNKNOWN, MTE_UB, Bound.MTE_BOUND),
    "Depthwise, 408.101 us": ((CUBE, MTE_GM, MTE_L1), 0.3545, 0.4666, MTE_GM, Bound.INSUFFICIENT_PARALLELISM),
    "Depthwise after AIS": ((CUBE, MTE_GM, MTE_L1), 0.4272, 0.7169, MTE_L1, Bound.INSUFFICIENT_PARALLELISM),
    "Depthwise after RUS": ((CUBE, MTE_GM, MTE_L1), 0.6035, 0.7769, MTE_L1, Bound.INSUFFICIENT_PARALLELISM),
    "Depthwise after PP": ((CUBE, MTE_GM, MTE_L1), 0.7156, 0.9418, MTE_GM, Bound.INEFFICIENT_MTE),
    "Depthwise after ITG, 325.121 us": ((CUBE, MTE_GM, MTE_L1), 0.9354, UNKNOWN, MTE_GM, Bound.MTE_BOUND),
    "AvgPool, 69.821 us": ((VECTOR, MTE_GM, MTE_UB), 0.1354, 0.8398, VECTOR, Bound.INEFFICIENT_COMPUTE),
}


@pytest.mark.parametrize("case", CASES)
def test_case_studies(case):
    """Each iteration has the paper's verdict, and the component is the paper's."""
    components, used, ratio, holder, expected = CASES[case]
    others = 0.9 * ratio
    ratios = [ratio if each is holder else others for each in components]
    if np.isnan(ratio):
        utilisations = [used if each is holder else 0.5 * used for each in components]
    else:
        utilisations = [min(used if each is holder else 0.9 * used, ratio) for each in components]
    assert evaluated(components, ratios, utilisations) == (expected, holder.name)


def test_avgpool_after_its_optimisation_is_no_bound():
    """59.07 % of the vector unit is far from the threshold; without time ratios the cause stays open (16.206 us)."""
    assert evaluated((VECTOR,), [UNKNOWN], [0.5907])[0] == Bound.UNDECIDED
    assert evaluated((VECTOR,), [0.9], [0.5907])[0] == Bound.INEFFICIENT_COMPUTE


def test_the_thresholds_lie_where_the_cases_put_them():
    """R_th in (0.7769, 0.8398]; U_th in (0.7156, 0.9354] with the cube and in (0.5907, 0.6624] without."""
    assert 0.7769 < TIME_RATIO.value <= 0.8398
    assert 0.7156 < UTILISATION.value <= 0.9354
    assert 0.5907 < VECTOR_UTILISATION.value <= 0.6624


@pytest.mark.parametrize(
    ("before_us", "after_us", "speedup"), [(98.673, 57.157, 1.72), (408.101, 325.121, 1.26), (69.821, 16.206, 4.31)]
)
def test_speedups_of_table_1(before_us, after_us, speedup):
    """The times in the text give the table's speedups (the paper cuts 1.726 to 1.72)."""
    assert before_us / after_us == pytest.approx(speedup, abs=0.0071)


def test_mixed_precision_in_the_cube():
    """As many FP16 as INT8 operations: I is 2/3 of INT8's peak, and a cube that is always busy is used to 100 %."""
    fp16, int8 = 1.0, 2.0
    operations, peaks = np.array([6.0, 6.0]), np.array([fp16, int8])
    assert ideal_performance(operations, peaks) == pytest.approx(int8 * 2 / 3)
    busy_s = np.array([6.0 / fp16 + 6.0 / int8])
    assert utilisation(operations[None, :], peaks, busy_s) == pytest.approx(1.0)
    naive = operations / busy_s / peaks
    assert naive == pytest.approx([0.67, 0.33], abs=0.01)


def test_shared_bandwidth_of_one_mte():
    """Two transfers of one engine, one twice as large, fill it together: bound, where each alone seems 67 and 33 %."""
    table = component_table(
        (MTE_GM,),
        {"MTE-GM": (np.array([[2e9, 1e9]]), np.array([1e9, 1e9]))},
        {"MTE-GM": np.array([3.0])},
        np.array([3.0]),
    )
    assert table.utilisation[0, 0] == pytest.approx(1.0)
    assert classify(table).bound.tolist() == [Bound.MTE_BOUND]


def test_utilisation_is_efficiency_times_time_ratio():
    """U = E R (equation 6), from counts and times."""
    rng = np.random.default_rng(5)
    operations, peaks = rng.uniform(1, 9, (50, 3)), rng.uniform(1, 4, 3)
    ideal_s = (operations / peaks).sum(axis=1)
    active_s = ideal_s * rng.uniform(1, 3, 50)
    total_s = active_s * rng.uniform(1, 3, 50)
    table = component_table((CUBE,), {"Cube": (operations, peaks)}, {"Cube": active_s}, total_s)
    assert table.efficiency[:, 0] == pytest.approx(ideal_s / active_s)
    assert table.utilisation == pytest.approx(table.efficiency * table.time_ratio)
    assert table.uses_cube.all()


def test_an_inefficient_component_is_below_the_quotient_of_the_thresholds():
    """Without a bound, R >= R_th leaves E < U_th / R_th: the paper prints the inverse, which U = E R does not allow."""
    rng = np.random.default_rng(6)
    table = ComponentTable(
        components=(CUBE, MTE_GM),
        time_ratio=rng.uniform(0, 1, (2000, 2)),
        utilisation=np.zeros((2000, 2)),
        uses_cube=np.ones(2000, np.bool_),
    )
    table = ComponentTable(
        components=table.components,
        time_ratio=table.time_ratio,
        utilisation=table.time_ratio * rng.uniform(0, 1, (2000, 2)),
        uses_cube=table.uses_cube,
    )
    verdicts = classify(table)
    assert Bound.UNDECIDED not in verdicts.bound
    slow = np.isin(verdicts.bound, (Bound.INEFFICIENT_COMPUTE, Bound.INEFFICIENT_MTE))
    assert slow.sum() > 100
    holder = verdicts.component[slow]
    assert (table.efficiency[slow, holder] < UTILISATION.value / TIME_RATIO.value).all()


@pytest.mark.parametrize(
    ("ratio", "used", "expected"),
    [
        ((0.5, 0.7), (UNKNOWN, UNKNOWN), Bound.INSUFFICIENT_PARALLELISM),
        ((0.5, 0.9), (UNKNOWN, UNKNOWN), Bound.UNDECIDED),
        ((0.5, 0.9), (UNKNOWN, 0.3), Bound.INEFFICIENT_MTE),
        ((0.9, 0.9), (0.3, UNKNOWN), Bound.UNDECIDED),
        ((UNKNOWN, UNKNOWN), (0.3, 0.3), Bound.UNDECIDED),
        ((UNKNOWN, UNKNOWN), (0.9, UNKNOWN), Bound.COMPUTE_BOUND),
        ((UNKNOWN, 0.5), (0.3, 0.3), Bound.UNDECIDED),
    ],
)
def test_missing_counters_leave_open_what_they_leave_open(ratio, used, expected):
    """Low times decide without counts, high ones do not; counts decide a bound without times, and nothing else."""
    assert evaluated((CUBE, MTE_GM), ratio, used)[0] == expected


def test_a_vector_operator_between_both_thresholds_stays_open():
    """R of 0.7 allows U of 0.65 and more: without counts it may be bound."""
    assert evaluated((VECTOR,), [0.7], [UNKNOWN])[0] == Bound.UNDECIDED
    assert evaluated((VECTOR,), [0.6], [UNKNOWN])[0] == Bound.INSUFFICIENT_PARALLELISM
