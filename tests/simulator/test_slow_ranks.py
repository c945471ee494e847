"""Many slow ranks: ranks that wait for each other in every pass go at the pace of their slowest, and cost little."""

import random

import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.simulator.hardware.clusters import dgx_a100
from lockstep.simulator.models.transformers import gpt
from lockstep.simulator.simulate import SLOW_RANKS_EXACT, Options, simulate
from lockstep.simulator.spec import load_spec
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule

MODEL = gpt(layers=8, hidden=4096, heads=32, sequence=1024)
EACH = Options(slow_ranks_exact=1_000_000)
LARGE = """\
model: {{type: gpt, layers: 96, hidden: 12288, heads: 96, sequence: 2048}}
batch: 6144
strategy: {{tp: 8, pp: 8, dp: 192, micro_batches: 32}}
cluster: {{preset: DGX A100, nodes: 1536, health: {{ranks: {{{ranks}}}}}}}
"""


def slow(cluster, count, seed=1):
    """Return the cluster with so many ranks at unequal speeds."""
    drawn = random.Random(seed)
    for rank in drawn.sample(range(cluster.size), count):
        cluster = cluster.with_rank(rank, drawn.uniform(0.7, 0.95))
    return cluster


def forecasts(degrees, cluster):
    tree = preset(MODEL, degrees, Schedule(micro_batches=8))
    return [simulate(tree, cluster, batch=512, options=options) for options in (Options(), EACH)]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("degrees", [Degrees(tp=8, pp=2, dp=4), Degrees(tp=4, cp=2, dp=8)], ids=str)
def test_ranks_in_lockstep_go_at_the_pace_of_their_slowest(degrees, seed):
    """The step is that of every slow rank by itself to 5e-4, its parts to 1e-2 of a step, in fewer operations."""
    cluster = slow(dgx_a100(8), SLOW_RANKS_EXACT + 4, seed)
    quick, each = forecasts(degrees, cluster)
    assert quick.step_seconds == pytest.approx(each.step_seconds, rel=5e-4)
    assert quick.communication_seconds.exposed == pytest.approx(
        each.communication_seconds.exposed, abs=1e-2 * each.step_seconds
    )
    assert quick.bubble_seconds == pytest.approx(each.bubble_seconds, abs=1e-2 * each.step_seconds)
    assert quick.operations < each.operations


@pytest.mark.parametrize(
    ("degrees", "count"), [(Degrees(dp=64), SLOW_RANKS_EXACT + 4), (Degrees(tp=8, pp=2, dp=4), SLOW_RANKS_EXACT)]
)
def test_few_slow_ranks_and_data_parallel_ones_are_simulated_each(degrees, count):
    """Where ranks meet at the end of a step only, and up to the limit, nothing is taken together."""
    quick, each = forecasts(degrees, slow(dgx_a100(8), count))
    assert quick == each


def test_a_thousand_equally_slow_ranks_are_one_kind():
    """They are accepted with a large job; where they make a thousand pipelines of their own they are refused."""
    ranks = ", ".join(f"{rank}: 0.8" for rank in random.Random(1).sample(range(12288), 1000))
    assert len(load_spec(LARGE.format(ranks=ranks), "x").cluster.speed) == 1000
    apart = LARGE.replace("tp: 8, pp: 8, dp: 192", "tp: 1, pp: 8, dp: 1536").replace("batch: 6144", "batch: 49152")
    with pytest.raises(MalformedError, match="1001 kinds of ranks"):
        load_spec(apart.format(ranks=ranks), "x")
