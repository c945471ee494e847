"""The Ascend recordings next to the checkout: both ranks that have every file."""

import pytest

from lockstep.trace.ascend.discover import discover
from lockstep.trace.ascend.rank import load_rank_trace
from lockstep.trace.launches import launches_of
from tests.trace.ascend.recordings import SHARED_RANKS

pytestmark = pytest.mark.shared


@pytest.mark.parametrize("folder", SHARED_RANKS, ids=[each.parent.name for each in SHARED_RANKS])
def test_every_row_of_a_device_has_its_launch(folder):
    """Kernels, copies and collectives lead to the call that launched them."""
    columns = load_rank_trace(discover(folder))
    assert (launches_of(columns)[columns.on_device] >= 0).all()
