"""The end of a process waits for torch's own threads, which abort it if they need the interpreter once it is gone."""

import subprocess
import sys

import pytest

from lockstep.agent.backend_threads import LIMIT_NS, let_finish
from tests.agent.safety.processes import run, watched_environment

MILLISECOND_NS = 10**6


class FakeThreads:
    """Threads whose states are listed look by look; the last look repeats. Its clock moves with each pause."""

    def __init__(self, *looks, pause_ms=1):
        self._looks = looks
        self._pause_ns = pause_ms * MILLISECOND_NS
        self.pauses = 0

    def states(self):
        return list(self._looks[min(self.pauses, len(self._looks) - 1)])

    def pause(self, seconds):
        assert seconds == 0.001
        self.pauses += 1

    def clock_ns(self):
        return self.pauses * self._pause_ns

    def finish(self):
        return let_finish(self.states, self.pause, self.clock_ns)


def test_no_thread_costs_no_time():
    """A process whose torch has no thread of its own ends at once."""
    threads = FakeThreads("")
    assert threads.finish()
    assert threads.pauses == 0


def test_sleeping_threads_are_seen_asleep_after_pauses():
    """One look is not enough: a thread that waits for the interpreter lock sleeps too, until a pause releases it."""
    threads = FakeThreads("SS")
    assert threads.finish()
    assert threads.pauses == 3


@pytest.mark.parametrize("busy", ["R", "D", "SR"])
def test_a_running_thread_is_waited_for(busy):
    """Looks count from the last one that saw a thread run."""
    threads = FakeThreads("SS", "SS", busy, "SS")
    assert threads.finish()
    assert threads.pauses == 6


def test_the_wait_is_bounded():
    """A thread that computes for ever delays the end by the limit."""
    threads = FakeThreads("R")
    assert not threads.finish()
    assert threads.clock_ns() == LIMIT_NS


@pytest.mark.parametrize("pause_ms", [5, 50, 500])
def test_threads_that_sleep_are_at_rest_however_long_a_look_takes(pause_ms):
    """On a crowded core each pause lasts until the core is free again; that alone is no reason to give up."""
    for looks, rests in ((["SS"], True), (["SS", "R", "SS", "R"], False)):
        threads = FakeThreads(*looks, pause_ms=pause_ms)
        limit_ns = 20 * MILLISECOND_NS
        assert let_finish(threads.states, threads.pause, threads.clock_ns, limit_ns=limit_ns) == rests


SCRIPT = """
import ctypes, os, sys
from lockstep.agent.backend_threads import let_finish

sys.setswitchinterval(100)  # no one takes the interpreter lock from the main thread: it gives it up only when it waits

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def work(_argument):
    os.write(1, b"finished")

os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
libc = ctypes.PyDLL(None)  # calls hold the interpreter lock
thread = ctypes.c_ulong()
assert libc.pthread_create(ctypes.byref(thread), None, work, None) == 0
assert libc.pthread_setname_np(thread, b"pt_gloo_runloop") == 0
{wait} and let_finish()
os._exit(0)
"""


@pytest.mark.parametrize(("wait", "written"), [(True, "finished"), (False, "")])
def test_a_real_thread_that_needs_the_interpreter_gets_it(wait, written):
    """A thread that Python did not make runs Python while the main thread waits, and not without that."""
    command = [sys.executable, "-c", SCRIPT.format(wait=wait)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", written)


def test_a_collective_in_flight_is_no_rest():
    """Its thread sleeps as well, until the peers have come."""
    threads = FakeThreads("S")
    flights = iter([True, True, False])
    assert let_finish(threads.states, threads.pause, threads.clock_ns, is_busy=lambda: next(flights, False))
    assert threads.pauses == 2 + 3
    assert not let_finish(threads.states, threads.pause, threads.clock_ns, limit_ns=5_000_000, is_busy=lambda: True)


TAKEN_OUT = """
import torch
from lockstep.agent import backend_threads, bootstrap

backend_threads.let_finish = lambda **_: print("waited", flush=True)
bootstrap.install()
torch.ones(1, requires_grad=True).sum().backward()
assert bootstrap._agent.marks.thread
bootstrap.uninstall()
print("taken out", flush=True)
"""


@pytest.mark.torch
def test_an_agent_that_was_taken_out_is_waited_for_as_well(tmp_path):
    """Its last collective may have ended a moment ago: a thread of torch frees what the agent hung on its future."""
    environ = watched_environment(tmp_path)
    done = run(["-c", TAKEN_OUT], environ)
    assert (done.returncode, done.stdout.split("\n")) == (0, ["taken out", "waited", ""]), done.stderr


TAKEN_OUT_TWICE = """
import torch
from lockstep.agent import bootstrap

class Future:
    def wait(self):
        print("waited", flush=True)
        first.marks.in_flight.clear()

def train():
    bootstrap.install()
    torch.ones(1, requires_grad=True).sum().backward()
    agent = bootstrap._agent
    assert agent.marks.thread
    return agent

first = train()
first.marks.in_flight[0] = Future()
bootstrap.uninstall()
train()
bootstrap.uninstall()
print("taken out", flush=True)
"""


@pytest.mark.torch
def test_every_agent_that_was_taken_out_is_waited_for(tmp_path):
    """A collective in flight under the first one calls its buffer, whatever agents came after it."""
    done = run(["-c", TAKEN_OUT_TWICE], watched_environment(tmp_path))
    assert (done.returncode, done.stdout.split("\n")) == (0, ["taken out", "waited", ""]), done.stderr
