"""Algorithm 1 against an oracle that looks at every interval, and the faults of its printed form."""

import numpy as np
import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.trace.patterns import critical_duration
from lockstep.trace.patterns.critical_duration import CriticalDurations, critical_durations, uses
from lockstep.trace.patterns.samples import UNITS, ZERO_UNITS, Samples, UsageSamples


def usage_of(values) -> UsageSamples:
    return UsageSamples(Samples(start_ns=0, period_ns=100, values=np.asarray(values, np.float64), peak=1.0))


def of_all(values) -> tuple[UsageSamples, CriticalDurations]:
    usage = usage_of(values)
    return usage, critical_durations(usage, np.array([0]), np.array([len(values)]))


def oracle(units: list[int]) -> tuple[int, int, int]:
    """Every interval [left, right] in turn, O(n**2): the smallest g first, then the longest with busy ends."""
    busy = [each if each > ZERO_UNITS else 0 for each in units]
    total = sum(busy)
    if not total:
        return 0, 0, 0
    smallest, candidates = len(busy), []
    for left in range(len(busy)):
        held = gap = longest = 0
        for right in range(left, len(busy)):
            held += busy[right]
            gap = 0 if busy[right] else gap + 1
            longest = max(longest, gap)
            if 5 * held >= 4 * total:
                smallest = min(smallest, longest)
                if busy[left] and busy[right]:
                    candidates.append((longest, left, right + 1))
    left, right = max(((a, b) for gap, a, b in candidates if gap <= smallest), key=lambda each: each[1] - each[0])
    return left, right, smallest


def random_inputs(count: int) -> list[np.ndarray]:
    """Short series with many ties: few levels, zeros in runs, noise below the limit, one burst or several."""
    random = np.random.default_rng(20)
    inputs = []
    for _ in range(count):
        length = int(random.integers(1, 28))
        levels = random.choice([0.0, 0.005, 0.01, 0.02, 0.2, 0.4, 0.6, 1.0, 1.2], length)
        holes = np.repeat(random.random(length) < random.random(), random.integers(1, 5))[:length]
        values = np.where(holes, random.choice([0.0, 0.004]), levels)
        inputs.append(values if random.random() < 0.8 else random.random(length))
    return inputs


def test_ten_thousand_series_have_the_critical_duration_of_the_oracle(monkeypatch):
    """One call over all, laid end to end so that busy runs cross from event to event, in several portions."""
    monkeypatch.setattr(critical_duration, "RUNS_AT_ONCE", 5000)
    inputs = random_inputs(10_000)
    usage = usage_of(np.concatenate(inputs))
    stop = np.cumsum([len(each) for each in inputs])
    first = stop - [len(each) for each in inputs]
    found = critical_durations(usage, first, stop)
    for event, (begin, end) in enumerate(zip(first.tolist(), stop.tolist(), strict=True)):
        left, right, gap = oracle(usage.units_S[begin:end].tolist())
        got = int(found.first[event]) - begin, int(found.stop[event]) - begin, int(found.gap[event])
        assert got == (left, right, gap), inputs[event]


def test_uses_are_mean_and_deviation_over_the_critical_duration():
    """Against numpy on each slice; empty ones are NaN."""
    inputs = random_inputs(500)
    usage = usage_of(np.concatenate(inputs))
    stop = np.cumsum([len(each) for each in inputs])
    found = critical_durations(usage, stop - [len(each) for each in inputs], stop)
    got = uses(usage, found)
    for event, (left, right) in enumerate(zip(found.first.tolist(), found.stop.tolist(), strict=True)):
        values = usage.units_S[left:right] / UNITS
        if left == right:
            assert all(np.isnan(each[event]) for each in got)
            continue
        busy = values[values * UNITS > ZERO_UNITS]
        wanted = values.mean(), values.std(), busy.mean(), 1 - len(busy) / len(values)
        assert np.allclose([each[event] for each in got], wanted, atol=1e-7)


def test_overlapping_and_empty_events():
    """Nested events look at the same samples; one without samples or outside them has no critical duration."""
    usage = usage_of([0, 0.9, 0.9, 0, 0, 0, 0.1, 0])
    first, stop = np.array([0, 0, 5, 3, 8, 4]), np.array([8, 3, 8, 6, 8, 4])
    found = critical_durations(usage, first, stop)
    assert found.first.tolist() == [1, 1, 6, 3, 8, 4]
    assert found.stop.tolist() == [3, 3, 7, 3, 8, 4]


def test_noise_below_one_per_cent_is_no_usage():
    """A counter that never reads 0: the printed test for zeros would return everything, mean 0.18."""
    values = np.full(1000, 0.004)
    values[400:600] = 0.9
    usage, found = of_all(values)
    assert (found.first[0], found.stop[0], found.gap[0]) == (400, 600, 0)
    assert uses(usage, found).mean[0] == pytest.approx(0.9, abs=1e-4)


def test_two_bursts_around_a_wait_show_the_wait():
    """No stretch without the wait holds 80 %: the active mean and the gap's share show what the mean hides."""
    values = np.concatenate((np.full(80, 0.9), np.zeros(800), np.full(120, 0.9)))
    usage, found = of_all(values)
    got = uses(usage, found)
    assert (found.first[0], found.stop[0], found.gap[0]) == (0, 1000, 800)
    assert got.mean[0] == pytest.approx(0.18, abs=1e-4)
    assert got.active_mean[0] == pytest.approx(0.9, abs=1e-4)
    assert got.gap_ratio[0] == pytest.approx(0.8)


def test_early_worker_waits_are_cut_off():
    """The shape of the paper's figure 10: a first piece, a wait, then most of the transfer."""
    values = np.concatenate((np.full(10, 0.5), np.zeros(300), np.full(150, 0.8), np.zeros(40)))
    _, found = of_all(values)
    assert (found.first[0], found.stop[0]) == (310, 460)


def test_events_take_the_samples_inside_them():
    """A sample at an event's start belongs to it, one at its end does not; events may reach beyond the samples."""
    usage = UsageSamples(Samples(start_ns=1000, period_ns=100, values=np.ones(10), peak=1.0))
    first, stop = usage.within(
        np.array([1000, 1001, 1150, 0, 1900, 5000]), np.array([1100, 1100, 1301, 9999, 1950, 6000])
    )
    assert list(zip(first.tolist(), stop.tolist(), strict=True)) == [(0, 1), (1, 1), (2, 4), (0, 10), (9, 10), (10, 10)]


def test_events_beyond_the_limit_of_work_have_none(monkeypatch):
    """A file made to be expensive costs a bounded time, and the events before keep theirs."""
    monkeypatch.setattr(critical_duration, "RUNS_MAX", 3)
    usage = usage_of([1, 0, 1, 0, 1, 0])
    found = critical_durations(usage, np.zeros(4, np.int64), np.array([2, 4, 6, 6]))
    assert found.stop.tolist() == [1, 3, 0, 0]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"period_ns": 0}, "period_ns"),
        ({"peak": 0.0}, "peak"),
        ({"peak": float("nan")}, "peak"),
        ({"values": np.array([0.1, np.nan])}, "reading"),
        ({"values": np.array([0.1, -0.1])}, "reading"),
        ({"values": np.array([0.1, 2.5])}, "reading"),
        ({"values": np.zeros((2, 2))}, "shape of values"),
    ],
)
def test_samples_that_cannot_be_are_refused_by_name(change, what):
    """What, where, got, expected."""
    good = {"start_ns": 0, "period_ns": 100, "values": np.array([0.1]), "peak": 1.0}
    with pytest.raises(MalformedError, match=what):
        UsageSamples(Samples(**(good | change)), where="sm of rank 3")
