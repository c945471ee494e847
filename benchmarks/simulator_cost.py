"""What a forecast costs on one core: `python -m benchmarks.simulator_cost`.

Each case is compiled and run from nothing but the model, as a user would ask: tree, graph, timeline, forecast, and
nothing kept from the round before. Prints the best and the median of a few rounds with the budget, and Proteus's
published time where there is one (table VI, seconds of compiling and executing on 32 GPUs). Then what a thousand
what-ifs on one job take, of every kind in turn, and what the pace rule of slow ranks changes (`simulator_pace`). Exit
status 1: a best, or the what-ifs, above twice the budget, which is no noise.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

from benchmarks.simulator_pace import EQUAL_SPEED, pace_lines, with_slow_ranks
from lockstep.simulator.hardware import symmetry
from lockstep.simulator.hardware.cluster import Cluster
from lockstep.simulator.hardware.clusters import dgx_a100, hc2
from lockstep.simulator.lowering import group_topology, plan
from lockstep.simulator.models.model import FULL, ModelSpec
from lockstep.simulator.models.transformers import gpt
from lockstep.simulator.models.vision import vgg19
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule
from lockstep.simulator.strategy.tree import StrategyTree

ROUNDS = 7
WHAT_IFS = 1000
CHANGES = ("degrees", "batch", "micro-batches", "bucket", "card", "port", "rank")
WHAT_IFS_BUDGET_S = 20.0
MARGIN = 2.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One forecast: what is trained how, on how many nodes of which cluster, and what it may cost.

    So many `slow_ranks`, drawn by a seed, have a share of their speed left between the two of `speeds`.
    """

    name: str
    model: ModelSpec
    degrees: Degrees
    micro_batches: int
    batch: int
    cluster: Callable[[int], Cluster]
    nodes: int
    budget_ms: float
    proteus_s: float | None = None
    slow_ranks: int = 0
    speeds: tuple[float, float] = (0.7, 0.99)


_GPT2 = gpt(layers=12, hidden=768, heads=12, sequence=1024, vocabulary=50257, precision=FULL)
_GPT_175B = gpt(layers=96, hidden=12288, heads=96, sequence=2048)
_GPT_1T = gpt(layers=128, hidden=25600, heads=160, sequence=2048)
_MEGATRON = Degrees(tp=8, pp=8, dp=192)

_DGX = Case(
    name="175B, 12,288 GPUs, TP8 PP8 DP192, m=32",
    model=_GPT_175B,
    degrees=_MEGATRON,
    micro_batches=32,
    batch=6144,
    cluster=dgx_a100,
    nodes=1536,
    budget_ms=50,
)

CASES = (
    Case(
        name="VGG19, 32 GPUs, DP",
        model=vgg19(),
        degrees=Degrees(dp=32),
        micro_batches=1,
        batch=1024,
        cluster=hc2,
        nodes=4,
        budget_ms=10,
        proteus_s=1.698,
    ),
    Case(
        name="GPT-2, 32 GPUs, DP",
        model=_GPT2,
        degrees=Degrees(dp=32),
        micro_batches=1,
        batch=128,
        cluster=hc2,
        nodes=4,
        budget_ms=20,
        proteus_s=6.265,
    ),
    _DGX,
    replace(_DGX, name="the same with 100 unequal slow ranks", budget_ms=500, slow_ranks=100),
    replace(_DGX, name="the same with 1,000 ranks at 0.8", budget_ms=1000, slow_ranks=1000, speeds=EQUAL_SPEED),
    Case(
        name="1T, 3,072 GPUs, TP8 PP64 DP6, m=512",
        model=_GPT_1T,
        degrees=Degrees(tp=8, pp=64, dp=6),
        micro_batches=512,
        batch=3072,
        cluster=dgx_a100,
        nodes=384,
        budget_ms=300,
    ),
)


def forecast_ms(case: Case) -> float:
    """Return what one forecast of `case` takes, in ms of processor time, which other processes do not add to."""
    group_topology.clear_cache()
    plan.clear_cache()
    symmetry.clear_cache()
    model = replace(case.model)  # the same, without what it has worked out before
    cluster = with_slow_ranks(case.cluster(case.nodes), case.slow_ranks, speeds=case.speeds)
    begin = time.process_time()
    tree = preset(model, case.degrees, Schedule(micro_batches=case.micro_batches))
    simulate(tree, cluster, batch=case.batch)
    return (time.process_time() - begin) * 1e3


def what_ifs() -> Iterator[tuple[StrategyTree, Cluster, int, Options]]:
    """Yield alternatives without end: another way to divide each time, with one change of `CHANGES`."""
    cluster, model = dgx_a100(32), gpt(layers=48, hidden=6144, heads=64, sequence=2048)
    ways = [Degrees(tp=tp, pp=pp, dp=cluster.size // (tp * pp)) for tp in (2, 4, 8) for pp in (1, 2, 4, 8)]
    for number in count():
        way, change = ways[number % len(ways)], CHANGES[number // len(ways) % len(CHANGES)]
        micro_batches = 16 if change == "micro-batches" else 8
        samples = 2 if change == "batch" else 1
        tree = preset(model, way, Schedule(micro_batches=micro_batches))
        hurt = {
            "card": cluster.with_link(1, number % 32, 0.5),
            "port": cluster.with_link(0, number % 256, 0.5),
            "rank": cluster.with_rank(number % 256, 0.9),
        }.get(change, cluster)
        options = Options(bucket_bytes=100e6) if change == "bucket" else Options()
        yield tree, hurt, samples * micro_batches * way.dp, options


def what_ifs_s() -> float:
    """Return what `WHAT_IFS` alternatives take, in s of processor time, trees included."""
    begin = time.process_time()
    for tree, cluster, batch, options in islice(what_ifs(), WHAT_IFS):
        simulate(tree, cluster, batch=batch, options=options)
    return time.process_time() - begin


def main() -> int:
    """Print the table; return 1 where a case is beyond the margin of its budget."""
    over = False
    print(f"{'case':<40} {'best ms':>8} {'median':>8} {'budget':>7} {'Proteus s':>10} {'faster':>8}")
    for case in CASES:
        forecast_ms(case)
        spent = [forecast_ms(case) for _ in range(ROUNDS)]
        best = min(spent)
        over |= best > MARGIN * case.budget_ms
        published, faster = "-", "-"
        if case.proteus_s is not None:
            published, faster = f"{case.proteus_s:.3f}", f"{case.proteus_s * 1e3 / best:.0f} x"
        print(
            f"{case.name:<40} {best:>8.1f} {statistics.median(spent):>8.1f} {case.budget_ms:>7.0f}"
            f" {published:>10} {faster:>8}"
        )
    spent_s = what_ifs_s()
    print(f"{WHAT_IFS:,} what-ifs on 256 GPUs: {spent_s:.1f} s, budget {WHAT_IFS_BUDGET_S:.0f} s")
    for line in pace_lines():
        print(line, flush=True)
    return int(over or spent_s > MARGIN * WHAT_IFS_BUDGET_S)


if __name__ == "__main__":
    sys.exit(main())
