"""The C extension's kernel in front of a collective: what it notes by itself, what it leaves to Python, what it passes."""

from threading import Thread
from types import SimpleNamespace

import pytest

from lockstep.contracts import marks
from lockstep.contracts.marks import MarkKind
from tests.agent.mark_buffers import WRITERS, Ring, extension

GROUP = SimpleNamespace(size=8)
SITE = marks.pack_call_site("allreduce_", synchronous=False, domain=3, slot=5, group_size=64)
OPERATOR_BITS, SYNCHRONOUS = 1, marks.SYNCHRONOUS
HANDLE = object()
FRONT, HOST, DEVICE = 1, 2, 4
SYNCHRONOUSLY = False
"""Of the argument `async_op`."""


class Sparse:
    """A tensor that does not know its bytes."""

    @property
    def nbytes(self):
        raise RuntimeError("nbytes is not defined for sparse tensors")


class Keys(int):
    """A key set: a number that does not know it is one."""

    def __and__(self, other):
        return Keys(int(self) & int(other))


class Work:
    """What an operator returns, with a future that is kept or without."""

    def __init__(self, *, has_future=True):
        self.has_future = has_future
        self.asked = 0
        self.callbacks = []

    def get_future(self):
        self.asked += 1
        if not self.has_future:
            raise RuntimeError("the backend has none")
        return self

    def done(self):
        return False

    def add_done_callback(self, callback):
        self.callbacks.append(callback)


class Kernel:
    """A kernel, and what it calls: `passed` has the calls that reached torch, `issued` and `completed` those of Python."""

    def __init__(
        self, ring, *, payload_index=0, group_index=1, async_index=2, result=None, uses=None, captures=None, unbox=None
    ):
        self.passed, self.issued, self.completed, self.absorbed = [], [], [], []
        self.result, self.is_ours = result, True
        self.looks = 0
        self.fails = {}
        self.kernel = extension().CollectiveKernel(
            ring.buffer,
            handle=HANDLE,
            redispatch=self._redispatch,
            raw_repr=int,
            has=self._has,
            after_key=Keys(HOST | DEVICE),
            host_key=Keys(HOST),
            unbox_group=unbox or (lambda boxed: boxed),
            unbox_work=lambda boxed: boxed,
            known={id(GROUP): SimpleNamespace(site=SITE)} if uses is None else uses,
            captures={} if captures is None else captures,
            issue_any=self._issue_any,
            complete=self._complete,
            absorbs=self._absorbs,
            group_index=group_index,
            payload_index=payload_index,
            async_index=async_index,
            bits=OPERATOR_BITS,
            synchronous_bits=OPERATOR_BITS | SYNCHRONOUS,
        )

    def __call__(self, *arguments, keys=FRONT | HOST):
        return self.kernel(Keys(keys), *arguments)

    def _has(self, keyset, key):
        self.looks += 1
        return bool(int(keyset) & int(key))

    def _redispatch(self, *arguments):
        self.passed.append(arguments)
        if "redispatch" in self.fails:
            raise self.fails["redispatch"]
        return self.result

    def _issue_any(self, bits, arguments):
        if "issue_any" in self.fails:
            raise self.fails["issue_any"]
        self.issued.append((bits, arguments))
        return None if self.is_inert else 7

    is_inert = False

    def _complete(self, *arguments):
        if "complete" in self.fails:
            raise self.fails["complete"]
        self.completed.append(arguments)

    def _absorbs(self, part, error):
        self.absorbed.append((part.__name__, error, error.__traceback__ is not None))
        return self.is_ours


def tensor(nbytes):
    return SimpleNamespace(nbytes=nbytes)


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


def kinds(ring):
    ring.buffer.flush()
    return [mark.kind for mark in ring.marks()][1:]


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
def test_a_common_collective_is_noted(c_ring, tmp_path, payload_index, tensors, payload_bytes):
    """One tensor, a list of one, none that counts: the same mark as of its call site and payload, and Python runs none."""
    kernel = Kernel(c_ring, payload_index=payload_index, result="result")
    assert kernel(tensors, GROUP, SYNCHRONOUSLY) == "result"
    other = Ring(tmp_path, "Python")
    other.buffer.begin()
    other.buffer.issue(SITE | OPERATOR_BITS | SYNCHRONOUS, payload_bytes)
    assert issued(c_ring) == issued(other) != []
    assert kinds(c_ring) == [MarkKind.ISSUE, MarkKind.EXPECT]
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
def test_what_needs_a_closer_look_is_left_to_python(c_ring, how, tensors):
    """Which notes it and returns the ordinal whose end the kernel sees to."""
    kernel = Kernel(c_ring, **how)
    kernel(tensors, GROUP, SYNCHRONOUSLY)
    assert kernel.issued == [(OPERATOR_BITS | SYNCHRONOUS, (tensors, GROUP, SYNCHRONOUSLY))]
    assert issued(c_ring) == []
    assert last(c_ring) == (MarkKind.EXPECT, 7)
    assert kernel.absorbed == []


def test_another_thread_is_left_to_python(c_ring):
    """It may work for the training thread's backward, or for a checkpoint."""
    kernel = Kernel(c_ring)
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
def test_an_asynchronous_one_ends_by_its_future(c_ring, arguments):
    """Defaults at the end of the arguments are left out."""
    work = Work()
    kernel = Kernel(c_ring, result=([], work))
    assert kernel(tensor(1), GROUP, *arguments) == ([], work)
    assert [site & (SYNCHRONOUS | OPERATOR_BITS) for site, *_ in issued(c_ring)] == [OPERATOR_BITS]
    (callback,) = work.callbacks
    callback(work)
    assert last(c_ring) == (MarkKind.DONE, 0)


def test_a_backend_without_futures_is_asked_once(c_ring):
    """To ask costs 40 us; the next wait ends its collectives."""
    work = Work(has_future=False)
    kernel = Kernel(c_ring, async_index=-1, result=work)
    for ordinal in range(3):
        kernel(tensor(1), GROUP)
        assert last(c_ring) == (MarkKind.EXPECT, ordinal)
    assert work.asked == 1


def test_tensors_on_a_device_are_completed_in_python(c_ring):
    """The timeline of the device notes their end; the key set decides, call by call."""
    kernel, tensors = Kernel(c_ring, result="result"), [tensor(1)]
    for keys in (FRONT | DEVICE, FRONT | HOST, FRONT | DEVICE):
        kernel(tensors, GROUP, SYNCHRONOUSLY, keys=keys)
    assert kernel.completed == [(0, True, tensors, "result"), (2, True, tensors, "result")]


def test_torch_gets_the_keys_behind_the_kernel(c_ring):
    """A key set that was met is not looked at again."""
    kernel = Kernel(c_ring)
    for keys in (FRONT | HOST, FRONT | HOST, FRONT | DEVICE, FRONT | DEVICE):
        kernel("tensors", GROUP, SYNCHRONOUSLY, keys=keys)
    passed = [(HANDLE, keys, "tensors", GROUP, SYNCHRONOUSLY) for keys in (HOST, HOST, DEVICE, DEVICE)]
    assert kernel.passed == passed
    assert kernel.looks == 2


def no_group(_boxed):
    raise KeyError("no group")


FAILURES = {
    "group": ({"unbox": no_group}, {}, (tensor(1), GROUP, SYNCHRONOUSLY), KeyError),
    "payload": ({}, {}, (SimpleNamespace(), GROUP, SYNCHRONOUSLY), AttributeError),
    "arguments": ({}, {}, (tensor(1),), IndexError),
    "issue_any": ({}, {"issue_any": KeyError("x")}, ([], GROUP, SYNCHRONOUSLY), KeyError),
}


@pytest.mark.parametrize("part", FAILURES)
def test_a_failure_of_ours_never_reaches_training(c_ring, part):
    """It is counted, nothing is noted, and the collective runs."""
    how, fails, arguments, error_type = FAILURES[part]
    kernel = Kernel(c_ring, result="result", **how)
    kernel.fails |= fails
    assert kernel(*arguments) == "result"
    ((name, error, _),) = kernel.absorbed
    assert (name, type(error)) == ("_issue_any", error_type)
    assert kinds(c_ring) == []


def test_a_failure_behind_the_collective_never_reaches_training(c_ring):
    """Its result does; the traceback is there, by which a signal handler is known."""
    kernel = Kernel(c_ring, result="result")
    kernel.fails["complete"] = KeyError("x")
    assert kernel(tensor(1), GROUP, SYNCHRONOUSLY, keys=FRONT | DEVICE) == "result"
    assert kernel.absorbed == [("_complete", kernel.fails["complete"], True)]


@pytest.mark.parametrize("part", ["issue_any", "complete"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), TimeoutError("of the training")])
def test_what_a_signal_handler_raises_passes(c_ring, part, error):
    """Before the collective it does not run; after it, it has run."""
    kernel = Kernel(c_ring)
    kernel.fails[part], kernel.is_ours = error, False
    tensors = [] if part == "issue_any" else tensor(1)
    with pytest.raises(type(error)):
        kernel(tensors, GROUP, SYNCHRONOUSLY, keys=FRONT | DEVICE)
    assert len(kernel.passed) == (part == "complete")


def test_what_torch_raises_passes(c_ring):
    """Unchanged, and nothing is noted as ended."""
    kernel = Kernel(c_ring)
    kernel.fails["redispatch"] = RuntimeError("connection closed by peer")
    with pytest.raises(RuntimeError, match="connection closed by peer"):
        kernel(tensor(1), GROUP, SYNCHRONOUSLY)
    assert kernel.absorbed == []
    assert kinds(c_ring) == [MarkKind.ISSUE]


def test_a_kernel_refuses_another_buffer():
    """One written in Python has no marks in C."""
    with pytest.raises(TypeError, match="expected a MarkBuffer of this module"):
        Kernel(SimpleNamespace(buffer=object()))


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
