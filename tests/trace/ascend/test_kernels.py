import numpy as np
import pytest

from lockstep.trace.ascend.counters import Metrics, is_counter, metrics_of
from lockstep.trace.ascend.kernels import load_kernels
from lockstep.trace.columns import ABSENT
from tests.trace.ascend.recordings import OUTPUT, TABLES

_GROUPS = {
    Metrics.PIPE: "aic_mac_time(us) aic_mac_ratio aic_scalar_ratio aic_mte1_ratio aic_mte2_time(us) aic_fixpipe_ratio "
    "aic_icache_miss_rate aiv_vec_time(us) aiv_vec_ratio aiv_mte3_ratio cube_utilization(%) memory_bound mte2_ratio",
    Metrics.ARITHMETIC: "aic_mac_fp16_ratio aic_mac_int8_ratio aic_cube_fops aiv_vec_fp32_ratio aiv_vec_misc_ratio "
    "aiv_vector_fops vector_fops",
    Metrics.MEMORY: "aic_l1_read_bw(GB/s) aic_main_mem_write_bw(GB/s) aic_l2_read_bw(GB/s) aiv_ub_write_bw(GB/s)",
    Metrics.MEMORY_L0: "aic_l0a_read_bw(GB/s) aic_l0c_read_bw_cube(GB/s) aiv_l0c_write_bw(GB/s)",
    Metrics.MEMORY_UB: "aic_ub_read_bw_scalar(GB/s) aiv_ub_write_bw_vector(GB/s)",
    Metrics.CONFLICT: "aiv_vec_bankgroup_cflt_ratio aiv_vec_bank_cflt_ratio aiv_vec_resc_cflt_ratio",
    Metrics.L2_CACHE: "aic_write_cache_hit aic_r0_read_cache_miss_allocate aiv_r1_read_cache_hit",
    Metrics.ACCESS: "aic_read_main_memory_datas(KB) aiv_GM_to_UB_datas(KB) aic_L0C_to_GM_datas(KB)",
}


@pytest.mark.parametrize(("metrics", "columns"), _GROUPS.items())
def test_every_setting_has_its_counters(metrics, columns):
    """Columns of the vendor's documents and tests belong to the setting that records them."""
    assert {metrics_of(each) for each in columns.split()} == {metrics}


def test_common_and_foreign_columns():
    """Core times and cycles come with every setting; what is no counter stays out, however long its name."""
    assert all(map(is_counter, ("aicore_time(us)", "aic_total_cycles", "aiv_time(us)", "aiv_total_cycles")))
    assert metrics_of("aic_total_cycles") is None
    foreign = ("Name", "Context ID", "aic_mac_ratio_new", "xaic_mac_ratio", "aic_mac_ratio" * 100)
    assert not any(map(is_counter, foreign))


def test_pipe_recording():
    """Values, shapes, types and cores are those of the file's first row."""
    kernels = load_kernels(TABLES / "kernel_details_pipe.csv")
    assert (len(kernels), kernels.dropped_count, kernels.metrics) == (29, 0, (Metrics.PIPE,))
    assert len(kernels.counters) == 25
    first = {
        field: kernels.text(field, 0) for field in ("name", "type", "core", "state", "input_shapes", "input_types")
    }
    assert first == {
        "name": "aclnnMatmul_MatMulCommon_MatMulV2",
        "type": "MatMulV2",
        "core": "AI_CORE",
        "state": "dynamic",
        "input_shapes": "81920,4096;8192,512",
        "input_types": "DT_BF16;DT_BF16",
    }
    assert (kernels.start_ns[0], kernels.duration_ns[0], kernels.wait_ns[0]) == (1736413971558972912, 185504, 1087)
    assert (kernels.step[0], kernels.task[0], kernels.stream[0], kernels.blocks[0]) == (19, 61653, 2, 16)
    assert kernels.counters["aic_mte2_ratio"][0] == 0.964
    assert kernels.counters["cube_utilization(%)"][0] == 79.295


def test_arithmetic_recording_agrees_with_the_vendors_formula():
    """Operations of the cube are its fp16 ratio times cycles times 8192 on every kernel that used it."""
    kernels = load_kernels(TABLES / "kernel_details_arithmetic.csv")
    assert kernels.metrics == (Metrics.ARITHMETIC,)
    counters = kernels.counters
    used = np.flatnonzero(counters["aic_cube_fops"] > 0)
    assert len(used) > 0
    product = counters["aic_mac_fp16_ratio"][used] * counters["aic_total_cycles"][used] * 8192
    assert np.allclose(product, counters["aic_cube_fops"][used], rtol=1e-3)


def test_collectives_and_unknown_cells():
    """N/A is empty, absent or NaN, never 0; a collective has no counters."""
    kernels = load_kernels(TABLES / "kernel_details_memory_l0.csv")
    row = int(np.flatnonzero(kernels.communicates)[0])
    assert (kernels.text("name", row), kernels.text("core", row)) == ("hcom_broadcast__483_0", "HCCL")
    assert kernels.text("input_shapes", row) == ""
    assert (kernels.task[row], kernels.stream[row], kernels.wait_ns[row]) == (ABSENT, ABSENT, 1_242_399)
    assert all(np.isnan(values[row]) for values in kernels.counters.values())
    assert kernels.counters["aic_l0a_read_bw(GB/s)"][0] == 0
    assert kernels.metrics == (Metrics.MEMORY_L0,)


def test_op_summary_is_the_same_table_under_other_names():
    """op_summary and kernel_details of one capture give the same kernels."""
    one, other = (load_kernels(TABLES / name) for name in ("kernel_details_memory_l0.csv", "op_summary_1.csv"))
    assert one.start_ns.tolist() == other.start_ns.tolist()
    assert one.texts == other.texts
    assert one.name.tolist() == other.name.tolist()


def test_level_zero_has_no_counters():
    """The smallest output has names and times only."""
    kernels = load_kernels(OUTPUT / "kernel_details.csv")
    assert (len(kernels), kernels.metrics, kernels.counters) == (191, (), {})
    assert set(kernels.stream.tolist()) == {ABSENT}
    assert kernels.communicates.sum() == 4
