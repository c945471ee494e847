"""Calls that wait for communication: marked by both writers alike, and what they return and raise passes on."""

import gc
import inspect
import itertools
import sys
from threading import Thread
from types import SimpleNamespace
from weakref import ref

import pytest

from lockstep.agent import call_marks, mark_writer
from lockstep.agent.hooks import waits
from lockstep.agent.hooks.patching import patch
from lockstep.contracts.marks import OTHER_THREAD, MarkKind
from tests.agent.mark_buffers import WRITERS, Ring, extension

PAIR = [MarkKind.WAIT_BEGIN, MarkKind.WAIT_END]


class Work:
    """What is waited for."""

    def wait(self, timeout=None):
        """Wait until it is done."""
        if timeout == 0:
            raise TimeoutError("not done")
        return self, timeout


class Answers:
    """Whether the calling thread works for a backward, as the test wants it."""

    value: object = False

    def __call__(self):
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


@pytest.fixture(params=WRITERS)
def ring(request, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lockstep.agent._marks", extension() if request.param == "C" else None)
    made = Ring(tmp_path, request.param)
    made.buffer.begin()
    made.answers = Answers()
    agent = SimpleNamespace(
        marks=made.buffer,
        mark_writer=mark_writer.C_EXTENSION if request.param == "C" else mark_writer.PURE_PYTHON,
        guard=lambda function: function,
        works_for_backward=made.answers,
        boundary=SimpleNamespace(absorbs=lambda _function, _error: False),
    )
    made.wrapped = waits._wrapped(agent, Work.wait)
    monkeypatch.setattr(Work, "wait", Work.wait)  # what a test patches is put back
    yield made
    made.close()


def marked(ring):
    ring.buffer.flush()
    return [MarkKind(mark.kind & ~OTHER_THREAD) for mark in ring.marks()[1:]]


def in_thread(call):
    thread = Thread(target=call)
    thread.start()
    thread.join()


def test_a_wait_is_marked_and_its_result_passes(ring):
    """As a method, through the class, with arguments by position and by name."""
    restore = patch(Work, "wait", ring.wrapped)
    work = Work()
    assert work.wait() == (work, None)
    assert work.wait(3) == (work, 3)
    assert work.wait(timeout=4) == (work, 4)
    assert Work.wait(work, timeout=5) == (work, 5)
    bound = work.wait
    assert bound(6) == (work, 6)
    assert marked(ring) == PAIR * 5
    restore()
    work.wait()
    assert marked(ring) == PAIR * 5


def test_what_a_wait_raises_passes_behind_its_end(ring):
    """The exception is the training's."""
    with pytest.raises(TimeoutError, match="not done"):
        ring.wrapped(Work(), 0)
    assert marked(ring) == PAIR


def test_a_patched_wait_looks_as_before(ring):
    """Name, text and signature are those of the call that it stands for."""
    patch(Work, "wait", ring.wrapped)
    assert (Work.wait.__name__, Work.wait.__doc__) == ("wait", "Wait until it is done.")
    assert list(inspect.signature(Work.wait).parameters) == ["self", "timeout"]


def test_waits_of_other_threads(ring):
    """They are marked where the thread works for the training thread's backward, and pass unmarked elsewhere."""
    found = []
    in_thread(lambda: found.append(ring.wrapped(Work(), 1)))
    assert found[0][1] == 1
    assert marked(ring) == []
    ring.answers.value = True
    in_thread(lambda: ring.wrapped(Work()))
    assert marked(ring) == PAIR


def test_a_failure_of_ours_leaves_the_wait_unmarked(ring):
    """Behind the failure boundary the answer is None: the call passes."""
    ring.buffer.finish()
    ring.answers.value = None
    assert ring.wrapped(Work(), 2)[1] == 2


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("call", ["own begin", "own end", "other begin", "other end"])
def test_a_failing_mark_without_the_extension(tmp_path, monkeypatch, call, is_ours):
    """A failure of ours never reaches the training, on its thread or on autograd's; what is not ours passes unchanged."""
    made, error = Ring(tmp_path, "Python"), RuntimeError("disk on fire")
    made.buffer.begin()
    thread, part = call.split()
    calls = itertools.count()

    def fail(*_arguments):
        if thread == "other" or next(calls) == (part == "end"):
            raise error

    if thread == "own":
        monkeypatch.setattr(call_marks, "pack_plain", fail)
    else:
        setattr(made.buffer, f"wait_{part}", fail)
        made.buffer.thread += 1  # the training thread is another one
    absorbed = []
    agent = SimpleNamespace(
        marks=made.buffer,
        mark_writer=mark_writer.PURE_PYTHON,
        guard=lambda each: each,
        works_for_backward=lambda: True,
        boundary=SimpleNamespace(absorbs=lambda _function, raised: absorbed.append(raised) or is_ours),
    )
    wait = waits._wrapped(agent, Work.wait)
    if is_ours:
        assert wait(Work(), 2)[1] == 2
    else:
        with pytest.raises(RuntimeError, match="disk on fire"):
            wait(Work(), 2)
    assert absorbed == [error]


def test_what_a_signal_handler_raises_passes(ring):
    """It interrupts the wait before it begins."""
    ring.answers.value = KeyboardInterrupt()
    found = []

    def wait():
        try:
            ring.wrapped(Work())
        except KeyboardInterrupt as error:
            found.append(error)

    in_thread(wait)
    assert found == [ring.answers.value]


def test_the_extension_refuses_another_buffer():
    """One written in Python has no marks in C."""
    with pytest.raises(TypeError, match="expected a MarkBuffer of this module"):
        extension().Waiting(Work.wait, object(), bool, type(Work().wait))


def test_the_extension_collects_a_wait_that_refers_to_itself(tmp_path):
    """Through what `patch` notes at it."""
    ring = Ring(tmp_path, "C")
    waiting = extension().Waiting(Work.wait, ring.buffer, bool, type(Work().wait))
    mark = Work()
    waiting.kept, waiting.own = mark, waiting
    kept = ref(mark)
    del waiting, mark
    gc.collect()
    assert kept() is None
    ring.close()
