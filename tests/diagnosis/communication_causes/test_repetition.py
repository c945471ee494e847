"""Who is waited for step after step, and who by chance."""

import numpy as np
import pytest

from lockstep.diagnosis.communication_causes.repetition import chance_of, repetition

STEP_STARTS_NS = np.arange(3) * 100


def found(last, caused_ns, starts_ns=(50, 150, 250)):
    """Return the repetition of collectives of four ranks, one in each of three steps unless told."""
    return repetition(
        np.array(starts_ns),
        np.array(last),
        np.array(caused_ns, np.float64),
        ranks=4,
        step_starts_ns_T=STEP_STARTS_NS,
    )


def test_a_rank_that_is_last_in_every_step_is_no_chance():
    """The others wait for rank 2 in each of three steps, for about as long."""
    answer = found([2, 2, 2], [40, 41, 39])
    assert (answer.blamed_R.tolist(), answer.steps) == ([0, 0, 3, 0], 3)
    assert not answer.is_chance(2)


def test_ranks_that_take_turns_are_chance():
    """One of four healthy ranks is the last in two of three steps more often than not."""
    answer = found([2, 0, 2], [40, 30, 40])
    assert answer.blamed_R.tolist() == [1, 0, 2, 0]
    assert answer.is_chance(2)


def test_one_step_that_holds_nearly_all_is_chance():
    """Last in every step, but only once by much: a scheduler's pause, beside the noise of starts."""
    assert found([2, 2, 2], [90, 1, 2]).is_chance(2)


def test_the_rank_that_causes_most_of_a_step_is_blamed_for_it():
    """Two collectives in the first step: the sums of the step decide; a tie blames none."""
    answer = found([1, 2, 2, 2], [10, 30, 20, 20], starts_ns=(10, 50, 150, 250))
    assert answer.blamed_R.tolist() == [0, 0, 3, 0]
    assert found([1, 2, 3], [10, 10, 5], starts_ns=(10, 20, 150)).blamed_R.tolist() == [0, 0, 0, 1]


def test_few_steps_show_nothing():
    """Without marked steps, and with two of them, nothing is held to be chance."""
    unmarked = repetition(np.array([1]), np.array([2]), np.ones(1), ranks=4, step_starts_ns_T=np.zeros(0, np.int64))
    assert (unmarked.steps, unmarked.is_chance(2)) == (0, False)
    assert not found([2, 0], [40, 1], starts_ns=(50, 150)).is_chance(2)


@pytest.mark.parametrize(("blamed", "steps", "ranks", "chance"), [(3, 3, 4, 1 / 16), (0, 3, 4, 1.0), (2, 3, 4, 0.625)])
def test_chance_is_the_binomial_tail_over_all_ranks(blamed, steps, ranks, chance):
    """As counted by hand: of 64 orders of three steps 4 have one rank in all, 40 one in two or more."""
    assert chance_of(blamed, steps, ranks) == pytest.approx(chance)
