"""Extrapolation over levels that repeat: what they guess is proved, and where it is wrong nothing of it stays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.simulator.execution import topological_levels
from lockstep.simulator.execution.contention_free import longest_path
from lockstep.simulator.execution.topological_levels import start_by_level
from lockstep.simulator.simulate import Options, compile_job
from lockstep.simulator.strategy.schedule import Schedule
from tests.simulator.jobs import flat, uniform


def pipeline(stages, micro_batches, *, virtual=1, order="1f1b"):
    """Return the graph of a pipeline of equal stages."""
    tree = uniform(stages, Schedule(micro_batches=micro_batches, order=order), virtual=virtual)
    return compile_job(tree, flat(stages), batch=micro_batches, options=Options()).graph


def leaps_of(graph, spent):
    """Return how many leaps are made, and whether their outcome is proved."""
    run = topological_levels._Levels(graph, spent, extrapolates=True)
    run.run()
    return run.extrapolations, run.is_proved()


def by_row(graph, values):
    """Return seconds of operations, those of a row alike."""
    lengths = np.diff(graph.rows, append=len(graph))
    return np.repeat(np.resize(np.asarray(values, dtype=np.float64), len(lengths)), lengths)


GRAPHS = {
    "1F1B": pipeline(4, 120),
    "two stages": pipeline(2, 150),
    "GPipe": pipeline(3, 100, order="gpipe"),
    "interleaved": pipeline(3, 60, virtual=2),
}


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(sorted(GRAPHS)),
    st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0, 1.7, 2.0]), min_size=1, max_size=24),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([0.5, 40.0])), max_size=2),
)
def test_leaps_change_nothing(name, values, late):
    """Stages of any durations, some operations anywhere held up: the longest path is that of all waves."""
    graph = GRAPHS[name]
    spent = by_row(graph, values)
    for place, seconds in late:
        spent[int(place * len(spent))] += seconds
    whole = start_by_level(graph, spent, extrapolates=False)
    assert start_by_level(graph, spent) == pytest.approx(whole, rel=1e-11, abs=1e-11 * whole.max())


@pytest.mark.parametrize("name", ["1F1B", "two stages"])
def test_a_steady_pipeline_is_leapt_over(name):
    """Most levels of a pipeline with many micro-batches are guessed, rightly."""
    graph = GRAPHS[name]
    _, end, _ = longest_path(graph)
    spent = end - longest_path(graph)[0]
    run = topological_levels._Levels(graph, spent, extrapolates=True)
    n_waves = 0
    advance = run._advance

    def count(ready):
        nonlocal n_waves
        n_waves += 1
        return advance(ready)

    run._advance = count
    run.run()
    assert (run.extrapolations, run.is_proved()) == (1, True)
    assert n_waves < len(graph) / 4


def test_a_wrong_guess_is_found_out():
    """One late operation behind the guessed ones breaks the period: the guess is dropped, the outcome is right."""
    graph = GRAPHS["1F1B"]
    spent = by_row(graph, [1.0])
    late = int(graph.rows[np.argmax(np.diff(graph.rows))]) + 110
    spent[late] = 50.0
    assert leaps_of(graph, spent) == (1, False)
    whole = start_by_level(graph, spent, extrapolates=False)
    assert start_by_level(graph, spent).tolist() == whole.tolist()


def test_the_proof_refuses_what_begins_too_late():
    """A timeline with slack is no longest path, nor is one that begins before what it waits for has ended."""
    graph = GRAPHS["two stages"]
    run = topological_levels._Levels(graph, by_row(graph, [1.0]), extrapolates=False)
    run.run()
    assert run.is_proved()
    for shift in (0.5, -0.5):
        run.start[100] += shift
        assert not run.is_proved()
        run.start[100] -= shift
    run.finished[7] = False
    assert not run.is_proved()
