"""The figures of the pace rule that `make bench-simulator` prints."""

from benchmarks.simulator_pace import EQUAL_SPEED, LAYOUTS, pace_differences, with_slow_ranks
from lockstep.simulator.hardware.clusters import dgx_a100


def test_ranks_are_drawn_by_the_seed_at_the_speeds_that_are_given():
    """As many distinct ranks as asked for, all at one speed or each at its own, the same ones with the same seed."""
    cluster = dgx_a100(8)
    equal = with_slow_ranks(cluster, 20, speeds=EQUAL_SPEED).speed
    unequal = with_slow_ranks(cluster, 20, speeds=(0.7, 0.9)).speed
    assert len(equal) == len(unequal) == 20
    assert set(equal.values()) == {0.8}
    assert len(set(unequal.values())) == 20
    assert equal == with_slow_ranks(cluster, 20, speeds=EQUAL_SPEED).speed


def test_the_pace_rule_moves_parts_of_a_step_by_less_than_a_hundredth():
    """Step, exposed communication and idle time by the rule and with every slow rank by itself."""
    step, exposed, idle = pace_differences(LAYOUTS[0], 1)
    assert 0 < step < 5e-4
    assert exposed < 0.01
    assert idle < 0.01
