"""HOT (budget 400 ns a mark, 2,000 ns a block): marks in a block in private memory, and blocks in their ring.

May live here: appending and storing, what the end of a step stores with it, the clock of readers. Not here: which calls
make which marks (collective_marks.py, mark_buffer.py).

Threads: marks belong to the training thread, whose id is `thread`. Those of others are dropped or, where the accounting
decides, bear OTHER_THREAD. `thread` is 0 before `begin`, after `fail` and `finish`, and in a forked child: 0 is no
thread's id, so the buffer is inert.

Any thread may append and store, and there is no lock, for which the training thread could wait. CPython lets another
thread or a signal handler run only where a function begins, behind a call, and at a jump back. So a place in the block
is taken, and counted as an end, in lines without a call up to the one that packs the mark; a block is taken out of the
memory in lines without a call as well, and is written from there. The lines are marked "one turn".
"""

import ctypes
import struct
import zlib
from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns, thread_time_ns
from typing import Any

from lockstep.agent.descriptors import pwrite
from lockstep.agent.garbage import CollectionLog
from lockstep.contracts import marks
from lockstep.contracts.marks import ORDINAL_MASK, MarkKind
from lockstep.contracts.ring import ISSUE_SLOT_BYTES, ISSUE_SLOTS, ISSUES_BYTES

FIRST = marks.BLOCK_HEADER_BYTES
STEP = marks.MARK_BYTES
LAST = FIRST + marks.BLOCK_MARKS * STEP - STEP
"""Bytes of a block at which its first and its last mark lie, and of a mark."""
_FULL = LAST + STEP
_WORD_BYTES = 8  # a mark begins with its time
_SPARE = marks.BLOCK_MARKS * STEP
"""Of threads that came between the mark that filled the block and its store, one mark each: at most another block."""
POLL_INTERVAL_NS = 100_000_000
"""How often a training process shows a sign of life and looks for requests, at most."""
_FLUSH_INTERVAL_NS, _FLUSH_EVENT_NS = marks.FLUSH_INTERVAL_NS, marks.FLUSH_EVENT_NS
_BLOCK_BYTES, _VERSION = marks.BLOCK_BYTES, marks.MARKS_VERSION

# struct packs plain integers in half the time that members of an enum take
_DATA_BEGIN = int(MarkKind.DATA_BEGIN)
_BACKWARD_END, _COMPILED = int(MarkKind.BACKWARD_END), int(MarkKind.COMPILED)
_GC_BEGIN, _GC_END = int(MarkKind.GC_BEGIN), int(MarkKind.GC_END)
_WAIT_BEGIN, _WAIT_END = int(MarkKind.WAIT_BEGIN), int(MarkKind.WAIT_END)

BACKWARDS, OPTIMIZERS, STEPS = 1, 2, 3
"""`MarkBlockWriter.boundary_ends`, and what a mark is counted as."""
pack_mark = marks.MARK_STRUCT.pack_into
pack_headed = struct.Struct("<QIIq").pack_into  # kind and detail in one word (`marks.KIND_BITS`)
pack_plain = struct.Struct("<QQq").pack_into  # detail and subject of 0 in one word with the kind
_pack_header = marks.BLOCK_HEADER.pack_into
_pack_checksum = marks.CHECKSUM.pack_into
_SUMS_TO_ZERO = 0x6DD90A9D
"""A checksum that adds nothing to one over it: the CRC-32 of these four bytes is 0, as that of none."""
_crc32 = zlib.crc32

assert _crc32(marks.CHECKSUM.pack(_SUMS_TO_ZERO)) == 0


DeviceCallback = Callable[[int, int, int, int], Any]
"""(kind, detail, subject, ordinal) of a mark."""

_MET_MAX = 8


def ordinal_at(first: int, at: int) -> int:
    """Return the ordinal of the mark at byte `at` of a block whose first mark is number `first` of the attempt."""
    return first + (at - FIRST) // STEP & ORDINAL_MASK


def _no_thread(_steps: bool) -> int:  # noqa: FBT001  (as `claim_thread` is called)
    return 0


def _nothing() -> None:
    return


def _ends_after(stored: bytearray, backwards: int, optimizers: int, steps: int) -> tuple[int, int, int]:
    """Return the counts of ends behind marks, of those before them."""
    kinds = [kind & marks.KIND_MASK for _, kind, *_ in marks.MARK_STRUCT.iter_unpack(stored)]
    optimizers += sum(map(kinds.count, (MarkKind.OPTIMIZER_END, MarkKind.SCALER_END, MarkKind.FUSED_STEP)))
    return backwards + kinds.count(MarkKind.BACKWARD_END), optimizers, steps + kinds.count(MarkKind.STEP_END)


class _Appending:
    """The fields that each mark reads, next to each other in memory: caches are cold."""

    # fmt: off
    __slots__ = (
        "_at", "_device", "_due_ns", "_event_due_ns", "_has_sequel", "_issued", "_position", "_wants_poll", "thread",
    )
    # fmt: on


class MarkBlockWriter(_Appending):
    """Appends marks of one attempt to a block in private memory and stores it in a ring of blocks.

    `file` is a descriptor open for writing, which the caller closes. The ring of `block_count` slots of BLOCK_BYTES
    begins at byte `offset`, the issue words (contracts/ring.py) at byte `issues_offset`, the word of flags at byte
    `flags_offset`; -1 means that the file has none. `key` is XORed with addresses of objects, so that marks do not show
    them. `clock` and `cpu_clock` return ns; by default CLOCK_MONOTONIC and the calling thread's CPU time.

    `claim_thread(steps)` is called when a thread that is not the training thread trains, or `steps` an optimizer, and
    returns 1 if the thread is the training thread from now on, 2 if it works for a backward of the training thread, 3
    if it steps the optimizer for it, otherwise 0 (`Agent.claim_thread`).
    `at_store()` is called on the training thread after a mark, once a block was stored and `poll_interval_ns` have
    passed since the last call; `at_boundary()` after end number `boundary_at` of the kind `boundary_ends`, and at the
    next `settling` ends of steps outside a backward.
    `device`, where it is not None, is called after the marks of data, backwards, optimizers, scalers, closures, named
    ends of steps, issues and waits, on the thread that made them; with a detail of 1 after the end of a backward that
    may end the step. `backward_depth` is how many backwards are open.

    A store that fails raises nothing: it is counted in `failures`, and its block is lost.

    Raises
    ------
    ValueError
        Less than one block, or a negative offset.
    """

    # fmt: off
    __slots__ = (
        "_at_boundary", "_at_store", "_attempt", "_block",
        "_block_count", "_block_words", "_claim_thread", "_clock", "_cpu_clock", "_elsewhere", "_end_due_ns",
        "_ends", "_ends_at_backward", "_file", "_flag_word", "_flags",
        "_flags_offset", "_graphs_before", "_graphs_noted", "_graphs_seen", "_issue_stores", "_issue_words",
        "_issues", "_issues_offset", "_key", "_met", "_offset",
        "_polled_ns", "_sequence", "_stepping_elsewhere", "backward_depth",
        "backward_ends", "boundary_at", "boundary_ends", "closure_begin", "closure_end",
        "collective_cost_ns", "compilations", "data_begin", "data_end", "elsewhere_ns",
        "failures", "garbage", "in_flight", "mark_cost_ns", "meet",
        "optimizer_ends", "poll_interval_ns", "settling", "step_ends", "watch_closure",
    )
    # fmt: on

    def __init__(
        self,
        file: int,
        offset: int,
        block_count: int,
        *,
        issues_offset: int = -1,
        flags_offset: int = -1,
        key: int = 0,
        claim_thread: Callable[[bool], int] | None = None,
        at_store: Callable[[], None] | None = None,
        at_boundary: Callable[[], None] | None = None,
        clock: Callable[[], int] | None = None,
        cpu_clock: Callable[[], int] | None = None,
    ) -> None:
        self.failures = 0
        self.mark_cost_ns = self.collective_cost_ns = 0
        self.poll_interval_ns = POLL_INTERVAL_NS
        self.meet: Callable[[Any], None] | None = None
        self.watch_closure: Callable[[Any, Any], Any] | None = None
        self.compilations: Any = None
        self._device: DeviceCallback | None = None
        self._has_sequel = False
        """Whether a device's event or a poll comes behind a mark: one look for both (`_follow`)."""
        self.garbage: CollectionLog | None = None
        """Collections of garbage, whose marks are made at the next end (garbage.py gives the reason)."""
        self.in_flight: dict[tuple[int, int], Any] = {}
        """Futures of collectives whose end is still to be noted, by attempt and ordinal."""
        self._attempt = 0
        self._met: deque[int] = deque(maxlen=_MET_MAX)
        self._graphs_seen = self._graphs_before = 0
        self._key = key
        self._claim_thread = claim_thread or _no_thread
        self._at_store = at_store or _nothing
        self._at_boundary = at_boundary or _nothing
        self._clock = clock or monotonic_ns
        self._cpu_clock = cpu_clock or thread_time_ns
        self._block = bytearray(_FULL + _SPARE)
        self._block_words = memoryview(self._block).cast("Q")  # as below
        self._issues = (ctypes.c_char * ISSUES_BYTES)()
        self._issue_words = memoryview(self._issues).cast("B").cast("Q")  # native order: big-endian hosts are refused
        self._issue_stores: list[tuple[Any, ...]] = []
        """The arguments of `pwrite` that store the words of an issue slot, by slot."""
        self._flags = 0
        self._flag_word = ctypes.c_uint64()  # what is stored of them
        self.open(file, offset, block_count, issues_offset, flags_offset)
        self.data_begin = self._mark(MarkKind.DATA_BEGIN)
        self.data_end = self._mark(MarkKind.DATA_END)
        self.closure_begin = self._mark(MarkKind.CLOSURE_BEGIN)
        self.closure_end = self._mark(MarkKind.CLOSURE_END)

    def open(self, file: int, offset: int, block_count: int, issues_offset: int = -1, flags_offset: int = -1) -> None:
        """Go over to another ring, or the first one: forget everything, and be inert until `begin`."""
        if block_count < 1 or offset < 0:
            raise ValueError(
                f"ring of marks: got {block_count} blocks at offset {offset}, expected 1 or more at 0 or more"
            )
        self.thread = 0
        self._attempt += 1
        self._file = file
        self._offset = offset
        self._block_count = block_count
        self._issues_offset = issues_offset
        self._flags_offset = flags_offset
        self._issue_stores[:] = map(self._issue_store, range(ISSUE_SLOTS))
        ctypes.memset(self._issues, 0, ISSUES_BYTES)
        self._flags = 0
        self._at = FIRST
        self._due_ns = self._event_due_ns = self._end_due_ns = self._polled_ns = 0
        self._wants_poll = False
        self._has_sequel = self._device is not None
        self.settling = self.boundary_ends = self.boundary_at = 0
        self._sequence = self._position = self._issued = 0
        self.backward_ends = self.optimizer_ends = self.step_ends = 0
        self.backward_depth = self._ends_at_backward = 0
        self.elsewhere_ns = self._elsewhere = self._stepping_elsewhere = 0
        self._graphs_noted = -1
        self._ends = (0, 0, 0)
        """Ends of backwards, optimizers and steps before the block's first mark."""

    def _issue_store(self, slot: int) -> tuple[Any, ...]:
        at = slot * ISSUE_SLOT_BYTES
        size_bytes = ISSUE_SLOT_BYTES if self._issues_offset >= 0 else 0
        return self._file, ctypes.byref(self._issues, at), size_bytes, max(self._issues_offset, 0) + at

    def _mark(self, kind: int) -> Callable[[], None]:
        """Return a function that appends a mark of the training thread; without the call of `_put` it takes half."""
        buffer, block, clock, kind = self, self._block, self._clock, int(kind)

        def mark() -> None:
            if buffer.elsewhere_ns and kind == _DATA_BEGIN:
                buffer.note_elsewhere()
            if get_ident() != buffer.thread:
                return
            now = clock()
            at = buffer._at  # one turn
            first = buffer._position
            buffer._at = at + STEP
            pack_plain(block, at, now, kind, 0)
            if now >= buffer._due_ns or at >= LAST:
                buffer._store()
            if buffer._has_sequel:
                buffer._follow(kind, ordinal_at(first, at))

        return mark

    def _mark_anywhere(self, kind: int) -> Callable[..., None]:
        """Return a function that appends a mark of a collective's ordinal, if any, on any thread; of a wait too.

        A wait that begins is an event that readers look for. One frame, as each costs a microsecond in cold caches.
        """
        buffer, block, clock = self, self._block, self._clock
        is_event, is_wait = kind == _WAIT_BEGIN, kind in (_WAIT_BEGIN, _WAIT_END)

        def mark(subject: int = 0) -> None:
            its_kind = kind
            if get_ident() != buffer.thread:
                if not buffer.thread:
                    return
                its_kind |= marks.OTHER_THREAD
            now = clock()
            at = buffer._at  # one turn
            first = buffer._position
            buffer._at = at + STEP
            pack_mark(block, at, now, its_kind, 0, subject, 0)
            if now >= (buffer._event_due_ns if is_event else buffer._due_ns) or at >= LAST:
                buffer._store()
            if buffer._has_sequel:
                buffer._follow(kind if is_wait else 0, ordinal_at(first, at))

        return mark

    def note_elsewhere(self) -> None:
        """Mark the step of an optimizer on a thread of its own; `MarkBuffer` does it."""

    def _put(self, now: int, kind: int, detail: int, subject: int, argument: int) -> int:
        """Append a mark, and return its number in the attempt."""
        at = self._at  # one turn
        first = self._position
        self._at = at + STEP
        pack_mark(self._block, at, now, kind, detail, subject, argument)
        if now >= self._due_ns or at >= LAST:
            self._store()
        return first + (at - FIRST) // STEP

    def _append(self, kind: int, detail: int = 0, subject: int = 0, argument: int = 0) -> int:
        """Append a mark that any thread may make; return its number, -1 where the buffer is inert."""
        if get_ident() != self.thread:
            if not self.thread:
                return -1
            kind |= marks.OTHER_THREAD
        number = self._put(self._clock(), kind, detail, subject, argument)
        if self._wants_poll:
            self._poll()
        return number

    def _append_own(self, kind: int, detail: int = 0, subject: int = 0, argument: int = 0) -> None:
        if get_ident() == self.thread:
            self._put(self._clock(), kind, detail, subject, argument)
            if self._wants_poll:
                self._poll()

    @property
    def device(self) -> DeviceCallback | None:
        """What is called behind the marks that a device has events of; None where there is no device."""
        return self._device

    @device.setter
    def device(self, device: DeviceCallback | None) -> None:
        self._device = device
        self._has_sequel = device is not None or self._wants_poll

    def _follow(self, kind: int, ordinal: int) -> None:
        """Do what comes behind a mark; `kind` is 0 for one that a device has no event of."""
        if kind and self._device is not None:
            self._device(kind, 0, 0, ordinal)
        if self._wants_poll:
            self._poll()

    def _poll(self) -> None:
        """Do what a store leaves to be done: readers ask for signs of life, and write requests."""
        if get_ident() == self.thread:
            self._wants_poll = False  # one turn
            self._has_sequel = self._device is not None
            self._polled_ns = self._due_ns - _FLUSH_INTERVAL_NS  # the time of the last store
            self._at_store()

    def _put_end(self, now: int, kind: int, ends: int, subject: int = 0) -> None:  # noqa: C901  (one frame)
        """Append an end that may be a step's, counted as one of `ends`, and what the step held before it.

        It is stored whenever a wait stored last; readers' requests that wait for it are met.
        """
        if self.garbage is not None and self.garbage.events:
            self._note_collections(self.garbage)
        if self.compilations is not None:
            self._note_compiled(now)
        cpu_ns = self._cpu_clock()
        at = self._at  # one turn
        first = self._position
        if ends == OPTIMIZERS:
            self.optimizer_ends = count = self.optimizer_ends + 1
        elif ends == BACKWARDS:
            self.backward_ends = count = self.backward_ends + 1
        else:
            self.step_ends = count = self.step_ends + 1
        self._at = at + STEP
        pack_mark(self._block, at, now, kind, 0, subject, cpu_ns)
        if now >= self._end_due_ns:
            self._end_due_ns = now + _FLUSH_EVENT_NS
            self._store()
        elif now >= self._due_ns or at >= LAST:
            self._store()
        if self._flags:
            self._set_flags(0)
        if self._device is not None:
            self._device(kind, int(kind == _BACKWARD_END), 0, ordinal_at(first, at))
        is_settling = self.settling > 0 and not self.backward_depth
        if is_settling:
            self.settling -= 1
        if is_settling or (ends == self.boundary_ends and count == self.boundary_at):
            self._at_boundary()
        if self._wants_poll:
            self._poll()

    def _note_compiled(self, now: int) -> None:
        """Note torch.compile's own count of graphs if it changed; a training may clear its counters."""
        stats = self.compilations.get("stats")  # a defaultdict: indexing would write into it
        graphs = stats.get("unique_graphs", 0) if isinstance(stats, dict) else 0
        if not isinstance(graphs, int):
            self.compilations = None
            return
        if graphs < self._graphs_seen:
            self._graphs_before += self._graphs_seen
        self._graphs_seen = graphs
        if self._graphs_before + graphs != self._graphs_noted:
            self._graphs_noted = self._graphs_before + graphs
            self._put(now, _COMPILED, 0, 0, self._graphs_noted)

    def _note_collections(self, log: CollectionLog) -> None:
        for begin_ns, end_ns, generation in log.drain(self.thread):
            self._put(begin_ns, _GC_BEGIN, generation or 0, 0, 0)
            self._put(end_ns, _GC_END, generation or 0, 0, 0)

    def _set_flags(self, flags: int) -> None:
        """Store the running step's flags: a step that hangs may store no mark any more."""
        if flags != self._flags and self.thread:
            self._flags = flags
            self._store_flags()

    def _store_flags(self) -> None:
        word = self._flag_word
        word.value = self._flags
        size = ctypes.sizeof(word)
        if self._flags_offset >= 0 and pwrite(self._file, ctypes.byref(word), size, self._flags_offset) != size:
            self.failures += 1

    def store_words(self) -> None:
        """Store issues and flags, in a file that was written again."""
        if (
            self._issues_offset >= 0
            and pwrite(self._file, self._issues, ISSUES_BYTES, self._issues_offset) != ISSUES_BYTES
        ):
            self.failures += 1
        self._store_flags()

    def _store(self) -> None:
        """Write the marks of the block into its slot, and begin the next one."""
        at, sequence, position, ends = self._at, self._sequence, self._position, self._ends  # one turn
        if at == FIRST:
            return
        block, last_ns = self._block[:at], self._block_words[(at - STEP) // _WORD_BYTES]
        count = (at - FIRST) // STEP
        self._at, self._sequence, self._position = FIRST, sequence + 1 + (at > _FULL), position + count
        self._ends = (self.backward_ends, self.optimizer_ends, self.step_ends)
        if at > _FULL:  # another thread was to store the full block
            full, block = block[:_FULL], block[:FIRST] + block[_FULL:]
            self._write(full, marks.BLOCK_MARKS, sequence, position, ends)
            sequence, position, ends = sequence + 1, position + marks.BLOCK_MARKS, _ends_after(full[FIRST:], *ends)
            count -= marks.BLOCK_MARKS
        # As `_write`, whose frame costs a microsecond in cold caches (benchmarks/collective_cost.py).
        backwards, optimizers, steps = ends
        _pack_header(block, 0, _SUMS_TO_ZERO, count, _VERSION, sequence, position, backwards, optimizers, steps)
        _pack_checksum(block, 0, _crc32(block))
        place = self._offset + sequence % self._block_count * _BLOCK_BYTES
        if pwrite(self._file, b"" + block, len(block), place) != len(block):
            self.failures += 1
        self._due_ns = last_ns + _FLUSH_INTERVAL_NS
        self._event_due_ns = last_ns + _FLUSH_EVENT_NS
        if last_ns >= self._polled_ns + self.poll_interval_ns:
            self._wants_poll = self._has_sequel = True

    def _write(self, block: bytearray, count: int, sequence: int, position: int, ends: tuple[int, int, int]) -> None:
        _pack_header(block, 0, _SUMS_TO_ZERO, count, _VERSION, sequence, position, *ends)
        _pack_checksum(block, 0, _crc32(block))
        place = self._offset + sequence % self._block_count * _BLOCK_BYTES
        if pwrite(self._file, b"" + block, len(block), place) != len(block):  # ctypes passes no bytearray
            self.failures += 1

    def flush(self) -> None:
        """Store what was appended."""
        if self.thread:
            self._store()

    def _last_time(self) -> int:
        if self._at == FIRST:
            return self._due_ns - _FLUSH_INTERVAL_NS  # of the last store
        return self._block_words[(self._at - STEP) // _WORD_BYTES]
