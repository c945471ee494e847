"""Ascend kernels with counters: components, and the small rules."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.contracts.finding import NotEvaluated
from lockstep.diagnosis.roofline.ascend_rules import (
    FrequencySamples,
    find_affinity,
    find_aicpu,
    find_frequency_drop,
    find_private_formats,
    slowest_clock,
)
from lockstep.diagnosis.roofline.component_rules import evaluate_components, shares
from lockstep.diagnosis.roofline.components import Bound, classify
from lockstep.diagnosis.roofline.kernel_counters import KernelCounters, component_table_of, kernel_counters_of
from lockstep.trace.ascend.kernels import load_kernels
from lockstep.trace.columns import CoreClock

# Two rows of a capture with PipeUtilization and two with ArithmeticUtilization, as torch_npu writes them.
PIPE = """Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim,Input Shapes,Input Formats,\
aicore_time(us),aic_total_cycles,aic_mac_ratio,aic_scalar_ratio,aic_mte1_ratio,aic_mte2_ratio,aic_fixpipe_ratio,\
aiv_time(us),aiv_vec_ratio,aiv_scalar_ratio,aiv_mte2_ratio,aiv_mte3_ratio
19,a,MatMulV2,AI_CORE,100.000,200.000,1.0,20,"4096,512;512,512",ND;ND,200.0,7200000,0.30,0.20,0.25,0.60,0.05,0,0,0,0,0
19,b,MatMulV3,AI_CORE,400.000,300.000,1.0,20,"4096,500;500,512",ND;ND,300.0,10800000,0.30,0.20,0.25,0.96,0.05,0,0,0,0,0
19,c,allReduce,HCCL,700.000,900.000,1.0,0,,,0,0,0,0,0,0,0,0,0,0,0,0
"""


@pytest.fixture
def kernels(tmp_path):
    """Return the counters of PIPE."""
    path = tmp_path / "kernel_details.csv"
    path.write_text(PIPE)
    return kernel_counters_of(load_kernels(path))


def made(*rows, counters=None) -> KernelCounters:
    """Return kernels of (type, core, us)."""
    return KernelCounters(
        types=[row[0] for row in rows],
        cores=[row[1] for row in rows],
        duration_ns=np.array([row[2] * 1000 for row in rows], np.int64),
        shapes=[""] * len(rows),
        formats=[""] * len(rows),
        counters={name: np.array(values, np.float64) for name, values in (counters or {}).items()},
    )


def test_queue_times_decide_parallelism_only(kernels):
    """All queues below 80 %: insufficient parallelism. One above: it is busy, and whether it is efficient stays open."""
    assert kernels.types == ["MatMulV2", "MatMulV3"]
    table = component_table_of(kernels)
    verdicts = classify(table)
    assert verdicts.bound.tolist() == [Bound.INSUFFICIENT_PARALLELISM, Bound.UNDECIDED]
    assert table.components[int(verdicts.component[0])].name == "MTE-GM"
    assert shares(kernels, verdicts)[Bound.INSUFFICIENT_PARALLELISM] == pytest.approx(0.4)
    (finding,) = evaluate_components(kernels, table, 1)
    assert (finding.cause, finding.subject) == ("insufficient_parallelism", "MatMulV2")
    assert finding.lost_ns == pytest.approx(200_000 * (1 - 0.6 / 0.8), abs=1)


def test_ratios_are_of_the_core_and_the_operator_lasts_longer():
    """A queue that is active for 90 % of 50 us of core time in a task of 100 us is active for 45 % of the task."""
    counters = {"aic_mac_ratio": [0.9], "aicore_time(us)": [50.0]}
    table = component_table_of(made(("MatMul", "AI_CORE", 100), counters=counters))
    assert np.nanmax(table.time_ratio) == pytest.approx(0.45)
    counters["aicore_time(us)"] = [250.0]
    assert np.nanmax(component_table_of(made(("MatMul", "AI_CORE", 100), counters=counters)).time_ratio) == 0.9


def test_what_ran_on_no_core_has_no_components():
    """The AICPU has no queues, and one of a core's is always active: zeros in its place are no measurement."""
    queues = ("aic_mac", "aiv_vec", "aic_scalar", "aic_mte1", "aic_mte2", "aiv_mte3", "aic_fixpipe")
    counters = {f"{name}_ratio": [0, 0, 0.3] for name in queues}
    kernels = made(("Unique2", "AI_CPU", 900), ("Lost", "AI_CORE", 50), ("MatMulV3", "AI_CORE", 50), counters=counters)
    table = component_table_of(kernels)
    assert np.isnan(table.time_ratio[:2]).all()
    assert classify(table).bound.tolist() == [
        Bound.UNDECIDED,
        Bound.UNDECIDED,
        Bound.INSUFFICIENT_PARALLELISM,
    ]


@pytest.mark.parametrize("damaged", [-0.1, 1.06, 1e308, np.inf])
def test_what_is_no_ratio_was_not_measured(damaged):
    """A damaged cell costs its kernel the component, never a utilisation above 100 %."""
    counters = {"aic_mac_fp16_ratio": [damaged, 1.04], "aic_mac_ratio": [damaged, 1.04], "aicore_time(us)": [1e308, 40]}
    table = component_table_of(made(("MatMul", "AI_CORE", 50), ("MatMul", "AI_CORE", 50), counters=counters))
    assert np.isnan(table.time_ratio[0]).all()
    assert np.isnan(table.utilisation[0]).all()
    assert table.utilisation[1, 0] == pytest.approx(1.04 * 40 / 50)


def test_counted_work_decides_a_bound(kernels):
    """mac_fp16_ratio 0.893 of 1456.97 us in a task of 1478.18 us is a cube at 88 %: compute bound."""
    counters = {
        "aic_mac_fp16_ratio": [0.893, 0.2],
        "aic_mac_int8_ratio": [0, 0.1],
        "aicore_time(us)": [1456.97, 1400.0],
    }
    rows = made(("MatMul", "AI_CORE", 1478.18), ("MatMul", "AI_CORE", 1400), counters=counters)
    table = component_table_of(rows)
    assert np.nanmax(table.utilisation, axis=1) == pytest.approx([0.880, 0.3], abs=1e-3)
    assert classify(table).bound.tolist() == [Bound.COMPUTE_BOUND, Bound.UNDECIDED]
    (finding,) = evaluate_components(rows, table, 0)
    assert (finding.cause, finding.lost_ns) == ("compute_bound", None)


def test_bandwidths_need_a_peak():
    """GB/s alone show nothing; with the component's peak they are a utilisation."""
    rows = made(("Add", "AI_VECTOR_CORE", 100), counters={"aiv_main_mem_read_bw(GB/s)": [700.0]})
    assert np.isnan(component_table_of(rows).utilisation[:, 4]).all()
    table = component_table_of(rows, {"MTE-GM": 1000.0})
    assert classify(table).bound.tolist() == [Bound.MTE_BOUND]


def test_without_counters_the_answer_names_the_right_capture(kernels):
    """Nothing, only counts, only busy queues: each names which group of counters is missing."""
    bare = made(("Add", "AI_VECTOR_CORE", 100))
    counted = made(("MatMul", "AI_CORE", 100), counters={"aic_mac_fp16_ratio": [0.3]})
    busy = made(("MatMul", "AI_CORE", 100), counters={"aic_mac_ratio": [0.9]})
    for rows, words in ((bare, "PipeUtilization"), (counted, "PipeUtilization"), (busy, "ArithmeticUtilization")):
        answer = evaluate_components(rows, component_table_of(rows), 0)
        assert isinstance(answer, NotEvaluated)
        assert words in answer.reason
    empty = made()
    assert isinstance(evaluate_components(empty, component_table_of(empty), 0), NotEvaluated)


def test_aicpu_operators_above_20_us():
    """Longer tasks of the AICPU are named with their types; short ones and other cores are not."""
    rows = made(
        ("Cast", "AI_CPU", 72.5), ("Cast", "AI_CPU", 72.5), ("Sort", "AI_CPU", 19), ("Cast", "AI_VECTOR_CORE", 90)
    )
    (finding,) = find_aicpu(rows, 2)
    assert (finding.cause, finding.subject, finding.lost_ns) == ("aicpu", "Cast", 145_000)
    assert find_aicpu(made(("Add", "AI_CORE", 90)), 0) == []
    assert isinstance(find_aicpu(made(), 0), NotEvaluated)


def test_private_formats_by_their_share():
    """Conversions at 1 % of the time are a finding, below they are not."""
    (finding,) = find_private_formats(made(("TransData", "AI_CORE", 1), ("MatMul", "AI_CORE", 99)), 0)
    assert (finding.cause, finding.lost_ns) == ("private_format", 1000)
    assert find_private_formats(made(("TransData", "AI_CORE", 1), ("MatMul", "AI_CORE", 100)), 0) == []


@pytest.mark.parametrize(
    ("kind", "shapes", "axes"),
    [
        ("MatMulV3", '"8192,15365;8192,4096"', "(15365,)"),
        ("MatMulV3", "4096,512;512,4096", None),
        ("FlashAttentionScore", "4096,2,511;4096,2,512", "(511,)"),
        ("FlashAttentionScore", "4096,2,512;4096,2,512", None),
        ("Add", "3,5;3,5", None),
    ],
)
def test_axes_that_the_cube_does_not_like(kind, shapes, axes):
    """Inner axes of products in 256s, sequence and width of attention in 128s."""
    rows = replace(made((kind, "AI_CORE", 500)), shapes=[shapes])
    found = find_affinity(rows, 0)
    assert (f"axes {axes}" in found[0].evidence[1]) if axes else found == []
    assert isinstance(find_affinity(made((kind, "AI_CORE", 5)), 0), NotEvaluated)


def samples(*pairs) -> FrequencySamples:
    return FrequencySamples(
        time_ns=np.array([pair[0] for pair in pairs], np.int64), mhz=np.array([pair[1] for pair in pairs], np.float64)
    )


def test_a_rank_that_clocks_down():
    """10 % below the others is found, 5 % is not; idle clocks and samples beyond the window do not count."""
    ranks = {
        0: samples((0, 1800), (500, 800), (600, 1800)),
        1: samples((0, 1800), (500, 1440)),
        2: samples((0, 1710)),
        3: samples((-100, 800), (0, 1800), (1000, 900)),
    }
    (finding,) = find_frequency_drop(ranks, dict.fromkeys(ranks, (0, 1000)))
    assert (finding.cause, finding.ranks, finding.lost_ns) == ("frequency_drop", (1,), 100)
    assert "1620 MHz" in finding.evidence[0]


def test_a_job_that_clocks_down_as_a_whole_needs_the_rated_clock():
    """All ranks alike look healthy to each other; the rated clock shows it."""
    ranks = {0: samples((0, 1620)), 1: samples((0, 1620))}
    assert find_frequency_drop(ranks, dict.fromkeys(ranks, (0, 1000))) == []
    assert [each.ranks for each in find_frequency_drop(ranks, dict.fromkeys(ranks, (0, 1000)), rated_mhz=1800)] == [
        (0,),
        (1,),
    ]
    assert isinstance(find_frequency_drop({0: samples((0, 800))}, {0: (0, 1000)}), NotEvaluated)
    assert isinstance(find_frequency_drop({}, {}), NotEvaluated)


def test_all_dies_wait_for_the_slowest():
    """Of a device's clocks the lowest in the window counts; one that idles throughout is none."""
    fast, slow = (CoreClock(device=0, time_ns=(0,), mhz=(mhz,)) for mhz in (1800.0, 1440.0))
    idle = CoreClock(device=0, time_ns=(0,), mhz=(800.0,))
    found = slowest_clock((idle, fast, slow), (0, 1000))
    assert found is not None
    assert found.mhz.tolist() == [1440.0]
    assert slowest_clock((idle,), (0, 1000)) is None
    assert slowest_clock((), (0, 1000)) is None


def test_a_clock_above_the_rated_one_counts():
    """Where a device boosts, what it reached is what the others lack."""
    ranks = {0: samples((0, 1800)), 1: samples((0, 1980))}
    windows_ns = dict.fromkeys(ranks, (0, 1000))
    (finding,) = find_frequency_drop(ranks, windows_ns, rated_mhz=1800)
    assert (finding.ranks, "1980 MHz (the highest seen)" in finding.evidence[0]) == ((0,), True)
    (finding,) = find_frequency_drop({0: samples((0, 1440))}, windows_ns, rated_mhz=1800)
    assert "1800 MHz (rated)" in finding.evidence[0]


def test_each_rank_has_a_window_of_its_own():
    """What a clock did before or after does not count, nor does the loss."""
    ranks = {0: samples((0, 1440), (1000, 1800)), 1: samples((0, 1800))}
    assert find_frequency_drop(ranks, {0: (1000, 2000), 1: (0, 1000)}) == []
    (finding,) = find_frequency_drop(ranks, {0: (500, 1000), 1: (0, 1000)})
    assert (finding.ranks, finding.lost_ns) == ((0,), 100)
