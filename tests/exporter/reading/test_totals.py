import pytest

from exporter.reading.totals import NodeStepHistogram, StepTotals, possible
from lockstep.contracts.metrics import STEP_BUCKETS_SECONDS
from lockstep.contracts.records import MISSING, RECORD_INDEX
from tests.exporter.conftest import MS, OFFSET_NS, record, table


def test_missing_values_add_nothing_and_a_measured_zero_is_measured():
    """MISSING never counts as a figure, and a zero is one."""
    totals = StepTotals()
    totals.add(table(record(0), record(1, samples=MISSING)), OFFSET_NS)
    assert totals.sums[RECORD_INDEX["samples"]] == 8
    assert totals.measured[RECORD_INDEX["host_ns"]]
    assert not totals.measured[RECORD_INDEX["tokens"]]
    assert not totals.measured[RECORD_INDEX["tp_wait_ns"]]


def test_totals_hold_steps_time_and_the_last_step():
    """Steps, their time and the wall-clock end of the last one follow from the records."""
    totals = StepTotals()
    totals.add(table(record(5), record(6)), OFFSET_NS)
    assert (totals.steps, totals.step_time_ns, totals.last_step) == (2, 200 * MS, 6)
    assert totals.last_end_ns == OFFSET_NS + 1_000 * MS + 7 * 100 * MS


def test_what_a_device_could_do_is_summed_over_steps_with_known_flops():
    """Over time of such steps alone, with the peak as it is then; of an unknown peak nothing."""
    totals = StepTotals()
    totals.add(table(record(0, model_flops=5), record(1, model_flops=MISSING)), OFFSET_NS, 100.0)
    assert totals.peak_flops == pytest.approx(0.1 * 100.0)
    totals.add(table(record(2, model_flops=5)), OFFSET_NS)
    totals.add(table(record(3, model_flops=5)), OFFSET_NS, 300.0)
    assert totals.peak_flops == pytest.approx(0.1 * 100.0 + 0.1 * 300.0)


def test_an_attempt_begins_with_its_own_step_index_and_keeps_the_totals():
    """A restart forgets the step index only."""
    totals = StepTotals()
    totals.add(table(record(5)), OFFSET_NS)
    totals.begin_attempt()
    assert (totals.last_step, totals.steps) == (None, 1)


@pytest.mark.parametrize(
    "values",
    [
        {"end_ns": 0},
        {"start_ns": MISSING},
        {"end_ns": MISSING},
        {"end_ns": (1 << 63) - 1},
        {"step": -1},
        {"data_ns": -1},
        {"dp_bytes": MISSING + 1},
    ],
)
def test_impossible_records_are_found(values: dict[str, int]):
    """A record that would lower a counter or overflow a time is rejected and its neighbours are not."""
    assert possible(table(record(0), record(**({"step": 1} | values)), record(2))).tolist() == [True, False, True]


def test_totals_never_fall_however_large_the_figures():
    """A writer of absurd figures cannot make a counter wrap round."""
    totals = StepTotals()
    last = 0.0
    for step in range(20):
        totals.add(table(record(step, samples=(1 << 62) + step)), OFFSET_NS)
        assert totals.sums[RECORD_INDEX["samples"]] >= last
        last = float(totals.sums[RECORD_INDEX["samples"]])


def test_a_step_as_long_as_a_bound_falls_into_its_bucket():
    """Buckets include their upper bound, as Prometheus's `le` demands; what is longer than all goes to +Inf."""
    histogram = NodeStepHistogram()
    for bound in STEP_BUCKETS_SECONDS:
        histogram.add(table(record(0, step_ns=round(bound * 1e9))))
    histogram.add(table(record(0, step_ns=85 * 10**9)))
    assert histogram.counts.tolist() == [1] * (len(STEP_BUCKETS_SECONDS) + 1)
    assert histogram.sum_ns == pytest.approx((sum(STEP_BUCKETS_SECONDS) + 85) * 1e9)
