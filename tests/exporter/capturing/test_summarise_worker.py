"""The worker beside training: it takes what nobody wants, and a fiftieth of a core that others do."""

import os
import signal
import time
from pathlib import Path

import pytest

from exporter.capturing.summarise_worker import (
    BUSY_RATIO,
    SLICE_CPU_SECONDS,
    Governor,
    Spent,
    groups_by_sessions,
    niceness_of,
    pause_where_wanted,
    shares_group,
    spent,
)


class Core:
    """A processor with a share for the process, and the time; pauses are time that nobody has."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.now = Spent(0.0, 0.0, 100.0)
        self.governor = Governor(BUSY_RATIO, self.pause, lambda: self.now)

    def compute(self, cpu_s: float, *, blocked_s: float = 0.0) -> None:
        wall_s = cpu_s / self.share
        self.now = Spent(
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
def test_the_niceness_leaves_the_ratio_beside_a_busy_process(ratio, niceness):
    """Weights fall by a factor of 1.25 for each 1, as the kernel has them; within what it takes."""
    assert niceness_of(ratio) == niceness
    weight = 1.25**-niceness
    assert weight / (1 + weight) == pytest.approx(min(ratio, 0.5), rel=0.2) or niceness == 19


def test_time_that_nobody_wants_is_taken_whole():
    """A core of its own, and reading from a slow disk: nobody waits for the process, so it does not for them."""
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


def make_proc(root: Path, *, is_grouping: str = "1\n", **told: tuple[str, str]) -> Path:
    """Return a /proc of processes with their control group and session, and what it says of grouping by sessions."""
    for pid, (cgroup, session) in told.items():
        folder = root / pid.removeprefix("p")
        folder.mkdir()
        (folder / "cgroup").write_text(cgroup)
        (folder / "autogroup").write_text(session)
    if is_grouping:
        (root / "sys/kernel").mkdir(parents=True)
        (root / "sys/kernel/sched_autogroup_enabled").write_text(is_grouping)
    return root


@pytest.mark.parametrize("is_grouping", ["1\n", "0\n", ""])
@pytest.mark.parametrize(
    ("rank", "shares"),
    [
        (("0::/a\n", "/autogroup-7 nice 0\n"), True),
        (("0::/a\n", "/autogroup-7 nice 5\n"), True),
        (("0::/a\n", "/autogroup-8 nice 0\n"), False),
        (("0::/a\n", ""), False),
        (("0::/b\n", "/autogroup-7 nice 0\n"), False),
    ],
)
def test_a_priority_counts_within_a_group_only(tmp_path, rank, shares, is_grouping):
    """The same control group, and the same session where the kernel groups by them; who is not there shares nothing."""
    ours = ("0::/a\n", "/autogroup-7 nice 0\n")
    proc = make_proc(tmp_path, is_grouping=is_grouping, self=ours, p12=rank)
    assert shares_group(12, proc) == (shares if is_grouping == "1\n" else rank[0] == ours[0])
    assert not shares_group(13, proc)


def test_processes_of_no_session_of_their_own_share_one_group(tmp_path):
    """The kernel tells nothing of those that have been there since it began."""
    assert shares_group(12, make_proc(tmp_path, self=("0::/a\n", ""), p12=("0::/a\n", "")))


def test_a_process_of_a_session_of_its_own_is_another_group_here():
    """On this kernel, if it groups by sessions; ourselves are our own group anywhere."""
    assert shares_group(os.getpid())
    child = os.fork()
    if child == 0:
        os.setsid()
        os._exit(shares_group(os.getppid()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (not groups_by_sessions())


def test_pauses_are_switched_on_and_off():
    """By a timer of the process' own time."""
    child = os.fork()
    if child == 0:
        found = []
        for is_on in (True, False):
            pause_where_wanted(BUSY_RATIO, is_on=is_on)
            found.append(signal.getitimer(signal.ITIMER_PROF)[1] > 0)
        os._exit(found != [True, False])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
