"""The recording that the repository carries: what HTA makes of rows that are no work."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.hta_view import device_pieces, view_device
from lockstep.trace.columns import SYNC, WorkKind
from lockstep.trace.intervals import merged
from lockstep.trace.kineto.load import load_trace
from tests.trace.hta.comparison import CARRIED, EXPECTED, cut_to_us, ns, types_of

EXPECTED_HERE = EXPECTED["benchmark"]


@pytest.fixture(scope="module")
def columns():
    return load_trace(CARRIED)


def test_memory_time_is_equal(columns):
    """Copies and fills are work to both."""
    assert cut_to_us(device_pieces(columns, columns.on_device))["MEMORY"] == types_of(EXPECTED_HERE)["MEMORY"]


def test_hta_counts_recorded_waits_as_work(columns):
    """Its 139 device events are 98 of work and 41 rows of cuda_sync; with those as work all its figures come out.

    "Stream Wait Event" is a computation to it, 7 us of it; "Stream Sync" and "Context Sync" are of no type but busy.
    """
    waits = columns.category == columns.category_code(SYNC)
    assert (np.count_nonzero(columns.on_device), np.count_nonzero(waits)) == (98, 41)
    assert EXPECTED_HERE["device_events"] == 139
    waiting = waits & columns.named(lambda name: name == "Stream Wait Event")
    counted = replace(columns, work=np.where(waiting, WorkKind.COMPUTE, columns.work).astype(np.int8))
    view = view_device(counted, columns.on_device | waiting)
    busy = merged(columns.start_ns[columns.on_device | waits], columns.end_ns[columns.on_device | waits])
    window_ns = int(busy.end_ns[-1] - busy.start_ns[0])
    assert window_ns == ns(EXPECTED_HERE["kernel_us"])
    assert window_ns - busy.measure_ns() == ns(EXPECTED_HERE["idle_us"])
    assert view.compute_ns == ns(EXPECTED_HERE["compute_us"])
    assert view.compute_ns - view_device(columns).compute_ns == 7000


def test_nothing_on_the_device_is_nothing_to_view(columns):
    """A trace without work of a device has zeros, and no overlap to speak of."""
    view = view_device(columns, np.zeros(len(columns), np.bool_))
    assert (view.window_ns, view.idle_ns, view.compute_ns, view.overlap_ratio, view.kernel_type_ns) == (
        0,
        0,
        0,
        None,
        {},
    )
