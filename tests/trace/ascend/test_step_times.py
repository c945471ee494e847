import numpy as np
import pytest

from lockstep.trace.ascend.kernels import load_kernels
from lockstep.trace.ascend.load import load_trace_view
from lockstep.trace.ascend.step_times import step_times
from lockstep.trace.ascend.step_trace import STAGE, load_step_times
from lockstep.trace.columns import ABSENT
from tests.trace.ascend.recordings import CLUSTER, OUTPUT
from tests.trace.ascend.written import HCCL, metadata, row, write

AGREE_NS = 1000
FIELDS = ("computing_ns", "communication_ns", "overlapped_ns", "not_overlapped_ns", "free_ns", "stage_ns", "bubble_ns")
_HEADER = "Step Id,Name,Accelerator Core,Start Time(us),Duration(us)"


def test_arithmetic_agrees_with_the_vendor():
    """All times of step_trace_time.csv follow from the kernels, within a microsecond."""
    kernels, columns = load_kernels(OUTPUT / "kernel_details.csv"), load_trace_view(OUTPUT / "trace_view.json.gz")
    vendor = load_step_times(OUTPUT / "step_trace_time.csv")
    for found in (step_times(kernels), step_times(kernels, columns)):
        assert found.step.tolist() == vendor.step.tolist() == [50]
        for field in FIELDS:
            assert abs(getattr(found, field)[0] - getattr(vendor, field)[0]) < AGREE_NS, field
    assert abs(found.preparing_ns[0] - vendor.preparing_ns[0]) < AGREE_NS
    assert step_times(kernels).preparing_ns[0] == ABSENT


def _kernels(folder, rows):
    path = folder / "kernel_details.csv"
    path.write_text("\n".join([_HEADER, *rows]))
    return load_kernels(path)


def test_each_step_is_its_own_account(tmp_path):
    """Times of a step come from its tasks alone; parts of the window sum to it; receiving is the bubble."""
    rows = [
        "1,a,AI_CORE,1000.0,10",
        "1,b,AI_CORE,1005.0,10",  # parallel to a, on another stream
        "1,hcom_allReduce__1_0,HCCL,1010.0,20",
        "1,hcom_receive__1_1,HCCL,1040.0,5",
        "2,a,AI_CORE,1100.0,7",
    ]
    found = step_times(_kernels(tmp_path, rows))
    got = {field: getattr(found, field).tolist() for field in FIELDS}
    assert got == {
        "computing_ns": [15_000, 7_000],
        "communication_ns": [25_000, 0],
        "overlapped_ns": [5_000, 0],
        "not_overlapped_ns": [20_000, 0],
        "free_ns": [10_000, 0],
        "stage_ns": [40_000, 7_000],
        "bubble_ns": [5_000, 0],
    }
    assert found.not_overlapped_without_receive_ns.tolist() == [15_000, 0]


def test_collectives_of_the_trace_serve_where_kernels_have_none(tmp_path):
    """A collective then belongs to the step that began last before it."""
    base_us = 1_736_405_443_863_674
    kernels = _kernels(tmp_path, [f"{step},a,AI_CORE,{base_us + at}.400,10" for step, at in ((1, 0), (2, 100))])
    events = [row("hcom_allReduce__1_0", HCCL, 0, 1000 * at, 20_000) for at in (5, 105)]
    found = step_times(kernels, load_trace_view(write(tmp_path, [*events, *metadata()])))
    assert found.communication_ns.tolist() == [20_000, 20_000]
    assert found.overlapped_ns.tolist() == [5_000, 5_000]


def test_no_kernels_are_no_steps(tmp_path):
    """A header without rows is an empty account."""
    assert len(step_times(_kernels(tmp_path, []))) == 0


def test_cluster_file():
    """Ranks and stages are distinguished, and a stage's times are its ranks' longest."""
    found = load_step_times(CLUSTER / "cluster_step_trace_time.csv")
    assert len(found) == 18
    assert found.ranks[:2] == ((0,), (1,))
    stage = found.kind.index(STAGE)
    assert found.ranks[stage] == tuple(range(8))
    ranks = [row for row in range(16) if found.ranks[row][0] in found.ranks[stage]]
    assert found.computing_ns[stage] == found.computing_ns[ranks].max()
    assert found.preparing_ns.tolist() == [ABSENT] * 18
    assert found.computing_ns[0] == 75_174_575


@pytest.mark.parametrize("index", ["", "rank", "(1, 2", "1,,2", "9" * 12])
def test_indexes_of_no_form_name_no_ranks(tmp_path, index):
    """A damaged index costs the ranks, not the row."""
    path = tmp_path / "cluster_step_trace_time.csv"
    path.write_text(f'Step,Type,Index,Computing,Communication,Free\n2,rank,"{index}",1.5,,0\n')
    found = load_step_times(path)
    assert found.ranks[0] in ((), (1, 2))
    assert (found.computing_ns[0], found.communication_ns[0], found.free_ns[0]) == (1500, ABSENT, 0)


def test_vendor_file_of_a_rank_has_no_ranks():
    """A rank's own file speaks of itself."""
    found = load_step_times(OUTPUT / "step_trace_time.csv")
    assert (found.kind, found.ranks) == (("rank",), ((),))
    assert np.array_equal(found.stage_ns, [116_251_250])
