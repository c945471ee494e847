"""Who is waited for step after step, and who by chance."""

import numpy as np
import pytest

from lockstep.diagnosis.communication_causes.repetition import chance_of, repetition

STEP_STARTS_NS = np.arange(3) * 100


def waits(last, later_ns, apart_ns=1.0):
    """Return what four ranks wait in each collective: all but the last one `later_ns`, and each other more by `apart_ns`."""
    waited = np.zeros((len(last), 4))
    for row, (rank, late) in enumerate(zip(last, later_ns, strict=True)):
        waited[row, np.arange(4) != rank] = late + apart_ns * np.arange(3)
    return waited


def found(last, later_ns, starts_ns=(50, 150, 250), apart_ns=1.0):
    """Return the repetition of collectives of four ranks, one in each of three steps by default."""
    return repetition(
        np.array(starts_ns), np.array(last), waits(last, later_ns, apart_ns), step_starts_ns_T=STEP_STARTS_NS
    )


def blamed(answer):
    """Return in how many steps each rank is blamed."""
    return [int(answer.is_blamed([rank]).sum()) for rank in range(4)]


def test_a_rank_that_is_last_in_every_step_is_no_chance():
    """The others wait for rank 2 in each of three steps, for about as long."""
    answer = found([2, 2, 2], [40, 41, 39])
    assert (blamed(answer), answer.steps) == ([0, 0, 3, 0], 3)
    assert not answer.is_chance([2])


def test_ranks_that_take_turns_are_chance():
    """One of four healthy ranks is the last in two of three steps more often than not."""
    answer = found([2, 0, 2], [40, 30, 40])
    assert blamed(answer) == [1, 0, 2, 0]
    assert answer.is_chance([2])


def test_one_step_that_holds_nearly_all_is_chance():
    """Last in every step, but only once by much: a scheduler's pause, next to the noise of starts."""
    assert found([2, 2, 2], [90, 5, 6]).is_chance([2])


@pytest.mark.parametrize(("later_ns", "is_chance"), [((24, 24, 26), True), ((26, 26, 24), False)])
def test_a_rank_is_later_than_the_others_are_apart(later_ns, is_chance):
    """Three others that are 10 ns apart have a spread of 10: 2.5 of them in the median step are none of theirs."""
    answer = found([2, 2, 2], later_ns, apart_ns=10.0)
    assert answer.margin([2]) == pytest.approx(sorted(later_ns)[1] / 10)
    assert answer.is_chance([2]) is is_chance


def test_steps_in_which_another_is_blamed_do_not_lower_the_margin():
    """A fault in eight of ten steps: the median is over these eight."""
    last = [2] * 8 + [0, 1]
    answer = repetition(
        np.arange(10) * 10 + 5, np.array(last), waits(last, [40] * 10), step_starts_ns_T=np.arange(10) * 10
    )
    assert answer.margin([2]) == pytest.approx(40)
    assert not answer.is_chance([2])


@pytest.mark.parametrize(("later_ns", "is_chance"), [((40, 44, 38), False), ((11, 5, 2), True), ((227, 223, 9), True)])
def test_a_rank_of_a_pair_is_late_by_about_as_much_in_each_step(later_ns, is_chance):
    """The other rank of a pair has no spread, and one of two is last in all of three steps in a quarter of captures."""
    waited = np.array([(late, 0.0) for late in later_ns])
    answer = repetition(np.array((50, 150, 250)), np.array([1, 1, 1]), waited, step_starts_ns_T=STEP_STARTS_NS)
    assert answer.is_chance([1]) is is_chance


def test_two_slow_ranks_are_evaluated_together():
    """They come last in turn, 40 ns after the two others, which are 2 ns apart: none alone, but both."""
    waited = np.array([[40.0, 0, 42, 3], [41, 4, 43, 0], [40, 0, 42, 2]])
    answer = repetition(np.array((50, 150, 250)), np.array([1, 3, 1]), waited, step_starts_ns_T=STEP_STARTS_NS)
    assert answer.is_chance([1])
    assert not answer.is_chance([1, 3])
    assert answer.is_chance([1, 2])


def test_two_of_four_ranks_are_chance_where_a_third_is_blamed_as_well():
    """Two of four are blamed in two of three steps more often than not."""
    assert found([2, 3, 0], [40, 40, 40]).is_chance([2, 3])


def test_of_two_ranks_the_steps_have_the_spread():
    """Of two ranks the other is alone: only how often and how evenly one is late can be evaluated."""
    waited = np.array([[5.0, 0], [5, 0], [5, 0]])
    answer = repetition(np.array((50, 150, 250)), np.array([1, 1, 1]), waited, step_starts_ns_T=STEP_STARTS_NS)
    assert [answer.margin([rank]) for rank in range(2)] == [0, np.inf]
    assert not answer.is_chance([1])


def test_a_collective_that_a_rank_is_not_in_shows_no_lateness():
    """Its waiting counts for who is blamed; how late ranks are is seen where all take part."""
    waited = np.vstack([waits([2, 2, 2], [40, 40, 40]), [90.0, np.nan, 0, np.nan]])
    starts_ns = np.array((50, 150, 250, 260))
    answer = repetition(starts_ns, np.array([2, 2, 2, 2]), waited, step_starts_ns_T=STEP_STARTS_NS)
    assert answer.margin([2]) == pytest.approx(40)


def test_the_rank_that_causes_most_of_a_step_is_blamed_for_it():
    """Two collectives in the first step: the sums of the step decide; a tie blames none."""
    answer = found([1, 2, 2, 2], [10, 30, 20, 20], starts_ns=(10, 50, 150, 250))
    assert blamed(answer) == [0, 0, 3, 0]
    assert blamed(found([1, 2, 3], [10, 10, 5], starts_ns=(10, 20, 150))) == [0, 0, 0, 1]


def test_few_steps_show_nothing():
    """Without marked steps, and with two of them, nothing is held to be chance."""
    unmarked = repetition(np.array([1]), np.array([2]), waits([2], [1]), step_starts_ns_T=np.zeros(0, np.int64))
    assert (unmarked.steps, unmarked.is_chance([2])) == (0, False)
    assert not found([2, 0], [40, 1], starts_ns=(50, 150)).is_chance([2])


@pytest.mark.parametrize(("blamed", "steps", "ranks", "chance"), [(3, 3, 4, 1 / 16), (0, 3, 4, 1.0), (2, 3, 4, 0.625)])
def test_chance_is_the_binomial_tail_over_all_ranks(blamed, steps, ranks, chance):
    """As counted by hand: of 64 orders of three steps 4 have one rank in all, 40 one in two or more."""
    assert chance_of(blamed, steps, ranks) == pytest.approx(chance)
