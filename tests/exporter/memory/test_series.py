"""Steady growth is found, and nothing else is."""

import math
import random
from collections.abc import Callable

import pytest

from exporter.memory.series import MemorySeries, MemoryTrend

MIB = 1 << 20
BASE = 500 * MIB


def grown(size_of: Callable[[int], float], steps: int) -> tuple[int, MemoryTrend] | None:
    """Return the first step at which growth is known, and the growth."""
    series = MemorySeries()
    for step in range(steps):
        series.add(step, int(size_of(step)))
        if series.growth is not None:
            return step, series.growth
    return None


def leak(step: int, *, onset: int = 100, per_step: float = 5 * MIB) -> float:
    return BASE + per_step * max(step - onset, 0)


def test_five_mebibytes_a_step_are_known_within_fifty_steps():
    """Two looks at windows of 32 samples, the second a quarter of a window after the first."""
    found = grown(leak, 400)
    assert found is not None
    assert found[0] <= 150
    assert found[1].bytes_per_step == pytest.approx(5 * MIB)


@pytest.mark.parametrize("swing_mib", [100, 200])
@pytest.mark.parametrize("seed", range(5))
def test_swings_within_steps_hide_a_leak_for_no_more_than_200_steps(seed: int, swing_mib: int):
    """A CPU job allocates and frees memory within each step; the sample falls anywhere, and windows in every phase."""
    chance, onset = random.Random(seed), 100 + 13 * seed
    found = grown(lambda step: leak(step, onset=onset) + chance.uniform(0, swing_mib * MIB), 1000)
    assert found is not None
    assert found[0] <= onset + 200
    assert found[1].bytes_per_step == pytest.approx(5 * MIB, rel=0.5)


@pytest.mark.parametrize("phase", range(0, 60, 7))
def test_evaluations_that_fill_a_segment_hide_no_leak(phase: int):
    """Five steps of sixty hold 64 MiB more, and steps are so long that each has one sample."""
    found = grown(lambda step: leak(step) + 64 * MIB * ((step + phase) % 60 < 5), 400)
    assert found is not None
    assert found[0] <= 150
    assert found[1].bytes_per_step == pytest.approx(5 * MIB, rel=0.2)


def test_a_slow_leak_is_found_in_a_longer_window():
    """100 KiB a step are 3 MiB in the shortest window, which shows nothing, and 205 MiB in the third."""
    found = grown(lambda step: leak(step, onset=0, per_step=0.1 * MIB), 4000)
    assert found is not None
    assert found[1].bytes_per_step == pytest.approx(0.1 * MIB, rel=0.01)


@pytest.mark.parametrize(
    "size_of",
    [
        pytest.param(lambda step: BASE + 300 * MIB * (step > 500), id="one jump"),
        pytest.param(lambda step: BASE + 50 * MIB * min(step // 400, 6), id="fragmentation"),
        pytest.param(lambda step: BASE + 400 * MIB * (step % 500 > 450), id="evaluation"),
        pytest.param(lambda step: BASE + 900 * MIB * (step % 200 == 0), id="checkpoint"),
        pytest.param(lambda step: BASE + 800 * MIB * (1 - math.exp(-step / 20)), id="warm-up"),
        pytest.param(lambda step: BASE + 20 * MIB * math.sin(step / 7), id="waves"),
        pytest.param(lambda step: BASE - 5 * MIB * min(step, 90), id="shrinking"),
    ],
)
def test_what_is_no_growth(size_of: Callable[[int], float]):
    """Jumps, staircases, peaks and what levels off."""
    assert grown(size_of, 10_000) is None


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_no_growth(seed: int):
    """Sizes that are equally likely anywhere within 400 MiB: floors that rise come by chance, on a line and by so much they do not."""
    chance = random.Random(seed)
    assert grown(lambda _: BASE + chance.uniform(0, 400 * MIB), 50_000) is None


def test_floors_that_ascend_by_chance_are_no_growth():
    """Ten segments of noise in the order of their floors: rare, and daily in a large job."""
    chance = random.Random(0)
    for _ in range(200):
        segments = sorted(([chance.uniform(0, 400 * MIB) for _ in range(4)] for _ in range(10)), key=min)
        sizes = [BASE] * 20 + [BASE + size for segment in segments for size in segment] + [BASE]
        assert grown(lambda step, sizes=sizes: sizes[step], len(sizes)) is None


def test_samples_of_one_step_count_as_its_least():
    """A long step is looked at many times, somewhere in its peak."""
    series = MemorySeries()
    for step in range(200):
        for peak in (0, 300, 100):
            series.add(step, BASE + peak * MIB)
    slopes = [trend.bytes_per_step for trend in series.trends if trend is not None]
    assert slopes == [0.0, 0.0]


def test_growth_that_ends_is_growth_no_more():
    """A cache that has filled up."""
    series = MemorySeries()
    for step in range(200):
        series.add(step, int(leak(step, onset=0)))
    assert series.growth is not None
    for step in range(200, 5000):
        series.add(step, int(leak(200, onset=0)))
    assert series.growth is None
