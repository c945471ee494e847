"""The kernel in front of a collective, of both writers: what it notes by itself, what it leaves to others, what it passes."""

from threading import Thread
from types import SimpleNamespace

import pytest

from lockstep.contracts import marks
from lockstep.contracts.marks import MarkKind
from tests.agent.kernels import (
    DEVICE,
    FRONT,
    GROUP,
    HANDLE,
    HOST,
    OPERATOR_BITS,
    SITE,
    SYNCHRONOUS,
    SYNCHRONOUSLY,
    Kernel,
    Sparse,
    Work,
    tensor,
)
from tests.agent.mark_buffers import WRITERS, Ring


@pytest.fixture(params=WRITERS)
def ring(request, tmp_path):
    made = Ring(tmp_path, request.param)
    made.buffer.begin()
    yield made
    made.close()


def issued(ring):
    ring.buffer.flush()
    return [(mark.detail, mark.subject, mark.argument) for mark in ring.marks() if mark.kind == MarkKind.ISSUE]


def kinds(ring):
    ring.buffer.flush()
    return [mark.kind for mark in ring.marks()][1:]


def last(ring):
    ring.buffer.flush()
    mark = ring.marks()[-1]
    return mark.kind, mark.subject


@pytest.mark.parametrize(
    ("tensors", "payload_bytes"),
    [
        (tensor(96), 96),
        ([tensor(4096)], 4096),
        ([tensor(marks.PAYLOAD_BYTES_MAX + 1)], marks.PAYLOAD_BYTES_MAX),
    ],
)
def test_a_common_collective_is_noted(ring, tmp_path, tensors, payload_bytes):
    """One tensor, a list of one: the same mark as of its call site and payload, and nothing else is called."""
    kernel = Kernel(ring, result="result")
    assert kernel(tensors, GROUP, SYNCHRONOUSLY) == "result"
    (tmp_path / "other").mkdir()
    other = Ring(tmp_path / "other", "Python")
    other.buffer.begin()
    other.buffer.issue(SITE | OPERATOR_BITS | SYNCHRONOUS, payload_bytes)
    assert issued(ring) == issued(other) != []
    assert kinds(ring) == [MarkKind.ISSUE, MarkKind.EXPECT]
    assert kernel.issued == kernel.completed == []
    other.close()


@pytest.mark.parametrize(
    ("how", "tensors"),
    [
        ({"uses": {}}, tensor(1)),
        ({"captures": {1: None}}, tensor(1)),
        ({"group_index": -1}, tensor(1)),
        ({}, [tensor(1), tensor(2)]),
        ({}, []),
        ({}, [[tensor(1)]]),
        ({}, Sparse()),
        ({}, [Sparse()]),
    ],
    ids=[
        "new group",
        "graph captured",
        "two ranks",
        "two tensors",
        "no tensor",
        "lists of lists",
        "sparse",
        "sparse one",
    ],
)
def test_what_needs_a_closer_look_is_left_to_python(ring, how, tensors):
    """Which notes it and returns the ordinal whose end the kernel sees to."""
    kernel = Kernel(ring, **how)
    kernel(tensors, GROUP, SYNCHRONOUSLY)
    assert kernel.issued == [(OPERATOR_BITS | SYNCHRONOUS, (tensors, GROUP, SYNCHRONOUSLY))]
    assert issued(ring) == []
    assert last(ring) == (MarkKind.EXPECT, 7)
    assert kernel.absorbed == []


def test_a_collective_without_a_payload(ring):
    """C notes it by itself, with no bytes; the kernel in Python leaves it to others."""
    kernel = Kernel(ring, payload_index=-1)
    kernel(tensor(7), GROUP, SYNCHRONOUSLY)
    assert [argument >> marks.SIZE_BITS for *_, argument in issued(ring)] == ([0] if ring.name == "C" else [])
    assert len(kernel.issued) == (ring.name == "Python")


def test_another_thread_is_left_to_python(ring):
    """It may work for the training thread's backward, or for a checkpoint."""
    kernel = Kernel(ring)
    thread = Thread(target=lambda: kernel(tensor(1), GROUP, SYNCHRONOUSLY))
    thread.start()
    thread.join()
    assert len(kernel.issued) == len(kernel.passed) == 1


def test_an_inert_buffer_leaves_it_to_python(tmp_path):
    """The first collective begins the recording; what is not recorded has no end."""
    ring = Ring(tmp_path, "C")
    kernel = Kernel(ring, result="result")
    kernel.is_inert = True
    assert kernel(tensor(1), GROUP, SYNCHRONOUSLY) == "result"
    assert len(kernel.issued) == 1
    assert ring.marks() == kernel.completed == []
    ring.close()


@pytest.mark.parametrize("arguments", [(), (True,)], ids=["by default", "asked for"])
@pytest.mark.parametrize("result_of", [lambda work: work, lambda work: ([], work)], ids=["a Work", "a tuple"])
def test_an_asynchronous_one_ends_by_its_future(ring, result_of, arguments):
    """Of a Work alone and of a tuple that ends with one; defaults at the end of the arguments are left out."""
    work = Work()
    kernel = Kernel(ring, result=(result := result_of(work)))
    assert kernel(tensor(1), GROUP, *arguments) is result
    assert [site & (SYNCHRONOUS | OPERATOR_BITS) for site, *_ in issued(ring)] == [OPERATOR_BITS]
    (callback,) = work.callbacks
    callback(work)
    assert last(ring) == (MarkKind.DONE, 0)


def test_ordinals_begin_again_at_0(tmp_path):
    """After 2^32 collectives, of a call site and of a kernel, and each still ends by its own future."""
    ring = Ring(tmp_path, "Python")
    ring.buffer.begin()
    ring.buffer._issued = marks.ORDINAL_MASK - 1
    assert [ring.buffer.issue(SITE, 8) for _ in range(3)] == [marks.ORDINAL_MASK - 1, marks.ORDINAL_MASK, 0]
    ring.buffer._issued = marks.ORDINAL_MASK
    works = [Work(), Work()]
    for work in works:
        Kernel(ring, result=work)(tensor(1), GROUP)
    assert [ordinal for _, ordinal, _ in issued(ring)][-2:] == [marks.ORDINAL_MASK, 0]
    for work, ordinal in zip(works, (marks.ORDINAL_MASK, 0), strict=True):
        work.callbacks[0](work)
        assert last(ring) == (MarkKind.DONE, ordinal)
    ring.close()


def test_the_last_ordinal_before_0_ends_by_its_future(ring):
    """It is not mixed up with the attempt next to it in the key of what is in flight."""
    work = Work()
    kernel = Kernel(ring, uses={}, result=work)
    kernel.ordinal = marks.ORDINAL_MASK
    kernel(tensor(1), GROUP)
    work.callbacks[0](work)
    assert last(ring) == (MarkKind.DONE, marks.ORDINAL_MASK)
    assert ring.buffer.in_flight == {}


def test_a_backend_without_futures_is_asked_once(ring):
    """To ask costs 40 us; the next wait ends its collectives."""
    work = Work(has_future=False)
    kernel = Kernel(ring, async_index=-1, result=work)
    for ordinal in range(3):
        kernel(tensor(1), GROUP)
        assert last(ring) == (MarkKind.EXPECT, ordinal)
    assert work.asked == 1


def test_tensors_on_a_device_are_completed_in_python(ring):
    """The timeline of the device notes their end; the key set decides, call by call."""
    kernel = Kernel(ring, result="result")
    on_device, on_host = [tensor(1, is_cpu=False)], [tensor(1)]
    for tensors, keys in ((on_device, FRONT | DEVICE), (on_host, FRONT | HOST), (on_device, FRONT | DEVICE)):
        kernel(tensors, GROUP, SYNCHRONOUSLY, keys=keys)
    ordinals = (0, 2) if ring.name == "C" else (7, 7)  # which Python has from `issue_any`
    assert kernel.completed == [(ordinal, True, on_device, "result") for ordinal in ordinals]


def test_tensors_neither_on_a_device_nor_on_the_host(ring):
    """Python leaves the end to the kernel, which notes it as on the host."""
    work = Work()
    kernel = Kernel(ring, result=work)
    kernel.notes_end = False
    kernel(tensor(1), GROUP, SYNCHRONOUSLY, keys=FRONT)
    assert last(ring)[0] == MarkKind.EXPECT
    kernel(tensor(1), GROUP, keys=FRONT)
    work.callbacks[0](work)
    assert last(ring)[0] == MarkKind.DONE
    assert len(kernel.completed) == 2


def test_torch_gets_the_keys_behind_the_kernel(ring):
    """A key set that was met is not looked at again."""
    kernel = Kernel(ring)
    for keys in (FRONT | HOST, FRONT | HOST, FRONT | DEVICE, FRONT | DEVICE):
        kernel(tensors := tensor(8), GROUP, SYNCHRONOUSLY, keys=keys)
    passed = [(HANDLE, keys, tensors, GROUP, SYNCHRONOUSLY) for keys in (HOST, HOST, DEVICE, DEVICE)]
    assert kernel.passed == passed
    assert kernel.looks == 2


def no_group(_boxed):
    raise KeyError("no group")


FAILURES = {
    "group": ({"unbox": no_group}, {}, (tensor(1), GROUP, SYNCHRONOUSLY), KeyError),
    "payload": ({}, {}, (SimpleNamespace(is_cpu=True), GROUP, SYNCHRONOUSLY), AttributeError),
    "arguments": ({}, {}, (tensor(1),), IndexError),
    "issue_any": ({}, {"issue_any": KeyError("x")}, ([], GROUP, SYNCHRONOUSLY), KeyError),
}


@pytest.mark.parametrize("part", FAILURES)
def test_a_failure_of_ours_never_reaches_training(ring, part):
    """It is counted, nothing is noted, and the collective runs."""
    how, fails, arguments, error_type = FAILURES[part]
    kernel = Kernel(ring, result="result", **how)
    kernel.fails |= fails
    assert kernel(*arguments) == "result"
    ((name, error, _),) = kernel.absorbed
    assert (name, type(error)) == ("_issue_any", error_type)
    assert kinds(ring) == []


def test_a_failure_behind_the_collective_never_reaches_training(ring):
    """Its result does; the traceback is there, by which a signal handler is known."""
    kernel = Kernel(ring, result="result")
    kernel.fails["complete"] = KeyError("x")
    assert kernel(tensor(1, is_cpu=False), GROUP, SYNCHRONOUSLY, keys=FRONT | DEVICE) == "result"
    assert kernel.absorbed == [("_complete", kernel.fails["complete"], True)]


@pytest.mark.parametrize("part", ["issue_any", "complete"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), TimeoutError("of the training")])
def test_what_a_signal_handler_raises_passes(ring, part, error):
    """Before the collective it does not run; after it, it has run."""
    kernel = Kernel(ring)
    kernel.fails[part], kernel.is_ours = error, False
    tensors = [] if part == "issue_any" else tensor(1, is_cpu=False)
    with pytest.raises(type(error)):
        kernel(tensors, GROUP, SYNCHRONOUSLY, keys=FRONT | DEVICE)
    assert len(kernel.passed) == (part == "complete")


def test_what_torch_raises_passes(ring):
    """Unchanged, and nothing is noted as ended."""
    kernel = Kernel(ring)
    kernel.fails["redispatch"] = RuntimeError("connection closed by peer")
    with pytest.raises(RuntimeError, match="connection closed by peer"):
        kernel(tensor(1), GROUP, SYNCHRONOUSLY)
    assert kernel.absorbed == []
    assert kinds(ring) == [MarkKind.ISSUE]


def test_a_kernel_refuses_another_buffer():
    """One written in Python has no marks in C."""
    with pytest.raises(TypeError, match="expected a MarkBuffer of this module"):
        Kernel(SimpleNamespace(name="C", buffer=object()))


def test_what_a_work_raises_besides_is_a_failure(ring):
    """None has no future to ask for."""
    kernel = Kernel(ring)
    kernel(tensor(1), GROUP)
    ((name, error, _),) = kernel.absorbed
    assert (name, type(error)) == ("_complete", AttributeError)


class Future:
    """The future of a collective, as far as a kernel uses one."""

    def __init__(self):
        self._callbacks = []
        self._is_done = False

    def done(self):
        return self._is_done

    def add_done_callback(self, callback):
        if self._is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def end(self):
        self._is_done = True
        for callback in self._callbacks:
            callback(self)


def end_elsewhere(future):
    thread = Thread(target=future.end)
    thread.start()
    thread.join()


def done_marks(ring):
    ring.buffer.flush()
    return [mark for mark in ring.marks() if mark.kind & ~marks.OTHER_THREAD == MarkKind.DONE]


def begin(ring, future):
    """Issue an asynchronous collective whose Work has this future."""
    Kernel(ring, result=SimpleNamespace(get_future=lambda: future))(tensor(1), GROUP)


def test_the_end_of_a_collective_is_noted_where_its_future_ends(ring):
    """By the backend's thread, at its time; the future is kept until then, and no longer."""
    begin(ring, future := Future())
    assert list(ring.buffer.in_flight.values()) == [future]
    assert done_marks(ring) == []
    ring.now += 700
    end_elsewhere(future)
    (mark,) = done_marks(ring)
    assert (mark.kind, mark.subject, mark.time_ns) == (MarkKind.DONE | marks.OTHER_THREAD, 0, ring.now)
    assert ring.buffer.in_flight == {}


def test_the_end_of_a_collective_that_is_done_is_noted_at_once(ring):
    """Its future calls nothing on another thread."""
    future = Future()
    future.end()
    begin(ring, future)
    (mark,) = done_marks(ring)
    assert (mark.kind, mark.subject) == (MarkKind.DONE, 0)
    assert ring.buffer.in_flight == {}


def test_a_collective_of_a_former_attempt_ends_none_of_the_next_one(ring):
    """Ordinals begin again with an attempt: a late end is not that of another collective."""
    begin(ring, late := Future())
    ring.buffer.open(ring.file, 0, ring.block_count)
    ring.buffer.begin()
    begin(ring, future := Future())
    assert [ordinal for _, ordinal, _ in issued(ring)] == [0]
    end_elsewhere(late)
    assert done_marks(ring) == []
    assert list(ring.buffer.in_flight.values()) == [future]
    end_elsewhere(future)
    assert len(done_marks(ring)) == 1


def test_an_inert_writer_notes_no_end(ring):
    """What ends after the training thread's last mark leaves none, and no future behind."""
    begin(ring, future := Future())
    begin(ring, forgotten := Future())
    ring.buffer.finish()
    ring.buffer.in_flight.popitem()  # as a forked child forgets it
    end_elsewhere(future)
    end_elsewhere(forgotten)
    assert done_marks(ring) == []
    assert ring.buffer.in_flight == {}
