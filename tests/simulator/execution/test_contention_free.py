"""The first moment of contention on a contention-free timeline."""

import numpy as np
import pytest

from lockstep.simulator.execution.contention_free import NEVER, first_compute_overlap, longest_path
from lockstep.simulator.execution.executor import execute
from lockstep.simulator.hardware.clusters import dgx_a100
from lockstep.simulator.lowering.graph import GRADIENT
from lockstep.simulator.models.transformers import gpt
from lockstep.simulator.simulate import Options, compile_job
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule
from tests.simulator.jobs import computations, flow, graph


@pytest.mark.parametrize(
    ("begins", "ends", "first"),
    [
        (3.0, 4.0, NEVER),  # after all computations
        (0.5, 4.0, 0.5),  # during the first
        (2.0, 4.0, 2.5),  # between two: the next meets it
        (2.0, 2.5, NEVER),  # between two, whole
        (2.0, 2.0, NEVER),  # of no length
    ],
)
def test_overlap_is_of_a_computation_and_a_gradient(begins, ends, first):
    """Computations that follow each other up to a rounding error overlap nothing but gradients."""
    of = graph([*computations(1.0, 1.0, 0.5), (GRADIENT, 1.0, flow(0))])
    start = np.array([0.0, 1.0 - 1e-15, 2.5, begins])
    end = np.array([1.0, 2.0, 3.0, ends])
    assert first_compute_overlap(of, start, end) == first


def test_a_long_pipeline_is_settled_up_to_its_first_gradient():
    """The longest path times all passes before gradients are sent; events decide the end of the step alone."""
    tree = preset(
        gpt(layers=8, hidden=4096, heads=32, sequence=2048), Degrees(tp=8, pp=8, dp=2), Schedule(micro_batches=600)
    )
    job = compile_job(tree, dgx_a100(16), batch=1200, options=Options())
    start, _, _ = longest_path(job.graph)
    timeline = execute(job.graph, overlap_factor=job.device.overlap_factor)
    before = start < start[job.graph.queue == GRADIENT].min()
    assert timeline.settled >= np.count_nonzero(before) > 0.9 * len(start)
