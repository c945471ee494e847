"""What the pace rule of slow ranks changes: forecasts with it against every slow rank by itself.

With more than `SLOW_RANKS_EXACT` slow ranks, ranks that wait for each other in every pass go at the pace of their
slowest. `python -m benchmarks.simulator_cost` prints the largest differences over a few draws of slow ranks on 64 GPUs,
and into how many classes a thousand ranks at one speed and a hundred at unequal ones fall on 12,288.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from lockstep.simulator.hardware.cluster import Cluster
from lockstep.simulator.hardware.clusters import dgx_a100
from lockstep.simulator.models.transformers import gpt
from lockstep.simulator.simulate import SLOW_RANKS_EXACT, Options, compile_job, simulate
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule

EVERY_RANK = Options(slow_ranks_exact=1_000_000)
"""Each slow rank by itself, however many they are."""
EQUAL_SPEED = (0.8, 0.8)
_UNEQUAL_SPEEDS = (0.7, 0.95)
_SEEDS = (1, 2, 3)
_NODES = 8
_MODEL = gpt(layers=8, hidden=4096, heads=32, sequence=1024)
_BATCH, _MICRO_BATCHES = 512, 8
LAYOUTS = (Degrees(tp=8, pp=2, dp=4), Degrees(tp=4, cp=2, dp=8))
_LARGE = (gpt(layers=96, hidden=12288, heads=96, sequence=2048), Degrees(tp=8, pp=8, dp=192), 1536)


def with_slow_ranks(cluster: Cluster, count: int, *, speeds: tuple[float, float], seed: int = 1) -> Cluster:
    """Return the cluster with `count` ranks, drawn by `seed`, at shares of their speed between the two of `speeds`."""
    drawn = Random(seed)  # noqa: S311  (a benchmark)
    ranks = drawn.sample(range(cluster.size), count)
    return replace(cluster, speed={rank: drawn.uniform(*speeds) for rank in ranks})


def pace_differences(degrees: Degrees, seed: int) -> tuple[float, float, float]:
    """Return how much step, exposed communication and idle time differ by the pace rule, as shares of a step."""
    cluster = with_slow_ranks(dgx_a100(_NODES), SLOW_RANKS_EXACT + 4, speeds=_UNEQUAL_SPEEDS, seed=seed)
    tree = preset(_MODEL, degrees, Schedule(micro_batches=_MICRO_BATCHES))
    paced, each = (simulate(tree, cluster, batch=_BATCH, options=options) for options in (Options(), EVERY_RANK))
    step_s = each.step_seconds
    return (
        abs(paced.step_seconds - step_s) / step_s,
        abs(paced.communication_seconds.exposed - each.communication_seconds.exposed) / step_s,
        abs(paced.bubble_seconds - each.bubble_seconds) / step_s,
    )


def kinds_and_classes(count: int, *, speeds: tuple[float, float]) -> tuple[int, int]:
    """Return the kinds of slow ranks (their paces) and the classes of equal ranks, of 12,288 with `count` slow ones."""
    model, degrees, nodes = _LARGE
    cluster = with_slow_ranks(dgx_a100(nodes), count, speeds=speeds)
    tree = preset(model, degrees, Schedule(micro_batches=32))
    classes = compile_job(tree, cluster, batch=6144, options=Options()).classes
    return len({each.speed for each in classes} - {1.0}), len(classes)


def pace_lines() -> Iterator[str]:
    """Yield the differences by layout, then the classes."""
    for degrees in LAYOUTS:
        found = [pace_differences(degrees, seed) for seed in _SEEDS]
        step, exposed, idle = (max(column) for column in zip(*found, strict=True))
        layout = f"tp{degrees.tp} cp{degrees.cp} pp{degrees.pp} dp{degrees.dp}"
        yield (
            f"pace rule, {SLOW_RANKS_EXACT + 4} slow ranks of 64, {layout}: step within {step:.1e}, exposed"
            f" communication {exposed:.2%} and idle time {idle:.2%} of a step"
        )
    for count, speeds, name in ((1000, EQUAL_SPEED, "at 0.8"), (100, _UNEQUAL_SPEEDS, "at unequal speeds")):
        kinds, classes = kinds_and_classes(count, speeds=speeds)
        yield f"12,288 ranks, {count:,} of them {name}: {kinds} kinds of slow ranks, {classes} classes of ranks"
