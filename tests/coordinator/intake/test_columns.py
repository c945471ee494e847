"""Columns become records in seconds; one that cannot be true differs from one that was not measured."""

import numpy as np
import pytest

from coordinator.intake.batch_table import read_batches
from coordinator.intake.columns import COMPONENTS, OPTIONAL_FIELDS, REQUIRED_FIELDS, account
from coordinator.settings.policy import TimelinePolicy
from lockstep.contracts.records import MISSING
from tests.support.batches import batch_of_columns

POLICY = TimelinePolicy()
MS = 10**6
STEP = {"step": 7, "start_ns": 10**18, "end_ns": 10**18 + 100 * MS, "dp_wait_ns": 20 * MS}
STEP |= {"compute_ns": 60 * MS, "data_ns": 10 * MS, "host_ns": 8 * MS, "gc_ns": 2 * MS}


def batch(*ranks, **changed):
    """Return one record of each rank, values changed for all of them; None leaves a column out."""
    values = {name: value for name, value in (STEP | changed).items() if value is not None}
    return batch_of_columns(ranks, {name: np.full(len(ranks), value) for name, value in values.items()})


def accounted(*batches):
    """Return the records of batches, and which can be true."""
    return account(read_batches(batches, REQUIRED_FIELDS, OPTIONAL_FIELDS), POLICY)


def test_own_work_is_the_step_without_its_waits():
    """Seconds by field, waits subtracted, and only what was sent among the values."""
    records, possible = accounted(batch(0), batch(1, dp_wait_ns=0, compute_ns=80 * MS))
    assert possible.all()
    assert records.value("self") == pytest.approx([0.08, 0.1])
    assert records.value("dp_wait") == pytest.approx([0.02, 0.0])
    assert records.value("duration") == pytest.approx([0.1, 0.1])
    assert set(records.fields) == {*COMPONENTS, "dp_wait", "duration", "self"}


@pytest.mark.parametrize("unknown", [{"tp_wait_ns": MISSING}, {}])
def test_own_work_is_not_known_where_a_wait_is_missing(unknown):
    """A kind that moved bytes and whose wait was not measured: what is left of the step holds it."""
    blind = {"tp_bytes": 8, "tp_count": 1, **unknown}
    records, possible = accounted(batch(0, **blind), batch(1, **(blind | {"tp_wait_ns": 0})), batch(2))
    assert possible.all()
    assert records.value("self") == pytest.approx([np.nan, 0.08, 0.08], nan_ok=True)


PHASES = {"forward_ns": 20 * MS, "backward_ns": 35 * MS, "optimizer_ns": 5 * MS}


def test_phases_of_compute():
    """Forward, backward and optimizer are taken where they sum to compute; what does not condemns no record."""
    walls = PHASES | {"backward_ns": 55 * MS}  # as older agents sent them, waits included
    lies = PHASES | {"forward_ns": -20 * MS, "optimizer_ns": 45 * MS}
    huge = PHASES | {"forward_ns": (1 << 63) - 1, "backward_ns": (1 << 63) - 1}
    unseen = PHASES | {"forward_ns": MISSING, "backward_ns": MISSING}
    records, possible = accounted(*(batch(0, **each) for each in (PHASES, walls, lies, huge, unseen)), batch(0))
    assert possible.all()
    assert records.value("forward") == pytest.approx([0.02, *[np.nan] * 5], nan_ok=True)
    assert records.value("backward") == pytest.approx([0.035, *[np.nan] * 5], nan_ok=True)
    assert records.value("optimizer") == pytest.approx([0.005, *[np.nan] * 5], nan_ok=True)


@pytest.mark.parametrize(
    ("changed", "off_cpu"),
    [
        ({"cpu_ns": 30 * MS}, 0.05),
        ({"cpu_ns": 80 * MS}, 0.0),
        ({"cpu_ns": 81 * MS}, 0.0),  # waiting takes a little CPU time, too
        ({"cpu_ns": 95 * MS}, np.nan),  # the waits spin: how much of the CPU time is own work is not known
        ({"cpu_ns": MISSING}, np.nan),
        ({"cpu_ns": -5}, np.nan),
        ({"cpu_ns": 1 << 62}, np.nan),
        ({"cpu_ns": 30 * MS, "device_step_ns": 100 * MS}, np.nan),  # the thread sleeps while the device works
        ({"cpu_ns": 30 * MS, "tp_wait_ns": MISSING, "tp_bytes": 8}, np.nan),  # it may have waited there
        ({"cpu_ns": 30 * MS, "tp_wait_ns": 0, "tp_bytes": 8}, 0.05),
        ({"cpu_ns": 30 * MS, "dp_wait_ns": MISSING}, np.nan),
    ],
)
def test_time_off_the_cpu(changed, off_cpu):
    """Own work that the thread's CPU time does not cover, where that can be known."""
    parts = {"compute_ns": 80 * MS} if changed.get("dp_wait_ns") == MISSING else {}
    records, possible = accounted(batch(0, **(parts | changed)))
    assert possible.all()
    assert records.value("off_cpu") == pytest.approx([off_cpu], nan_ok=True)


def test_the_parts_must_sum_to_the_step():
    """Within a thousandth and a microsecond; where a part is missing they must not exceed it."""
    tenth = 100 * MS // 1000
    for off, expected in ((tenth, True), (-tenth, True), (3 * tenth, False), (-3 * tenth, False)):
        _, possible = accounted(batch(0, compute_ns=60 * MS + off))
        assert possible.tolist() == [expected], off
    assert accounted(batch(0, compute_ns=MISSING))[1].all()
    assert not accounted(batch(0, compute_ns=MISSING, data_ns=90 * MS))[1].any()


@pytest.mark.parametrize("changed", [{"dp_bytes": -1}, {"flags": 1 << 30}, {"gc_ns": -1}, {"dp_wait_ns": 10**15}])
def test_values_out_of_range_condemn_their_record_only(changed):
    """One lie makes a record impossible; its neighbour in the same columns is not touched."""
    honest = dict.fromkeys(changed, 0) | {"gc_ns": 2 * MS, "dp_wait_ns": 20 * MS}
    _, possible = accounted(batch(0, **(honest | changed)), batch(1, **honest))
    assert possible.tolist() == [False, True]


@pytest.mark.parametrize(("name", "limit"), [("dp_bytes", 1 << 60), ("tokens", 1 << 62), ("flags", 1 << 20)])
def test_a_limit_is_kept_to_the_last_unit(name, limit):
    """Single precision would round both to the same number."""
    _, possible = accounted(batch(0, **{name: limit}), batch(1, **{name: limit + 1}))
    assert possible.tolist() == [True, False]


def test_a_pipelines_floor_is_count_times_shortest():
    """The bound without waiting; NaN where either was not measured."""
    fields = {"pp_wait_ns": 0, "pp_shortest_ns": 2 * MS, "pp_count": 5}
    records, _ = accounted(batch(0, **fields), batch(1, **(fields | {"pp_count": MISSING})))
    assert records.value("pp_floor") == pytest.approx([0.01, np.nan], nan_ok=True)


def test_the_order_of_the_fields_does_not_matter():
    """Rows of the table follow the sender's order; what is made of them does not."""
    fields = {"tp_wait_ns": 0, "tokens": 7, "pp_wait_ns": 0, "pp_shortest_ns": 2 * MS, "pp_count": 5, "dp_bytes": 9}
    plain, _ = accounted(batch(0, **fields))
    turned = dict(reversed((STEP | fields).items()))
    other, possible = accounted(batch_of_columns([0], {name: [value] for name, value in turned.items()}))
    assert possible.all()
    assert set(other.fields) == set(plain.fields)
    assert {name: other.value(name)[0] for name in plain.fields} == {
        name: plain.value(name)[0] for name in plain.fields
    }
