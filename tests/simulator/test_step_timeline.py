"""A timeline as rows and lanes: it holds what the forecast counts, and nothing overlaps."""

import pytest

from lockstep.simulator import step_timeline
from lockstep.simulator.spec import load_spec
from lockstep.simulator.step_timeline import simulated_timeline

HEAD = "model: {type: gpt, layers: 8, hidden: 512, heads: 8, sequence: 256, vocabulary: 1024}\nbatch: 32\n"
JOBS = {
    "data parallel": "strategy: {dp: 16}\ncluster: {preset: HC2}\n",
    "pipeline": "strategy: {tp: 2, pp: 4, dp: 2, micro_batches: 8}\ncluster: {preset: HC2}\n",
    "whole nodes": "strategy: {tp: 8, pp: 2, micro_batches: 8}\ncluster: {preset: HC2}\n",
    "interleaved": "strategy: {tp: 2, pp: 2, virtual: 2, dp: 4, micro_batches: 4}\ncluster: {preset: HC2}\n",
    "gpipe, ZeRO": "strategy: {pp: 2, dp: 8, zero: 3, micro_batches: 4, schedule: gpipe}\ncluster: {preset: HC2}\n",
    "sick": "strategy: {tp: 4, pp: 2, dp: 2, micro_batches: 4}\n"
    "cluster: {preset: HC2, health: {links: {network/1: 0.5}, ranks: {3: 0.5}}}\n",
}


@pytest.fixture(params=JOBS.values(), ids=JOBS)
def spec(request):
    return load_spec(HEAD + request.param, "job")


def lasting(row, queue):
    return sum(span.end_s - span.start_s for lane in row.lanes if lane.queue == queue for span in lane.spans)


def test_the_rows_hold_what_the_forecast_counts(spec):
    """Weighed by their ranks, computation and communication of the rows are the forecast's."""
    rows, step_s = simulated_timeline(spec)
    found = spec.forecast()
    assert step_s == found.step_seconds
    ranks = sum(row.ranks for row in rows)
    assert ranks == spec.degrees.ranks
    moving = sum(row.ranks * sum(lasting(row, queue) for queue in ("feature", "gradient", "send")) for row in rows)
    assert moving / ranks == pytest.approx(found.communication_seconds.total)
    computing = sum(row.ranks * lasting(row, "compute") for row in rows) / ranks
    counted = found.step_seconds - found.communication_seconds.exposed - found.bubble_seconds
    assert computing == pytest.approx(counted)


def test_spans_of_a_lane_are_in_order(spec):
    """No span of a lane begins before the one before has ended, and none lies outside the step."""
    rows, step_s = simulated_timeline(spec)
    for lane in (lane for row in rows for lane in row.lanes):
        ends = [0.0, *(span.end_s for span in lane.spans)]
        assert all(span.start_s >= before - 1e-12 for span, before in zip(lane.spans, ends[:-1], strict=True))
        assert ends[-1] <= step_s + 1e-12


def test_every_pass_is_there(spec):
    """Each row computes every micro-batch forward and backward in each of its chunks, and the optimizer last."""
    rows, _ = simulated_timeline(spec)
    expected = {
        (name, micro, chunk)
        for name in ("forward", "backward")
        for micro in range(spec.schedule.micro_batches)
        for chunk in range(spec.degrees.virtual)
    }
    for row in rows:
        spans = row.lanes[0].spans
        assert {(span.name, span.micro_batch, span.chunk) for span in spans if span.name != "optimizer"} == expected
        assert spans[-1].name == "optimizer"


def test_sick_ranks_have_rows_of_their_own():
    """A slow rank is a row, named and slower; rows are in the order of stages and ranks."""
    rows, _ = simulated_timeline(load_spec(HEAD + JOBS["sick"], "job"))
    slow = [row for row in rows if row.speed < 1]
    assert [(row.first_rank, row.ranks, row.speed) for row in slow] == [(3, 1, 0.5)]
    assert [(row.stage, row.first_rank) for row in rows] == sorted((row.stage, row.first_rank) for row in rows)


def test_large_jobs_keep_their_passes_whole(monkeypatch):
    """Beyond a number of parts a pass is one span, as long as its parts are together."""
    spec = load_spec(HEAD + JOBS["whole nodes"], "job")
    opened, _ = simulated_timeline(spec)
    monkeypatch.setattr(step_timeline, "_OPENED_MAX", 10)
    whole, _ = simulated_timeline(spec)
    for one, other in zip(opened, whole, strict=True):
        assert len(other.lanes[0].spans) < len(one.lanes[0].spans)
        ends = [max(span.end_s for span in row.lanes[0].spans) for row in (one, other)]
        assert ends[0] == pytest.approx(ends[1])
