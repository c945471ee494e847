"""The Ascend recordings next to the checkout: both ranks with the vendor's own step times, and every other file."""

import pytest

from lockstep.trace.ascend.discover import discover, discover_ranks
from lockstep.trace.ascend.rank import load_rank_kernels, load_rank_trace
from lockstep.trace.ascend.step_times import step_times
from lockstep.trace.ascend.step_trace import load_step_times
from lockstep.trace.launches import launches_of
from tests.trace.ascend.recordings import SHARED, SHARED_RANKS
from tests.trace.ascend.test_step_times import AGREE_NS, FIELDS

pytestmark = pytest.mark.shared


@pytest.mark.parametrize("folder", SHARED_RANKS, ids=[each.parent.name for each in SHARED_RANKS])
def test_arithmetic_agrees_with_the_vendor(folder):
    """Every time of step_trace_time.csv, within a microsecond."""
    output = discover(folder)
    columns = load_rank_trace(output)
    found = step_times(load_rank_kernels(output), columns)
    vendor = load_step_times(output.step_trace_time)
    for field in (*FIELDS, "preparing_ns"):
        assert abs(getattr(found, field) - getattr(vendor, field)).max() < AGREE_NS, field
    assert (launches_of(columns)[columns.on_device] >= 0).all()


def test_every_rank_of_the_tree_is_found_and_read():
    """Both samples of two ranks, and the cluster's analysis."""
    found = discover_ranks(SHARED / "msinsight")
    assert [each.rank for each in found] == [0, 0, 0, 1, 1, -1]
    assert [len(load_rank_kernels(each)) for each in found[1:5]] == [191, 20, 191, 22]
