"""How processes end, watched by a process that is not their parent."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exporter.reading.endings import ProcessEndWatcher
from lockstep.contracts.messages import EXIT_CODE, SIGNAL, VANISHED

PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.read(1)          # it runs
print(child.pid, flush=True)
sys.stdin.readline()          # the watch is in place: let the child go on
child.stdin.close()
sys.argv[2] == "wait" and child.wait()
print("waited", flush=True)
sys.stdin.readline()
"""
WAIT = "import sys; print(flush=True); sys.stdin.read(); "


class Family:
    """A parent and its child, which goes on when `release` is called."""

    def __init__(self, code, *, waits):
        command = [sys.executable, "-c", PARENT, WAIT + code, "wait" if waits else "leave"]
        self._parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.child = int(self._parent.stdout.readline())

    def release(self):
        self._parent.stdin.write("\n")
        self._parent.stdin.flush()
        assert self._parent.stdout.readline() == "waited\n"

    def end(self):
        self._parent.communicate("\n")


@pytest.fixture
def family():
    made = []

    def make(code, *, waits=False):
        made.append(Family(code, waits=waits))
        return made[-1]

    yield make
    for each in made:
        each.end()


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def has_ended(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


ENDS = {
    "sys.exit(0)": None,
    "sys.exit(3)": (EXIT_CODE, 3),
    "import os; os._exit(7)": (EXIT_CODE, 7),
    "raise ValueError": (EXIT_CODE, 1),
    "import os; os.kill(os.getpid(), 9)": (SIGNAL, signal.SIGKILL),
    "import os; os.kill(os.getpid(), 15)": (SIGNAL, signal.SIGTERM),
    "import os; os.abort()": (SIGNAL, signal.SIGABRT),
}


@pytest.mark.parametrize(("code", "expected"), ENDS.items(), ids=ENDS)
def test_a_process_whose_parent_has_not_waited_yet(family, code, expected):
    """Its line in /proc shows how it ended."""
    before_ns = time.time_ns()
    one, watch = family(code), ProcessEndWatcher()
    watch.watch("a", one.child)
    assert watch.is_watched("a")
    one.release()
    until(lambda: not watch.is_watched("a"))
    ending = watch.ending("a", 7)
    assert (None if ending is None else (ending.kind, ending.code)) == expected
    assert ending is None or before_ns <= ending.unix_ns <= time.time_ns()
    assert ending is None or not ending.is_out_of_memory


def test_the_loop_sees_the_end_at_once(family):
    """Nothing has to look: torchrun waits for its ranks ten times a second, and the line in /proc is gone then."""

    async def run():
        watch = ProcessEndWatcher()
        one = family("sys.exit(5)")
        before = descriptors()
        watch.watch("a", one.child)
        await asyncio.to_thread(one.release)
        async with asyncio.timeout(60):
            while descriptors() > before:  # noqa: ASYNC110  (the loop closes the process's descriptor then)
                await asyncio.sleep(0.005)
        return watch.ending("a", 7)

    ending = asyncio.run(run())
    assert (ending.kind, ending.code) == (EXIT_CODE, 5)


def test_processes_that_have_ended_when_one_looks_have_one_time(family):
    """On a busy node both are over by then: which of them was first is not known, and not made up."""
    first, second, watch = family("import os; os._exit(3)"), family("import os; os._exit(4)"), ProcessEndWatcher()
    watch.watch("second", second.child)
    watch.watch("first", first.child)
    for one in (first, second):
        one.release()
        until(lambda child=one.child: has_ended(child))
    assert not watch.is_watched("second")
    first_ending = watch.ending("first", 7)
    assert watch.ending("second", 7).unix_ns == first_ending.unix_ns
    assert 0 < first_ending.alive_unix_ns < first_ending.unix_ns


def test_a_process_that_was_waited_for(family):
    """From Linux 6.15 on its pidfd shows how it ended, before that no one does."""
    one, watch = family("sys.exit(4)", waits=True), ProcessEndWatcher()
    watch.watch("a", one.child)
    one.release()
    until(lambda: not watch.is_watched("a"))
    version = tuple(int(each) for each in os.uname().release.split(".")[:2])
    ending = watch.ending("a", 7)
    assert (ending.kind, ending.code) == ((EXIT_CODE, 4) if version >= (6, 15) else (VANISHED, 0))


def test_a_pid_that_another_process_has_by_now_is_not_taken_for_it(family, tmp_path):
    """What /proc shows is believed only of the process that was watched."""
    one = family("sys.exit(6)", waits=True)
    line = (f"{one.child} (a b) c) S " + " ".join(["7"] * 60)).encode()
    (tmp_path / str(one.child)).mkdir()
    stat = tmp_path / str(one.child) / "stat"
    stat.write_bytes(line)
    watch = ProcessEndWatcher(proc=str(tmp_path))
    watch.watch("a", one.child)
    stat.write_bytes(line.replace(b" 7", b" 8"))
    one.release()
    until(lambda: not watch.is_watched("a"))
    assert watch.ending("a", 7).code in (0, 6)  # 8 would be signal 8


def test_protected_fields_are_not_taken_for_a_good_end(family, tmp_path):
    """Of another user's process /proc shows zeros."""
    one = family("sys.exit(6)", waits=True)
    (tmp_path / str(one.child)).mkdir()
    fields = ["7"] * 60
    fields[25 - 1] = fields[49 - 1] = "0"
    (tmp_path / str(one.child) / "stat").write_text(f"{one.child} (a) S " + " ".join(fields))
    watch = ProcessEndWatcher(proc=str(tmp_path))
    watch.watch("a", one.child)
    one.release()
    until(lambda: not watch.is_watched("a"))
    assert watch.ending("a", 7) is not None


def test_a_process_that_was_never_watched_has_vanished():
    """Such as one of another PID namespace."""
    watch = ProcessEndWatcher()
    assert (watch.ending("a", 7).kind, watch.ending("a", 7).unix_ns) == (VANISHED, 7)
    watch.watch("b", 2**22 + 1)  # beyond what a kernel gives
    assert not watch.is_watched("b")


def test_what_is_forgotten_costs_no_descriptor(family):
    """A rank whose ring is replaced, and an exporter that stops."""
    one, watch = family("sys.exit(0)"), ProcessEndWatcher()
    before = descriptors()
    watch.watch("a", one.child)
    watch.watch("a", one.child)
    watch.watch("b", one.child)
    assert descriptors() == before + 2
    watch.forget("a")
    watch.close()
    assert descriptors() == before


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"group": 4}, {"group": 5, "host": 1}, True),
        ({"group": 4}, {"group": 4, "host": 1}, False),  # the host killed in another group
        ({"group": 4}, {"host": 1}, True),  # the group went with its process
        ({}, {"host": 1}, True),
        ({}, {}, False),
    ],
)
def test_a_kill_for_want_of_memory_is_counted_by_the_kernel(family, tmp_path, before, after, expected):
    """The process's control group counts its own kills; where it counts for no one, the host's count decides."""
    one = family("import os; os.kill(os.getpid(), 9)")
    proc, group = tmp_path / "proc", tmp_path / "cgroups" / "job"
    (proc / str(one.child)).mkdir(parents=True)
    (proc / str(one.child) / "stat").symlink_to(f"/proc/{one.child}/stat")
    (proc / str(one.child) / "cgroup").write_text("0::/job\n")
    group.mkdir(parents=True)

    def count(*, group_kills=None, host_kills=0):
        (group / "memory.events").unlink(missing_ok=True)
        if group_kills is not None:
            (group / "memory.events").write_text(f"low 0\noom 9\noom_kill {group_kills}\noom_group_kill 0\n")
        (proc / "vmstat").write_text(f"nr_free_pages 7\noom_kill {host_kills}\n")

    count(group_kills=before.get("group"))
    watch = ProcessEndWatcher(proc=str(proc), cgroups=str(tmp_path / "cgroups"))
    watch.watch("a", one.child)
    count(group_kills=after.get("group"), host_kills=after.get("host", 0))
    one.release()
    until(lambda: not watch.is_watched("a"))
    assert watch.ending("a", 7).is_out_of_memory is expected


@pytest.mark.parametrize(
    ("flags", "pending", "is_killed"),
    [
        ("4194560", "0000000000000100", True),
        ("4194564", "0000000000000000", True),
        ("4194560", "0000000000004200", False),
    ],
    ids=["SIGKILL is pending", "exiting", "SIGTERM and SIGUSR1 are pending"],
)
def test_a_process_that_was_killed_before_another_ended_did_not_live_after_it(
    family, tmp_path, flags, pending, is_killed
):
    """On a starved node one of those that a command has killed ends seconds after the first."""
    first, last = family("sys.exit(1)"), family("sys.exit(1)")
    fields = ["7"] * 60
    fields[6] = flags
    for each in (first, last):
        (tmp_path / str(each.child)).mkdir()
        (tmp_path / str(each.child) / "stat").write_text(f"{each.child} (a) R " + " ".join(fields[1:]))
        (tmp_path / str(each.child) / "status").write_text(f"Name:\ta\nSigPnd:\t{pending}\nShdPnd:\t{0:016x}\n")
    watch = ProcessEndWatcher(proc=str(tmp_path))
    watch.watch("first", first.child)
    watch.watch("last", last.child)
    first.release()
    until(lambda: not watch.is_watched("first"))
    seen_ns = time.time_ns()
    watch.watch("last", last.child)  # it lives: the exporter has seen so in between
    last.release()
    until(lambda: not watch.is_watched("last"))
    assert (watch.ending("last", 7).alive_unix_ns < seen_ns) is is_killed
    watch.close()
