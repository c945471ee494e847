"""What the writers of marks read of a collective's own arguments, and of its result."""

from threading import Thread
from types import SimpleNamespace

import pytest

from lockstep.agent.collective_marks import CollectiveCall
from lockstep.contracts import marks
from lockstep.contracts.marks import MarkKind
from tests.agent.mark_buffers import WRITERS, Ring

GROUP = SimpleNamespace(size=8)
SITE = marks.pack_call_site("allreduce_", synchronous=False, domain=3, slot=5, group_size=64)
SYNCHRONOUS = marks.SYNCHRONOUS


class Sparse:
    """A tensor that does not know its bytes."""

    @property
    def nbytes(self):
        raise RuntimeError("nbytes is not defined for sparse tensors")


def tensor(nbytes):
    return SimpleNamespace(nbytes=nbytes)


def call(payload_index=0, *, uses=None, captures=None, unbox=lambda boxed: boxed):
    known = {id(GROUP): SimpleNamespace(site=SITE)} if uses is None else uses
    return CollectiveCall(unbox, 1, known.get, payload_index, {} if captures is None else captures)


@pytest.fixture
def c_ring(tmp_path):
    ring = Ring(tmp_path, "C")
    ring.buffer.begin()
    yield ring
    ring.close()


@pytest.fixture(params=WRITERS)
def ring(request, tmp_path):
    made = Ring(tmp_path, request.param)
    made.buffer.begin()
    yield made
    made.close()


def issued(ring):
    ring.buffer.flush()
    return [(mark.detail, mark.subject, mark.argument) for mark in ring.marks() if mark.kind == MarkKind.ISSUE]


def last(ring):
    ring.buffer.flush()
    mark = ring.marks()[-1]
    return mark.kind, mark.subject


@pytest.mark.parametrize(
    ("payload_index", "tensors", "payload_bytes"),
    [
        (0, tensor(96), 96),
        (0, [tensor(4096)], 4096),
        (0, [tensor(marks.PAYLOAD_BYTES_MAX + 1)], marks.PAYLOAD_BYTES_MAX),
        (-1, tensor(7), 0),
    ],
)
def test_a_common_collective_is_issued(c_ring, tmp_path, payload_index, tensors, payload_bytes):
    """One tensor, a list of one, none that counts: the same mark as of its call site and payload."""
    assert c_ring.buffer.issue_call(call(payload_index), SYNCHRONOUS, (tensors, GROUP)) == 0
    other = Ring(tmp_path, "Python")
    other.buffer.begin()
    other.buffer.issue(SITE | SYNCHRONOUS, payload_bytes)
    assert issued(c_ring) == issued(other) != []
    other.close()


@pytest.mark.parametrize(
    ("how", "tensors"),
    [
        ({"uses": {}}, tensor(1)),
        ({"captures": {1: None}}, tensor(1)),
        ({}, [tensor(1), tensor(2)]),
        ({}, []),
        ({}, [[tensor(1)]]),
        ({}, Sparse()),
        ({}, [Sparse()]),
    ],
    ids=["a new group", "a graph is captured", "two tensors", "no tensor", "lists of lists", "sparse", "a sparse one"],
)
def test_what_needs_a_closer_look_is_left_to_the_kernel(c_ring, how, tensors):
    """Nothing is noted, and nothing raised."""
    assert c_ring.buffer.issue_call(call(**how), 0, (tensors, GROUP)) is NotImplemented
    assert issued(c_ring) == []


def test_another_thread_is_left_to_the_kernel(c_ring):
    """It may work for the training thread's backward, or for a checkpoint."""
    found = []
    thread = Thread(target=lambda: found.append(c_ring.buffer.issue_call(call(), 0, (tensor(1), GROUP))))
    thread.start()
    thread.join()
    assert found == [NotImplemented]


def test_an_inert_buffer_leaves_it_to_the_kernel(tmp_path):
    """The first collective begins the recording."""
    ring = Ring(tmp_path, "C")
    assert ring.buffer.issue_call(call(), 0, (tensor(1), GROUP)) is NotImplemented
    ring.close()


def test_what_torch_raises_comes_through(c_ring):
    """The failure boundary of the kernel is where it ends."""

    def unbox(_boxed):
        raise KeyError("no group")

    with pytest.raises(KeyError, match="no group"):
        c_ring.buffer.issue_call(call(unbox=unbox), 0, (tensor(1), GROUP))
    with pytest.raises(AttributeError, match="nbytes"):
        c_ring.buffer.issue_call(call(), 0, (SimpleNamespace(), GROUP))
    with pytest.raises(IndexError):
        c_ring.buffer.issue_call(call(5), 0, (tensor(1), GROUP))
    assert issued(c_ring) == []


class Work:
    """What an operator returns, with a future that is kept or without."""

    def __init__(self, *, has_future=True):
        self.has_future = has_future
        self.callbacks = []

    def get_future(self):
        if not self.has_future:
            raise RuntimeError("the backend has none")
        return self

    def done(self):
        return False

    def add_done_callback(self, callback):
        self.callbacks.append(callback)


@pytest.mark.parametrize("result_of", [lambda work: work, lambda work: ([], work)], ids=["a Work", "a tuple"])
def test_the_end_of_an_asynchronous_collective(ring, result_of):
    """Its future notes it, of a Work alone and of a tuple that ends with one."""
    work, buffer = Work(), ring.buffer
    ordinal = buffer.issue(SITE, 8)
    assert buffer.note_work(lambda boxed: boxed, ordinal, result_of(work)) is True
    (callback,) = work.callbacks
    callback(work)
    assert last(ring) == (MarkKind.DONE, ordinal)


def test_a_work_without_a_future_ends_with_the_next_wait(ring):
    """As a synchronous collective does; the answer stops the kernel from asking again."""
    ordinal = ring.buffer.issue(SITE, 8)
    assert ring.buffer.note_work(lambda boxed: boxed, ordinal, Work(has_future=False)) is False
    assert last(ring) == (MarkKind.EXPECT, ordinal)


def test_what_a_work_raises_besides_comes_through(ring):
    """None has no future to ask for."""
    with pytest.raises(AttributeError):
        ring.buffer.note_work(lambda boxed: boxed, 0, None)
