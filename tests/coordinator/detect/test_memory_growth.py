"""Memory that grows on one rank is named, what grows on all is reported as far as it can be foreseen to end the run."""

import math
import random
from functools import partial

import pytest

from coordinator.detect.anomalies import Anomaly
from coordinator.detect.memory_growth import MemoryGrowthTest
from coordinator.settings.run_policy import MemoryPolicy
from lockstep.contracts.memory_report import DEVICE, HOST, WORKERS
from tests.support.memory_reports import BASE, GIB, MIB, ReportedRanks, flat, leak

POLICY = MemoryPolicy()
STEP_S = 0.1


def found(ranks: ReportedRanks, steps: int, *, nodes: dict[int, str] | None = None) -> tuple[int, Anomaly] | None:
    """Return the first report, every 10 steps, with an anomaly."""
    test = MemoryGrowthTest()
    for _ in range(steps // 10):
        ranks.advance(10)
        test.add(ranks.reports())
        if test.is_due:
            anomalies = test.find(nodes or {}, STEP_S, POLICY)
            if anomalies:
                assert len(anomalies) == 1
                return ranks.step, anomalies[0]
    return None


@pytest.mark.parametrize(
    ("part", "cause"), [(HOST, "host_memory"), (WORKERS, "worker_memory"), (DEVICE, "device_memory")]
)
def test_a_leak_of_five_mebibytes_a_step_on_one_of_four_is_named_within_200_steps(part: str, cause: str):
    """Rank, part, slope and forecast."""
    reported = found(ReportedRanks({0: flat, 1: flat, 2: leak, 3: flat}, part=part, limit_bytes=8 * GIB), 400)
    assert reported is not None
    step, anomaly = reported
    assert step <= 300  # the leak begins at step 100
    assert (anomaly.kind, anomaly.cause, anomaly.scope, anomaly.ranks) == ("memory_growth", cause, "rank", (2,))
    assert anomaly.numbers["bytes_per_step"] == pytest.approx(5 * MIB)
    assert 50 <= anomaly.onset_step <= 150
    assert anomaly.numbers["remaining_seconds"] == pytest.approx(anomaly.numbers["remaining_steps"] * STEP_S)


def test_ranks_of_a_node_share_its_limit():
    """Two of them leak: the room is gone in half the steps; one on another node has its own."""
    sizes = {0: leak, 1: leak, 2: leak, 3: flat, 4: flat, 5: flat, 6: flat}
    ranks = ReportedRanks(sizes, available_bytes=10 * GIB)
    reported = found(ranks, 400, nodes={0: "a", 1: "a", 2: "b"})
    assert reported is not None
    assert reported[1].ranks == (0, 1, 2)
    assert reported[1].numbers["remaining_steps"] == pytest.approx(10 * GIB / (10 * MIB))


@pytest.mark.parametrize("tau", [20, 50, 100, 200, 500, 2000])
def test_warm_up_that_all_ranks_share_is_no_growth(tau: int):
    """Allocators and caches fill up, a few steps earlier and faster here than there."""

    def filling(step: int, *, lag: int, size: float) -> float:
        return BASE + size * MIB * (1 - math.exp(-max(step - lag, 0) / tau))

    sizes = {rank: partial(filling, lag=3 * rank, size=800 + 40 * rank) for rank in range(4)}
    assert found(ReportedRanks(sizes), 4000) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_job_that_swings_is_silent(seed: int):
    """Four ranks, each with its own noise, evaluations and fragmentation."""
    chance = random.Random(seed)

    def healthy(step: int, *, rank: int) -> float:
        evaluation = 300 * MIB * (step % 400 > 380)
        fragments = 20 * MIB * min(step // (300 + 50 * rank), 5)
        return BASE + evaluation + fragments + chance.uniform(0, 100 * MIB)

    sizes = {rank: partial(healthy, rank=rank) for rank in range(4)}
    assert found(ReportedRanks(sizes), 5000) is None


def test_growth_of_all_ranks_is_reported_once_its_end_is_near():
    """A slow leak far from the limit may be a cache; within ten times the window it is not left to that."""
    far = ReportedRanks(dict.fromkeys(range(4), leak), available_bytes=64 * GIB, limit_bytes=128 * GIB)
    assert found(far, 400) is None
    near = ReportedRanks(dict.fromkeys(range(4), leak), available_bytes=4 * GIB, limit_bytes=8 * GIB)
    reported = found(near, 400)
    assert reported is not None
    assert (reported[1].scope, reported[1].ranks) == ("job", ())


def test_a_rank_alone_has_no_peers():
    """It is reported as a job is: once its end is near."""
    assert found(ReportedRanks({0: leak}), 400) is None
    assert found(ReportedRanks({0: leak}, available_bytes=GIB), 400) is not None


def test_a_forecast_needs_a_limit():
    """Control groups and host could not be read: the leak is named all the same."""
    ranks = ReportedRanks({0: flat, 1: flat, 2: leak, 3: flat}, part=DEVICE, limit_bytes=0)
    reported = found(ranks, 400)
    assert reported is not None
    assert reported[1].numbers["remaining_steps"] == 0.0


def test_what_was_not_reported_of_late_is_not_evaluated_again():
    """A look is due after reports that show growth, and once after it has ended."""
    test = MemoryGrowthTest()
    ranks = ReportedRanks({0: flat, 1: flat, 2: leak, 3: flat})
    ranks.advance(30)
    test.add(ranks.reports())
    assert not test.is_due
    ranks.advance(170)
    test.add(ranks.reports())
    assert test.is_due
    assert test.find({}, STEP_S, POLICY)
    assert not test.is_due
    test.forget()
    assert test.is_due
    assert test.find({}, STEP_S, POLICY) == ()
    assert not test.is_due
