"""How many steps a leak of 5 MiB a step on one of four ranks needs until it is named, by how far memory swings.

Each rank's memory swings within every step, and the sample falls anywhere in it. Leaks begin at another step for each
seed, so that windows meet them in every phase. Healthy ranks swing alike, with evaluations and fragmentation on top.

    python -m benchmarks.memory_growth            the table of docs/detection.md
    python -m benchmarks.memory_growth --check    fails where a leak needs over 200 steps, or a healthy job is named
    python -m benchmarks.memory_growth --chance   how often floors of pure noise rise, and how many of those pass
"""

import argparse
import random
from collections.abc import Callable
from functools import partial
from statistics import median

from coordinator.detect.memory_growth import MemoryGrowthTest
from coordinator.settings.run_policy import MemoryPolicy
from exporter.memory.series import LOOK, SAMPLES, SEGMENTS, Sample, rises, trend_of
from tests.support.memory_reports import MIB, ReportedRanks, flat, leak

SWINGS_MIB = (0, 50, 100, 200)
SEEDS = 20
STEPS_MAX = 200
LOOKS, RISING_LOOKS, NOISE_MIB = 400_000, 60_000, 1_000
SEGMENTS_NEW = LOOK * SEGMENTS // SAMPLES  # segments by which a look is later than the one before
_LEAKING, _RANKS = 2, 4
_LEAK_STEPS, _HEALTHY_STEPS = 800, 10_000
_REPORT_STEPS = 5
_STEP_S = 0.1


def steps_to_leak(swing_mib: int, seed: int) -> int | None:
    """Return the steps from the onset of a leak to its finding, None where it is not named, or another rank is."""
    onset = 100 + 13 * seed
    chance = random.Random(seed)  # noqa: S311  (a benchmark's swings)

    def size(step: int, *, rank: int) -> float:
        base = leak(step, onset=onset) if rank == _LEAKING else flat(step)
        return base + chance.uniform(0, swing_mib * MIB)

    found = _first_finding(size, onset + _LEAK_STEPS)
    return found[0] - onset if found is not None and found[1] == (_LEAKING,) else None


def healthy_finding(swing_mib: int, seed: int) -> tuple[int, tuple[int, ...]] | None:
    """Return the step and ranks of a false finding in a job without a leak, None where there is none."""
    chance = random.Random(1000 + seed)  # noqa: S311

    def size(step: int, *, rank: int) -> float:
        evaluation = 300 * MIB * (step % 400 > 380)
        fragments = 20 * MIB * min(step // (300 + 50 * rank), 5)
        return flat(step) + evaluation + fragments + chance.uniform(0, swing_mib * MIB)

    return _first_finding(size, _HEALTHY_STEPS)


def _first_finding(size: Callable[..., float], steps: int) -> tuple[int, tuple[int, ...]] | None:
    ranks = ReportedRanks({rank: partial(size, rank=rank) for rank in range(_RANKS)})
    test, policy = MemoryGrowthTest(), MemoryPolicy()
    for _ in range(steps // _REPORT_STEPS):
        ranks.advance(_REPORT_STEPS)
        test.add(ranks.reports())
        findings = test.find({}, _STEP_S, policy) if test.is_due else ()
        if findings:
            return ranks.step, findings[0].ranks
    return None


def print_chance() -> None:
    """Print how often floors of noise rise, and how many of those looks pass."""
    chance = random.Random(1)  # noqa: S311
    twice = sum(_rises_twice([(at, chance.randrange(1 << 40)) for at in range(SEGMENTS + 2)]) for _ in range(LOOKS))
    print(f"floors of noise rise in two looks in a row in {twice} of {LOOKS:,}")
    passed = sum(trend_of(_rising_noise(chance)).is_steady for _ in range(RISING_LOOKS))
    print(f"of {RISING_LOOKS:,} looks at noise whose floors rise, {passed} are steady growth")


def _rises_twice(floors: list[Sample]) -> bool:
    return all(rises(floors[at : at + SEGMENTS]) for at in (0, SEGMENTS_NEW))


def _rising_noise(chance: random.Random) -> list[Sample]:
    """Return a window of noise in the order of its floors but for one segment, which is moved until they still rise."""
    size = SAMPLES // SEGMENTS
    while True:
        segments = sorted(([chance.uniform(0, NOISE_MIB * MIB) for _ in range(size)] for _ in range(SEGMENTS)), key=min)
        segments.insert(chance.randrange(SEGMENTS), segments.pop(chance.randrange(SEGMENTS)))
        if rises([(at, int(min(segment))) for at, segment in enumerate(segments)]):
            return list(enumerate(int(100 * MIB + size) for segment in segments for size in segment))


def main() -> int:
    """Print the table; with --check, return 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a bound is missed")
    parser.add_argument("--chance", action="store_true", help="print how often floors of pure noise rise and pass")
    arguments = parser.parse_args()
    if arguments.chance:
        print_chance()
        return 0
    print(f"| swings within a step | median steps | most steps | within {STEPS_MAX} steps | false in healthy jobs |")
    print("|---|---|---|---|---|")
    missed = 0
    for swing_mib in SWINGS_MIB:
        steps = [steps_to_leak(swing_mib, seed) for seed in range(SEEDS)]
        known = [each for each in steps if each is not None]
        false = sum(healthy_finding(swing_mib, seed) is not None for seed in range(SEEDS))
        in_time = sum(each <= STEPS_MAX for each in known)
        missed += (SEEDS - in_time) + false
        middle, most = (f"{median(known):.0f}", str(max(known))) if len(known) == SEEDS else ("-", "not all found")
        print(f"| {swing_mib} MiB | {middle} | {most} | {in_time} of {SEEDS} | {false} of {SEEDS} |", flush=True)
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
