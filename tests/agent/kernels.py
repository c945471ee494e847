"""Kernels in front of a collective, of both writers of marks, between a torch and an agent of the test's own."""

from types import SimpleNamespace

from lockstep.agent.call_marks import KernelCalls
from lockstep.agent.groups import GroupUse
from lockstep.contracts import marks
from tests.agent.mark_buffers import extension

GROUP = SimpleNamespace(size=8)
USE = GroupUse(kind=3, size=64, slot=5)
SITE = USE.site
OPERATOR_BITS, SYNCHRONOUS = 1, marks.SYNCHRONOUS
HANDLE = object()
FRONT, HOST, DEVICE = 1, 2, 4
SYNCHRONOUSLY = False
"""Of the argument `async_op`."""


class Sparse:
    """A tensor that does not know its bytes."""

    is_cpu = True

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
    """A kernel, and what it calls: `passed` has the calls that reached torch, `issued` and `completed` those of Python.

    Those return `ordinal`, unless `is_inert`, and `notes_end`.
    """

    is_inert = False
    ordinal = 7
    notes_end = True

    def __init__(
        self, ring, *, payload_index=0, group_index=1, async_index=2, result=None, uses=None, captures=None, unbox=None
    ):
        self.passed, self.issued, self.completed, self.absorbed = [], [], [], []
        self.result, self.is_ours = result, True
        self.looks = 0
        self.fails = {}
        self._uses = {id(GROUP): USE} if uses is None else uses
        self._captures = {} if captures is None else captures
        self._unbox = unbox or (lambda boxed: boxed)
        self._indices = {"group_index": group_index, "payload_index": payload_index, "async_index": async_index}
        self._buffer = ring.buffer
        self.kernel = self._in_c() if ring.name == "C" else None

    def __call__(self, *arguments, keys=FRONT | HOST):
        if self.kernel is None:
            self.kernel = self._in_python(arguments[0])
        return self.kernel(Keys(keys), *arguments)

    def _in_c(self):
        return extension().CollectiveKernel(
            self._buffer,
            handle=HANDLE,
            redispatch=self._redispatch,
            raw_repr=int,
            has=self._has,
            after_key=Keys(HOST | DEVICE),
            host_key=Keys(HOST),
            unbox_group=self._unbox,
            unbox_work=lambda boxed: boxed,
            known=self._uses,
            captures=self._captures,
            issue_any=self._issue_any,
            complete=self._complete,
            absorbs=self._absorbs,
            **self._indices,
            bits=OPERATOR_BITS,
            synchronous_bits=OPERATOR_BITS | SYNCHRONOUS,
        )

    def _in_python(self, tensors):
        """Return the kernel of an operator that takes such tensors: of one or a list, it notes some by itself."""
        is_list = isinstance(tensors, list)
        is_common = min(self._indices["group_index"], self._indices["payload_index"]) >= 0
        is_common &= not (is_list and tensors and isinstance(tensors[0], list))
        calls = KernelCalls(
            redispatch=lambda *arguments: self._redispatch(HANDLE, *arguments),
            raw_repr=int,
            look_at_keys=lambda keys: (keys & Keys(HOST | DEVICE), self._has(keys, HOST)),
            unbox_group=self._unbox,
            unbox_work=lambda boxed: boxed,
            issue_any=self._issue_any,
            complete=self._complete,
            absorbs=self._absorbs,
        )
        last = {"group_index": 1, "payload_index": 0, "async_index": 1 << 30}
        indices = {name: last[name] if index < 0 else index for name, index in self._indices.items()}
        uses = self._uses if is_common else {}
        return self._buffer.kernel(calls, uses, self._captures, **indices, is_list=is_list, bits=OPERATOR_BITS)

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
        return None if self.is_inert else self.ordinal

    def _complete(self, *arguments):
        if "complete" in self.fails:
            raise self.fails["complete"]
        self.completed.append(arguments)
        return self.notes_end

    def _absorbs(self, part, error):
        self.absorbed.append((part.__name__, error, error.__traceback__ is not None))
        return self.is_ours


def tensor(nbytes, *, is_cpu=True):
    """Return a tensor of so many bytes."""
    return SimpleNamespace(nbytes=nbytes, is_cpu=is_cpu)
