"""The longest path of pipelines, level by level."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.simulator.execution.topological_levels import start_by_level
from lockstep.simulator.simulate import Options, compile_job
from lockstep.simulator.strategy.schedule import Schedule
from tests.simulator.jobs import flat, uniform


def pipeline(stages, micro_batches, *, virtual=1, order="1f1b"):
    """Return the graph of a pipeline of equal stages."""
    tree = uniform(stages, Schedule(micro_batches=micro_batches, order=order), virtual=virtual)
    return compile_job(tree, flat(stages), batch=micro_batches, options=Options()).graph


GRAPHS = {
    "1F1B": pipeline(4, 120),
    "GPipe": pipeline(3, 100, order="gpipe"),
    "interleaved": pipeline(3, 60, virtual=2),
}


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(sorted(GRAPHS)),
    st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0, 1.7, 2.0, 40.0]), min_size=1, max_size=24),
)
def test_every_operation_starts_when_the_last_that_it_waits_for_ends(name, durations):
    """Operations of any durations: that is true of the longest path and of nothing else."""
    graph = GRAPHS[name]
    spent = np.resize(np.array(durations), len(graph))
    start = start_by_level(graph, spent)
    due = np.zeros(len(graph))
    sources = np.repeat(np.arange(len(graph)), np.diff(graph.first_successor))
    np.maximum.at(due, graph.successors, (start + spent)[sources])
    assert start == pytest.approx(due, rel=1e-12)
