"""HOT (budget 400 ns a mark, 2,000 ns a block): marks in Python, for processes that cannot load `_marks`.

The interface and the bytes are those of the C extension; contracts/marks.py is the layout. Nothing is interpreted here:
lockstep/accounting makes step records of the marks, in the exporter.

Threads: marks belong to the training thread, whose id is `thread`. Those of others are dropped or, where the accounting
decides, bear OTHER_THREAD. `thread` is 0 before `begin`, after `fail` and `finish`, and in a forked child: 0 is no
thread's id, so the buffer is inert. A signal handler of the training that runs inside `flush` and appends marks itself
may lose those; the C extension runs no handler.
"""

import ctypes
import struct
import zlib
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from time import monotonic_ns, thread_time_ns
from typing import Any

from lockstep.agent.descriptors import pwrite
from lockstep.agent.garbage import CollectionLog
from lockstep.contracts import marks
from lockstep.contracts.marks import MarkKind
from lockstep.contracts.records import MISSING, Flag
from lockstep.contracts.ring import ISSUE_SLOT_BYTES, ISSUE_SLOTS, ISSUES_BYTES, WORDS_PER_ISSUE_SLOT

_FIRST = marks.BLOCK_HEADER_BYTES
_STEP = marks.MARK_BYTES
_END = _FIRST + marks.BLOCK_MARKS * _STEP
_LAST = _END - _STEP
_CHECKSUM_BYTES = marks.CHECKSUM.size
_CALL_SITE_MAX = marks.CALL_SITE_MAX
_DETAIL_BITS, _SIZE_BITS, _SLOT_SHIFT = marks.DETAIL_BITS, marks.SIZE_BITS, marks.SLOT_SHIFT
_DETAIL_MASK = (1 << _DETAIL_BITS) - 1
_ORDINAL_MASK = marks.ORDINAL_MASK
_ORDINAL_BITS = _ORDINAL_MASK.bit_length()
POLL_INTERVAL_NS = 100_000_000
"""How often a training process shows a sign of life and looks for requests, at most."""
_FLUSH_INTERVAL_NS, _FLUSH_EVENT_NS = marks.FLUSH_INTERVAL_NS, marks.FLUSH_EVENT_NS
_BLOCK_BYTES, _VERSION = marks.BLOCK_BYTES, marks.MARKS_VERSION
_IDENTITY_SHIFT = 4  # addresses of objects are multiples of 16

# fmt: off
(
    _BEGIN, _DATA_BEGIN, _DATA_END, _BACKWARD_BEGIN, _BACKWARD_END, _OPTIMIZER_BEGIN, _OPTIMIZER_END,
    _SCALER_BEGIN, _SCALER_END, _CLOSURE_BEGIN, _CLOSURE_END, _PHASE_BEGIN, _PHASE_END, _EXPLICIT, _STEP_END,
    _ISSUE, _DONE, _DONE_UNKNOWN, _EXPECT, _WAIT_BEGIN, _WAIT_END, _GC_BEGIN, _GC_END, _BATCH_TOKENS,
    _BATCH_WORK, _BATCH, _BATCH_EVALUATED, _ANNOTATION, _FLAGS, _COMPILED, _AGENT_COST, _FAILURE, _FINISH,
    _THREAD, _FUSED_STEP, _UNMEASURED, _UNMEASURED_BUS, _MODEL_FLOPS, _ISSUE_BUS,
) = (int(kind) for kind in MarkKind if kind <= MarkKind.ISSUE_BUS)  # struct packs plain integers in half the time
# fmt: on

_pack_mark = marks.MARK_STRUCT.pack_into
_pack_plain = struct.Struct("<QQq").pack_into  # detail and subject of 0 in one word with the kind
_pack_header = marks.BLOCK_HEADER.pack_into
_pack_checksum = marks.CHECKSUM.pack_into
_crc32 = zlib.crc32


DeviceCallback = Callable[[int, int, int, int], Any]
"""(kind, detail, subject, ordinal) of a mark."""

_EVALUATION = int(Flag.EVALUATION)
_WORKS_FOR_BACKWARD = 2
_MET_MAX = 8
BACKWARDS, OPTIMIZERS, STEPS = 1, 2, 3
"""`MarkBuffer.boundary_ends`."""


def _no_thread() -> int:
    return 0


def _nothing() -> None:
    return


class MarkBuffer:
    """Appends marks of one attempt to a block in private memory and stores it in a ring of blocks.

    `file` is open for writing and stays the caller's; the ring of `block_count` slots begins at byte `offset`, the
    issue words of contracts/ring.py at `issues_offset`, -1 for none. `key` hides addresses behind identities.
    `adopt()` is asked when a thread that is not the training thread trains: 1 if it now is the one, 2 if it works for
    a backward of the training thread, else 0. `at_store()` is called on the training thread, behind a mark, once a
    block was stored and `poll_interval_ns` are over since it was called last; `at_boundary()` behind the end whose
    number is `boundary_at`, of the sort `boundary_ends`, and at the next `settling` ends of steps outside a backward.
    `device`, where it is not None, is called after the marks of data, backwards, optimizers, scalers, closures, named
    ends of steps, issues and waits, on the thread that made them; with a detail of 1 after the end of a backward that
    may end the step. `backward_depth` is how many backwards are open.

    Nothing here raises for a store that fails: it is counted in `failures`, and the block is lost.
    """

    def __init__(
        self,
        file: int,
        offset: int,
        block_count: int,
        *,
        issues_offset: int = -1,
        flags_offset: int = -1,
        key: int = 0,
        adopt: Callable[[], int] | None = None,
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
        self.device: DeviceCallback | None = None
        self.garbage: CollectionLog | None = None
        """Collections of garbage, whose marks are made at the next end (garbage.py says why)."""
        self.in_flight: dict[int, Any] = {}
        """Futures of collectives whose end is still to be noted, by attempt and ordinal."""
        self._attempt = 0
        self._met: deque[int] = deque(maxlen=_MET_MAX)
        self._graphs_seen = self._graphs_before = 0
        self._key = key
        self._adopt = adopt or _no_thread
        self._at_store = at_store or _nothing
        self._at_boundary = at_boundary or _nothing
        self._clock = clock or monotonic_ns
        self._cpu_clock = cpu_clock or thread_time_ns
        self._block = bytearray(_END)
        self._store_of = (ctypes.c_char * _END).from_buffer(self._block)
        self._view = memoryview(self._block)
        self._issues = (ctypes.c_char * ISSUES_BYTES)()
        self._issue_words = memoryview(self._issues).cast("B").cast("Q")  # native order: big-endian hosts are refused
        self._issues_of = [ctypes.byref(self._issues, slot * ISSUE_SLOT_BYTES) for slot in range(ISSUE_SLOTS)]
        self._flags = ctypes.c_uint64()
        self.open(file, offset, block_count, issues_offset, flags_offset)
        self.data_begin = self._mark(_DATA_BEGIN)
        self.data_end = self._mark(_DATA_END)
        self.closure_begin = self._mark(_CLOSURE_BEGIN)
        self.closure_end = self._mark(_CLOSURE_END)

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
        ctypes.memset(self._issues, 0, ISSUES_BYTES)
        self._flags.value = 0
        self._at = _FIRST
        self._due_ns = self._event_due_ns = self._end_due_ns = self._polled_ns = 0
        self._wants_poll = False
        self.settling = self.boundary_ends = self.boundary_at = 0
        self._sequence = self._position = self._issued = 0
        self.backward_ends = self.optimizer_ends = self.step_ends = 0
        self.backward_depth = self._ends_at_backward = 0
        self._graphs_noted = -1
        self._ends = (0, 0, 0)
        """Ends of backwards, optimizers and steps before the block's first mark."""

    def _mark(self, kind: int) -> Callable[[], None]:
        """Return a function that appends a mark of the training thread; without the call of `_put` it takes half."""
        buffer, block, clock = self, self._block, self._clock

        def mark() -> None:
            if get_ident() != buffer.thread:
                return
            at = buffer._at
            now = clock()
            _pack_plain(block, at, now, kind, 0)
            buffer._at = at + _STEP
            if now >= buffer._due_ns or at == _LAST:
                buffer._store(now)
            if buffer.device is not None:
                buffer._note_device(buffer.device, kind)
            if buffer._wants_poll:
                buffer._poll()

        return mark

    def _note_device(self, device: DeviceCallback, kind: int, detail: int = 0, subject: int = 0) -> None:
        """Let the device queue an event behind the mark that was appended last."""
        device(kind, detail, subject, self._last_ordinal())

    def _last_ordinal(self) -> int:
        return (self._position + (self._at - _FIRST) // _STEP - 1) & _ORDINAL_MASK

    def _put(self, now: int, kind: int, detail: int, subject: int, argument: int) -> None:
        at = self._at
        _pack_mark(self._block, at, now, kind, detail, subject, argument)
        self._at = at + _STEP
        if now >= self._due_ns or at == _LAST:
            self._store(now)

    def _append(self, kind: int, detail: int = 0, subject: int = 0, argument: int = 0) -> None:
        """Append a mark that any thread may make."""
        if get_ident() != self.thread:
            if not self.thread:
                return
            kind |= marks.OTHER_THREAD
        self._put(self._clock(), kind, detail, subject, argument)
        if self._wants_poll:
            self._poll()

    def _append_own(self, kind: int, detail: int = 0, subject: int = 0, argument: int = 0) -> None:
        if get_ident() == self.thread:
            self._put(self._clock(), kind, detail, subject, argument)
            if self._wants_poll:
                self._poll()

    def _poll(self) -> None:
        """Do what a store leaves to be done: readers ask for signs of life, and write requests."""
        if get_ident() == self.thread:
            self._wants_poll = False
            self._polled_ns = self._due_ns - _FLUSH_INTERVAL_NS  # the time of the last store
            self._at_store()

    def _note_held(self, now: int) -> None:
        """Append what the step held before an end that may be its own, before that is counted: it may fill a block."""
        if self.garbage is not None and self.garbage.events:
            self._note_collections(self.garbage)
        if self.compilations is not None:
            self._note_compiled(now)

    def _put_end(self, now: int, kind: int, subject: int = 0) -> None:
        """Append an end that may be a step's; it is stored whenever a wait stored last."""
        self._put(now, kind, 0, subject, self._cpu_clock())
        if now >= self._end_due_ns:
            self._end_due_ns = now + _FLUSH_EVENT_NS
            if self._at != _FIRST:
                self._store(now)
        if self._flags.value:
            self._set_flags(0)
        if self.device is not None:
            self._note_device(self.device, kind, int(kind == _BACKWARD_END))

    def _pass_boundary(self, sort: int, ends: int) -> None:
        is_settling = self.settling > 0 and not self.backward_depth
        if is_settling:
            self.settling -= 1
        if is_settling or (sort == self.boundary_ends and ends == self.boundary_at):
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
        for begin_ns, end_ns, generation in log.take(self.thread):
            self._put(begin_ns, _GC_BEGIN, generation or 0, 0, 0)
            self._put(end_ns, _GC_END, generation or 0, 0, 0)

    def _set_flags(self, flags: int) -> None:
        """Store the running step's flags: a step that hangs may store no mark any more."""
        if flags != self._flags.value and self.thread:
            self._flags.value = flags
            self._store_flags()

    def _store_flags(self) -> None:
        size = ctypes.sizeof(self._flags)
        if self._flags_offset >= 0 and pwrite(self._file, ctypes.byref(self._flags), size, self._flags_offset) != size:
            self.failures += 1

    def store_words(self) -> None:
        """Store issues and flags, in a file that was written again."""
        if (
            self._issues_offset >= 0
            and pwrite(self._file, self._issues, ISSUES_BYTES, self._issues_offset) != ISSUES_BYTES
        ):
            self.failures += 1
        self._store_flags()

    def _store(self, last_ns: int) -> None:
        """Write the block, whose last mark is of `last_ns`, into its slot and begin the next one."""
        at, block, sequence = self._at, self._block, self._sequence
        count = (at - _FIRST) // _STEP
        _pack_header(block, 0, 0, count, _VERSION, sequence, self._position, *self._ends)
        _pack_checksum(block, 0, _crc32(self._view[_CHECKSUM_BYTES:at]))
        place = self._offset + sequence % self._block_count * _BLOCK_BYTES
        if pwrite(self._file, self._store_of, at, place) != at:
            self.failures += 1
        self._sequence = sequence + 1
        self._position += count
        self._ends = (self.backward_ends, self.optimizer_ends, self.step_ends)
        self._at = _FIRST
        self._due_ns = last_ns + _FLUSH_INTERVAL_NS
        self._event_due_ns = last_ns + _FLUSH_EVENT_NS
        if last_ns >= self._polled_ns + self.poll_interval_ns:
            self._wants_poll = True

    def flush(self) -> None:
        """Store what was appended."""
        if self.thread and self._at != _FIRST:
            self._store(self._last_time())

    def _last_time(self) -> int:
        return int(marks.MARK_STRUCT.unpack_from(self._block, self._at - _STEP)[0])

    def _event(self, now: int) -> None:
        """Store at an event that readers wait for, unless that was done a moment ago."""
        if now >= self._event_due_ns and self._at != _FIRST:
            self._store(now)

    # An attempt.

    def begin(self) -> None:
        """Begin an attempt; the calling thread is the training thread."""
        self._take_thread(_BEGIN, self.collective_cost_ns, self.mark_cost_ns)

    def change_thread(self) -> None:
        """Make the calling thread the training thread, in the place of another one."""
        self._take_thread(_THREAD, 0, 0)

    def _take_thread(self, kind: int, detail: int, subject: int) -> None:
        now, cpu_ns = self._clock(), self._cpu_clock()
        self.thread = get_ident()
        if self.garbage is not None:
            self.garbage.take(self.thread)  # collections before this belong to no step
        self.backward_depth = 0
        self._put(now, kind, detail, subject, cpu_ns)

    def finish(self) -> None:
        """Note that the attempt ended well, and be inert."""
        self._append(_FINISH)
        self.flush()
        self.thread = 0

    def fail(self, failures: int) -> None:
        """Note how many hooks failed, and be inert."""
        self._append(_FAILURE, argument=failures)
        self.flush()
        self.thread = 0

    # Spans.

    # The four below hold a copy of `_put`, whose call costs 80 ns each time (benchmarks/mark_cost.py).

    def backward_begin(self) -> None:
        """Begin a backward."""
        if get_ident() != self.thread and self._adopt() != 1:
            return
        now = self._clock()
        if not self.backward_depth:
            self._ends_at_backward = self.optimizer_ends
        self.backward_depth += 1
        at = self._at
        _pack_plain(self._block, at, now, _BACKWARD_BEGIN, 0)
        self._at = at + _STEP
        if now >= self._due_ns or at == _LAST:
            self._store(now)
        if self.device is not None:
            self._note_device(self.device, _BACKWARD_BEGIN)
        if self._wants_poll:
            self._poll()

    def backward_end(self) -> None:
        """End it."""
        if get_ident() != self.thread:
            return
        now = self._clock()
        if self.backward_depth:
            self.backward_depth -= 1
        if self.optimizer_ends != self._ends_at_backward:  # the step may end here
            self._note_held(now)
            self.backward_ends += 1
            self._put_end(now, _BACKWARD_END)
            self._pass_boundary(BACKWARDS, self.backward_ends)
            return
        self.backward_ends += 1
        at = self._at
        _pack_plain(self._block, at, now, _BACKWARD_END, MISSING)
        self._at = at + _STEP
        if now >= self._due_ns or at == _LAST:
            self._store(now)
        if self.device is not None:
            self._note_device(self.device, _BACKWARD_END)
        if self.boundary_ends == BACKWARDS and self.boundary_at == self.backward_ends:
            self._at_boundary()
        if self._wants_poll:
            self._poll()

    def optimizer_begin(self, optimizer: object) -> None:
        """Begin the step of an optimizer, which may contain those of others."""
        if self._admit_optimizer():
            now = self._clock()
            at = self._at
            identity = (id(optimizer) ^ self._key) >> _IDENTITY_SHIFT & _ORDINAL_MASK
            _pack_mark(self._block, at, now, _OPTIMIZER_BEGIN, 0, identity, 0)
            self._at = at + _STEP
            if now >= self._due_ns or at == _LAST:
                self._store(now)
            if self.device is not None:
                self._note_device(self.device, _OPTIMIZER_BEGIN)
            if self._wants_poll:
                self._poll()

    def _admit_optimizer(self) -> bool:
        """Whether the step of an optimizer is the training thread's; autograd's own may step one for its backward."""
        if get_ident() == self.thread:
            return True
        answer = self._adopt()
        if answer == _WORKS_FOR_BACKWARD:
            self.optimizer_ends += 1
            self._append(_FUSED_STEP)
        return answer == 1

    def optimizer_end(self) -> None:
        """End it."""
        if get_ident() != self.thread:
            return
        now = self._clock()
        self._note_held(now)
        self.optimizer_ends += 1
        self._put_end(now, _OPTIMIZER_END)
        self._pass_boundary(OPTIMIZERS, self.optimizer_ends)

    def optimizer_pre_hook(self, optimizer: object, args: Any, kwargs: Any) -> Any:
        """Do the same as torch's hook before an optimizer's step."""
        self.optimizer_begin(optimizer)
        if self.meet is not None:
            self._meet_optimizer(optimizer, self.meet)
        if self.watch_closure is not None and (len(args) > 1 or kwargs):
            return self.watch_closure(args, kwargs)
        return None

    def optimizer_post_hook(self, _optimizer: object, _args: Any, _kwargs: Any) -> None:
        """Do the same after it."""
        self.optimizer_end()

    def _meet_optimizer(self, optimizer: object, meet: Callable[[Any], None]) -> None:
        """Show an optimizer that was not met before, as far as that is remembered, to `meet`."""
        identity = self._identity(optimizer)
        if identity not in self._met and get_ident() == self.thread:
            self._met.append(identity)
            meet(optimizer)

    def scaler_begin(self, scaler: object, optimizer: object) -> None:
        """Begin the step of a gradient scaler, which skips that of its optimizer when gradients overflowed."""
        if self._admit_optimizer():
            identity = self._identity(scaler)
            self._put(self._clock(), _SCALER_BEGIN, 0, identity, self._identity(optimizer))
            if self.device is not None:
                self._note_device(self.device, _SCALER_BEGIN)

    def scaler_end(self, scaler: object) -> None:
        """End it."""
        if get_ident() != self.thread:
            return
        now = self._clock()
        self._note_held(now)
        self.optimizer_ends += 1
        self._put_end(now, _SCALER_END, self._identity(scaler))
        self._pass_boundary(OPTIMIZERS, self.optimizer_ends)

    def _identity(self, value: object) -> int:
        return (id(value) ^ self._key) >> _IDENTITY_SHIFT & _ORDINAL_MASK

    def phase_begin(self, phase: int) -> None:
        """Begin a phase that the training names: 0 data, 1 forward, 2 backward, 3 optimizer."""
        if get_ident() == self.thread or self._adopt() == 1:
            self._put(self._clock(), _PHASE_BEGIN, phase, 0, 0)

    def phase_end(self, phase: int) -> None:
        """End it."""
        self._append_own(_PHASE_END, phase)

    def begin_explicit(self) -> None:
        """From now on steps end at `step_end` only."""
        if get_ident() == self.thread or self._adopt() == 1:
            self._put(self._clock(), _EXPLICIT, 0, 0, 0)

    def step_end(self) -> None:
        """End the step."""
        if get_ident() != self.thread and self._adopt() != 1:
            return
        now = self._clock()
        self._note_held(now)
        self.step_ends += 1
        self._put_end(now, _STEP_END)
        self._pass_boundary(STEPS, self.step_ends)

    # Communication.

    def issue(self, call_site: int, payload_bytes: int) -> int | None:
        """Note a collective (`marks.pack_call_site`); return its ordinal, None where the buffer is inert.

        Raises
        ------
        ValueError
            A call site that `pack_call_site` does not make, or a payload beyond PAYLOAD_BYTES_MAX.
        """
        if not 0 <= call_site <= _CALL_SITE_MAX or not 0 <= payload_bytes <= marks.PAYLOAD_BYTES_MAX:
            raise ValueError(
                f"issue: got call site {call_site} and {payload_bytes} bytes, "
                f"expected 0 to {_CALL_SITE_MAX} and 0 to {marks.PAYLOAD_BYTES_MAX}"
            )
        kind = _ISSUE
        if get_ident() != self.thread:
            if not self.thread:
                return None
            kind |= marks.OTHER_THREAD
        ordinal = self._issued
        now = self._clock()
        self._put(now, kind, call_site & _DETAIL_MASK, ordinal, payload_bytes << _SIZE_BITS | call_site >> _DETAIL_BITS)
        slot = (call_site & _DETAIL_MASK) >> _SLOT_SHIFT
        word = slot * WORDS_PER_ISSUE_SLOT
        self._issue_words[word] += 1
        self._issue_words[word + 1] = now
        self._store_issues(slot)
        self._issued = ordinal + 1 & _ORDINAL_MASK
        if self.device is not None:
            self._note_device(self.device, _ISSUE, call_site & _DETAIL_MASK, ordinal)
        if self._wants_poll:
            self._poll()
        return ordinal

    def issue_bus(self, ordinal: int, bus_bytes: int) -> None:
        """Note the bus bytes of a collective whose operator does not show them."""
        self._append(_ISSUE_BUS, 0, ordinal, bus_bytes)

    def unmeasured(self, domain: int, count: int, payload_bytes: int, bus_bytes: int) -> None:
        """Note collectives that were carried out without being dispatched; of UNKNOWN_DOMAIN, nobody knows which."""
        self._append(_UNMEASURED, domain, count, payload_bytes)
        self._append(_UNMEASURED_BUS, domain, 0, bus_bytes)

    def clear_issues(self, slot: int) -> None:
        """Give an issue slot to another group: it counts from 0."""
        if not 0 <= slot < ISSUE_SLOTS:
            raise ValueError(f"issue slot: got {slot}, expected 0 to {ISSUE_SLOTS - 1}")
        if self.thread:
            word = slot * WORDS_PER_ISSUE_SLOT
            self._issue_words[word] = self._issue_words[word + 1] = 0
            self._store_issues(slot)

    def _store_issues(self, slot: int) -> None:
        if self._issues_offset >= 0:
            place = self._issues_offset + slot * ISSUE_SLOT_BYTES
            if pwrite(self._file, self._issues_of[slot], ISSUE_SLOT_BYTES, place) != ISSUE_SLOT_BYTES:
                self.failures += 1

    def done(self, ordinal: int) -> None:
        """Note that a collective is done."""
        self._append(_DONE, 0, ordinal)

    def done_unknown(self, ordinal: int) -> None:
        """Note that it will not be known when a collective is done."""
        self._append(_DONE_UNKNOWN, 0, ordinal)

    def note_end(self, ordinal: int, future: Any) -> None:
        """Note when a running collective is done, on the thread that ends it; `in_flight` has its future till then."""
        if future.done():  # its callback would run here, where torch swallows what a signal handler raises in it
            self.done(ordinal)
            return
        key = self._attempt << _ORDINAL_BITS | ordinal
        self.in_flight[key] = future
        future.add_done_callback(partial(self._end_in_flight, key))

    def _end_in_flight(self, key: int, _future: Any) -> None:
        if key >> _ORDINAL_BITS == self._attempt:
            self.done(key & _ORDINAL_MASK)
        self.in_flight.pop(key, None)  # a forked child has forgotten it

    def expect(self, ordinal: int) -> None:
        """Take the end of the next wait as the time when a collective was done."""
        self._append(_EXPECT, 0, ordinal)

    def wait_begin(self) -> None:
        """Begin to wait for communication."""
        self._append(_WAIT_BEGIN)
        if self.thread and self._at != _FIRST:
            self._event(self._last_time())
        if self.device is not None and self.thread:
            self._note_device(self.device, _WAIT_BEGIN)

    def wait_end(self) -> None:
        """End it."""
        self._append(_WAIT_END)
        if self.device is not None and self.thread:
            self._note_device(self.device, _WAIT_END)

    # The device.

    def device_mark(self, kind: int, detail: int, subject: int, argument: int) -> int:
        """Append a mark of a device (40 and up, contracts/marks.py) and return its ordinal; -1 where it is inert."""
        self._append(kind, detail, subject, argument)
        return self._last_ordinal() if self.thread else -1

    # What else a step holds.

    def collect(self, phase: str, info: dict[str, Any]) -> None:
        """Note a collection of garbage. Python runs signal handlers in here, the C extension does not (garbage.py)."""
        kind = _GC_BEGIN if phase == "start" else _GC_END
        self._append_own(kind, info.get("generation", 0))

    def batch(self, samples: int, tokens: int, work: int) -> None:
        """Count the batch fetched last; MISSING is not known."""
        if tokens != MISSING:
            self._append_own(_BATCH_TOKENS, 0, 0, tokens)
        if work != MISSING:
            self._append_own(_BATCH_WORK, 0, 0, work)
        self._append_own(_BATCH, 0, 0, samples)

    def batch_evaluated(self) -> None:
        """Note that the batch fetched last is an evaluation's."""
        if get_ident() == self.thread:
            self._append_own(_BATCH_EVALUATED)
            self._set_flags(self._flags.value | _EVALUATION)

    def model_flops(self, unit: int, argument: int) -> None:
        """Note the model's FLOPs from the running step on: index in FLOPS_UNITS, `marks.flops_argument`."""
        self._append_own(_MODEL_FLOPS, unit, 0, argument)

    def annotate(self, quantity: int, value: int) -> None:
        """Add to a quantity of the step: its index in ANNOTATED, and the value."""
        if get_ident() == self.thread or self._adopt() == 1:
            self._put(self._clock(), _ANNOTATION, quantity, 0, value)

    def flag(self, flags: int) -> None:
        """Flag the running step."""
        self._append(_FLAGS, 0, 0, flags)
        self._set_flags(self._flags.value | flags)

    def compiled(self, graphs: int) -> None:
        """Note how many graphs were compiled so far."""
        self._append_own(_COMPILED, 0, 0, graphs)

    def spend(self, cost_ns: int) -> None:
        """Add to what the agent cost the running step."""
        self._append(_AGENT_COST, 0, 0, cost_ns)
