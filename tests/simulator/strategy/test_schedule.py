import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.simulate import simulate
from lockstep.simulator.strategy.memory import in_flight
from lockstep.simulator.strategy.schedule import BACKWARD, FORWARD, GPIPE, Schedule, passes
from tests.simulator.jobs import flat, uniform


def step_s(stages, schedule, **shape):
    return simulate(uniform(stages, schedule, **shape), flat(stages), batch=schedule.micro_batches).step_seconds


@pytest.mark.parametrize(("p", "m", "expected"), [(2, 4, 15), (4, 8, 33), (8, 8, 45), (8, 64, 213), (64, 512, 1725)])
@pytest.mark.parametrize("order", ["1f1b", GPIPE])
def test_t1_the_bubble_is_one_pass_for_each_other_stage(p, m, expected, order):
    """Uniform stages without communication take (m + p - 1)(f + b): 33 for (4, 8), 1725 for (64, 512)."""
    assert step_s(p, Schedule(micro_batches=m, order=order)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (8, 64, 3), (4, 4, 4)])
def test_t1_interleaving_divides_the_bubble(p, m, v):
    """With v chunks to a stage the excess over m(f + b) is (p - 1)/(v m)."""
    ideal = m * 3 * v
    excess = step_s(p, Schedule(micro_batches=m), virtual=v) / ideal - 1
    assert excess == pytest.approx((p - 1) / (v * m), rel=1e-9)


def test_t1_interleaving_of_the_530b_model():
    """35 stages, 280 micro-batches, 3 chunks: an excess of 0.040476."""
    assert step_s(35, Schedule(micro_batches=280), virtual=3) / (280 * 9) - 1 == pytest.approx(0.040476, abs=5e-7)


@given(st.integers(1, 12), st.integers(1, 24))
def test_t2_1f1b_keeps_few_in_flight_and_gpipe_all(p, m):
    """Stage i of 1F1B holds min(m, p - i) micro-batches, GPipe m, and a limit is a limit."""
    for stage in range(p):
        assert in_flight(passes(Schedule(micro_batches=m), p, stage, 1)) == min(m, p - stage)
        assert in_flight(passes(Schedule(micro_batches=m, order=GPIPE), p, stage, 1)) == m
        limited = Schedule(micro_batches=m, order=GPIPE, max_ongoing=2)
        assert in_flight(passes(limited, p, stage, 1)) == min(m, 2)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.sampled_from(["1f1b", GPIPE]))
def test_every_pass_comes_once_and_forward_before_backward(p, groups, v, order):
    """Each stage does each micro-batch of each chunk forward, then backward, once."""
    schedule = Schedule(micro_batches=groups * p, order=order)
    for stage in range(p):
        rows = passes(schedule, p, stage, v)
        assert len({tuple(row) for row in rows.tolist()}) == len(rows) == 2 * groups * p * v
        place = {tuple(row): index for index, row in enumerate(rows.tolist())}
        assert all(place[FORWARD, k, c] < place[BACKWARD, k, c] for _, k, c in rows.tolist())


def test_a_limit_that_cannot_be_kept_is_an_error():
    """Interleaving that holds too few micro-batches would wait for itself, and one that cannot be dealt evenly too."""
    with pytest.raises(ConfigError, match="max_ongoing: got 1, expected at least 5 for 2 chunks"):
        step_s(4, Schedule(micro_batches=4, max_ongoing=1), virtual=2)
    with pytest.raises(ConfigError, match="multiple of 4 stages"):
        step_s(4, Schedule(micro_batches=6), virtual=2)


@pytest.mark.parametrize("bad", [{"order": "zigzag"}, {"micro_batches": 0}, {"max_ongoing": 0}])
def test_bad_schedules_are_refused(bad):
    """An unknown order or a count below one is named."""
    with pytest.raises(ConfigError, match="got"):
        Schedule(**bad)


def test_orders_are_written_out():
    """The order of a stage in the middle, in full."""
    rows = passes(Schedule(micro_batches=4), 4, 2, 1)
    assert "".join("FB"[kind] + str(micro) for kind, micro, _ in rows) == "F0F1B0F2B1F3B2B3"
    assert rows.dtype == np.int64
