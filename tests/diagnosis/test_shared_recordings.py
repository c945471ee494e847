"""A real 4-rank job, rank 2 slow in forward, and the same job healthy."""

import itertools

import pytest

from lockstep.diagnosis.diagnose import diagnose
from lockstep.trace.summarise import summarise_trace
from tests.trace.traces import SHARED

pytestmark = pytest.mark.shared


@pytest.fixture(scope="module")
def ranks():
    """Return the summaries of the job with the slow rank."""
    folder = SHARED / "torch_cpu" / "slow_forward_rank2_with_stack"
    return [
        summarise_trace(folder / f"rank{rank}.json.gz", run="r", node="n", rank=rank, request_id=1, steps=2)
        for rank in range(4)
    ]


@pytest.mark.parametrize(
    "peers", [each for size in (1, 2, 3) for each in itertools.combinations((0, 1, 3), size)], ids=str
)
def test_the_slow_forward_is_found_against_any_peers(ranks, peers):
    """Whichever healthy ranks were captured, the function and the sleep in it are named with high confidence."""
    found = diagnose(
        cause="compute",
        suspect=ranks[2],
        peers=[ranks[peer] for peer in peers],
        step_seconds=0.085,
        excess_seconds=0.03,
    )
    assert found.function == "train.py(20): forward"
    assert found.operator == "<built-in function sleep>"
    assert found.confidence == "high"
    assert any(
        each.startswith("rank 2 waits 27.2 ms a step for collectives") and "the others wait" in each
        for each in found.evidence
    )


@pytest.mark.parametrize("suspect", [0, 1, 3])
def test_a_healthy_rank_is_not_diagnosed_against_the_slow_one(ranks, suspect):
    """A rank that is as fast as the others has no function that holds 30 ms, or none with confidence."""
    others = [rank for rank in ranks if rank.rank != suspect]
    found = diagnose(cause="compute", suspect=ranks[suspect], peers=others, step_seconds=0.085, excess_seconds=0.03)
    assert found.confidence != "high"
