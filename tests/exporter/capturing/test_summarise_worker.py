"""The worker during training: it takes what no one wants, and a fiftieth of a core that others do."""

import os
import signal
import time

import pytest

from exporter.capturing.worker_share import (
    BURST_SECONDS,
    BUSY_RATIO,
    SLICE_CPU_SECONDS,
    BurstBudget,
    CpuShare,
    CpuThrottle,
    ProcessorTimes,
    govern,
    niceness_of,
    spent,
)

LONG_RUN = CpuShare(burst_seconds=0.0)


class Core:
    """A processor with a share for the process, and the time; pauses are time that no one has."""

    def __init__(self, share: float, wanted: CpuShare = LONG_RUN) -> None:
        self.share = share
        self.now = ProcessorTimes(0.0, 0.0, 100.0)
        self.budget = BurstBudget(wanted)
        self.governor = CpuThrottle(wanted, self.budget, self.pause, lambda: self.now)

    def compute(self, cpu_s: float, *, blocked_s: float = 0.0) -> None:
        wall_s = cpu_s / self.share
        self.now = ProcessorTimes(
            self.now.cpu_s + cpu_s, self.now.waited_s + wall_s - cpu_s, self.now.clock_s + wall_s + blocked_s
        )
        self.governor.look()

    def pause(self, seconds: float) -> None:
        self.now = self.now._replace(clock_s=self.now.clock_s + seconds)


@pytest.mark.parametrize("share", [0.95, 0.5, 0.1, BUSY_RATIO, 0.014])
def test_a_core_that_others_want_gives_no_more_than_its_share(share):
    """Whatever a scheduler would grant: a group of one's own, a low priority, the lowest."""
    core = Core(share)
    for _ in range(50):
        core.compute(SLICE_CPU_SECONDS)
    found = core.now.cpu_s / (core.now.clock_s - 100.0)
    assert found == pytest.approx(share if share > 0.9 else min(share, BUSY_RATIO), rel=1e-6)


@pytest.mark.parametrize(("ratio", "niceness"), [(0.02, 17), (0.25, 5), (0.5, 0), (1.0, 0), (0.005, 19)])
def test_the_niceness_leaves_the_ratio_next_to_a_busy_process(ratio, niceness):
    """Weights fall by a factor of 1.25 for each 1, as the kernel has them; within what it takes."""
    assert niceness_of(ratio) == niceness
    weight = 1.25**-niceness
    assert weight / (1 + weight) == pytest.approx(min(ratio, 0.5), rel=0.2) or niceness == 19


def test_time_that_no_one_wants_is_taken_whole():
    """A core of its own, and reading from a slow disk: no one waits for the process, so it does not for them."""
    core = Core(1.0)
    for _ in range(10):
        core.compute(SLICE_CPU_SECONDS, blocked_s=0.5)
    assert core.now.clock_s - 100.0 == pytest.approx(10 * (SLICE_CPU_SECONDS + 0.5))


def test_one_pause_is_bounded():
    """However long a slice was: a call into a library that no signal interrupts."""
    core = Core(0.5)
    core.compute(60.0)
    assert core.now.clock_s - 100.0 == pytest.approx(125.0)


def test_what_a_process_has_spent_grows():
    """The kernel's counts, in seconds; a clock tick of 10 ms is the coarsest that kernels have."""
    before = spent()
    while time.process_time() < 0.05 or spent().cpu_s <= before.cpu_s:
        pass
    after = spent()
    assert 0 < after.cpu_s - before.cpu_s <= after.clock_s - before.clock_s + 0.02
    assert after.waited_s >= before.waited_s


def test_a_burst_is_faster_and_bounded():
    """Imports and traces of a capture take a quarter of a core until the budget is spent, then a fiftieth."""
    share = CpuShare(busy_ratio=0.02, burst_ratio=0.25, burst_seconds=1.0)
    core = Core(0.5, share)
    for _ in range(round(1.0 / SLICE_CPU_SECONDS)):
        core.compute(SLICE_CPU_SECONDS)
    assert core.now.clock_s - 100.0 == pytest.approx(1.0 / 0.25, rel=0.02)
    before_s = core.now.clock_s
    for _ in range(50):
        core.compute(SLICE_CPU_SECONDS)
    assert 50 * SLICE_CPU_SECONDS / (core.now.clock_s - before_s) == pytest.approx(0.02, rel=0.02)


def test_the_budget_fills_with_time_and_is_shared_with_forks():
    """Within any time T summaries take at most busy_ratio x T and the burst from training."""
    share, now = CpuShare(busy_ratio=0.02, burst_ratio=0.25, burst_seconds=6.0), [1000.0]
    budget = BurstBudget(share, lambda: now[0])
    child = os.fork()
    if child == 0:
        budget.spend(4.0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert budget.left_s == pytest.approx(2.0)
    now[0] += 50.0
    budget.refill()
    assert budget.left_s == pytest.approx(3.0)
    now[0] += 3600.0
    budget.refill()
    assert budget.left_s == 6.0
    budget.spend(7.0)
    assert budget.left_s == 0.0


def test_time_that_no_one_wants_costs_no_budget():
    """Only what training may lose is counted."""
    core = Core(1.0, CpuShare())
    for _ in range(10):
        core.compute(SLICE_CPU_SECONDS)
    assert core.budget.left_s == BURST_SECONDS


def test_a_process_looks_after_each_slice():
    """By a timer of the process' own time."""
    child = os.fork()
    if child == 0:
        govern(CpuShare(), BurstBudget(CpuShare()))
        os._exit(signal.getitimer(signal.ITIMER_PROF)[1] != SLICE_CPU_SECONDS)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
