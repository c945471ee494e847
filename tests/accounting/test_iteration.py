"""Where iterations end, on sequences of optimizer events: odd ones were led up to by training."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.accounting.iteration import PERIOD_MAX, RELEARN_EVENTS, REPEATS, IterationLearner

SEQUENCES = [
    pytest.param([3], [True], id="one optimizer"),
    pytest.param([3, 5], [False, True], id="GAN"),
    pytest.param([3] * 5 + [5], [False] * 5 + [True], id="five critic steps for one of the generator"),
    pytest.param([3, 2, 2, 2], [False] * 3 + [True], id="a call per parameter group"),
    pytest.param([3, 4, 6], [False, False, True], id="chained optimizers"),
]


def play(iteration, events):
    return [iteration.ends_step(event) for event in events]


@pytest.mark.parametrize(("sequence", "ends"), SEQUENCES)
def test_last_event_of_what_repeats_ends_the_step(sequence, ends):
    """After M repeats the step ends with the sequence; before, wherever training led up to."""
    iteration = IterationLearner()
    assert play(iteration, sequence * REPEATS) == [event % 2 == 1 for event in sequence * REPEATS]
    assert play(iteration, sequence * 50) == ends * 50
    assert iteration.is_regular


@given(st.lists(st.integers(2, 9), min_size=1, max_size=PERIOD_MAX), st.integers(1, 40))
def test_every_rank_with_the_same_events_ends_the_same_steps(sequence, rounds):
    """The learner is a function of the events alone, whatever they are."""
    first, second = IterationLearner(), IterationLearner()
    assert play(first, sequence * rounds) == play(second, sequence * rounds)


@given(st.lists(st.integers(2, 9), min_size=2, max_size=8).filter(lambda s: any(e % 2 for e in s)))
def test_a_sequence_is_one_step_in_the_end(sequence):
    """Whatever repeats, M repeats later there is one step for each shortest repeating part."""
    shortest = next(
        n
        for n in range(1, len(sequence) + 1)
        if sequence == (sequence[:n] * len(sequence))[: len(sequence)] and len(sequence) % n == 0
    )
    iteration = IterationLearner()
    play(iteration, sequence * (2 * REPEATS))
    assert sum(play(iteration, sequence * 10)) == 10 * len(sequence) // shortest


def test_steps_before_learning_are_irregular_only_where_events_differ():
    """A job with one optimizer is regular from its first step; a GAN only once it is learnt."""
    plain, gan = IterationLearner(), IterationLearner()
    plain.ends_step(3)
    assert plain.is_regular
    seen = []
    for event in [3, 5] * REPEATS:
        gan.ends_step(event)
        seen.append(gan.is_regular)
    assert seen == [True] + [False] * (2 * REPEATS - 1)


def test_a_missing_event_costs_one_irregular_step():
    """An optimizer that is left out once makes one step longer; the steps after it are whole again."""
    iteration = IterationLearner()
    play(iteration, [3, 5] * REPEATS)
    assert play(iteration, [3, 3, 5]) == [False, False, True]
    assert play(iteration, [3, 5, 3, 5]) == [False, True, False, True]
    assert iteration.is_regular


def test_a_foreign_event_ends_an_irregular_step():
    """Another optimizer's step in between ends the step there if training led up to it."""
    iteration = IterationLearner()
    play(iteration, [3] * REPEATS)
    assert play(iteration, [7, 8, 3]) == [True, False, True]


def test_another_sequence_is_learnt_again():
    """A job that changes its way is learnt again within K events: pretraining with one optimizer, then both."""
    iteration = IterationLearner()
    play(iteration, [3] * 1000)
    play(iteration, [3, 5] * RELEARN_EVENTS)
    assert play(iteration, [3, 5] * 20) in ([False, True] * 20, [True, False] * 20)


def test_what_never_repeats_ends_a_step_after_each_training():
    """A random number of critic steps has no sequence: every optimizer after training ends a step, for ever."""
    source = random.Random(7)
    iteration = IterationLearner()
    events = [event for _ in range(800) for event in [3] * source.randint(1, 6) + [5]]
    ends = play(iteration, events)
    assert sum(ends) > 0.9 * len(events)
