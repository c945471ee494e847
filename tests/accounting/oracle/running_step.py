"""HOT (within recorder.py's budget of 300 ns a mark and 5,000 ns a step): the running step, what it holds, how it ends.

Owns the draft of the running step with its quantities, flags, collectives and waits. What the training thread does
when, and which of it ends a step, is recorder.py's, which builds on this. Not here either: torch, the failure boundary.

On a device the marks say when work was queued. `timeline` notes a device event at each of them and hands a step's
draft back, in device time, when the device has come so far; without it a step is complete when it ends.
"""

from collections.abc import Callable, Mapping
from time import monotonic_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

from lockstep.contracts.records import MISSING, Flag
from tests.accounting.oracle.account import Collective, Marks, Traffic
from tests.accounting.oracle.quantities import Quantities
from tests.accounting.oracle.record import Draft, make_record

if TYPE_CHECKING:
    from tests.accounting.oracle.garbage import CollectionLog

MARKS_MAX = 16_384
"""Marks of one sort in a step: three times what the largest known steps issue, and under 4 MB."""

_NO_KIND = -1
_WARM_UP = int(Flag.WARM_UP)
_EVALUATION = int(Flag.EVALUATION)


def unknown_flops(_samples: int, _tokens: int) -> int:
    """Answer that the model FLOPs of a step are not known."""
    return MISSING


class RunningStep:
    """The step that runs now, and the way of the finished ones into the ring.

    `store(record)` takes each finished record, `at_boundary(next_step)` returns flags for the step that begins.

    Everything belongs to the training thread, whose id is `thread` (0: nobody's), with two exceptions: any thread may
    call `flag`, and the backend's sets `Collective.done_ns`. Both are single stores, atomic under the GIL.
    """

    def __init__(self, store: Callable[[bytearray], None], at_boundary: Callable[[int], int]) -> None:
        self.thread = 0
        self.flops: Callable[[int, int], int] = unknown_flops
        """Model FLOPs of a step of so many samples and tokens, where nobody annotated them."""
        self.compilations: Callable[[], int] | None = None
        """How many graphs were compiled so far."""
        self.timeline: Any = None
        self.garbage: CollectionLog | None = None
        """Collections of garbage, read at each step's end."""
        self._store = store
        self._at_boundary = at_boundary
        self.begin_attempt(0, lambda _now_ns: None)

    def begin_attempt(
        self,
        now_ns: int,
        beat: Callable[[int], None],
        note_issue: Callable[[int, int], None] | None = None,
        note_flags: Callable[[int], None] | None = None,
    ) -> None:
        """Forget everything and begin step 0, which is a warm-up: what came before it is not known exactly.

        `beat(now_ns)` is given a sign of life at most marks, `note_issue(slot, now_ns)` each collective at its issue,
        which is one as well, and `note_flags(flags)` what was said of the running step before its end.
        """
        if self.garbage is not None:  # what was collected before is no step's
            self.garbage.take(0)
            self.garbage.take_full_count()
        self._beat = beat
        self._note_issue = note_issue or (lambda _slot, now_ns: beat(now_ns))
        self._note_flags = note_flags or (lambda _flags: None)
        self._flagged = False
        self._seen_kinds: set[int] = set()
        self._pending: list[Collective] = []
        self._last_kind = _NO_KIND
        self._backward_known = self._data_known = False  # whether this rank ever shows them
        self._compiled = 0
        self.quantities = Quantities()
        """What the running step holds."""
        self._last_ns = now_ns  # end of the last span or step
        self._cpu_start_ns = thread_time_ns()
        self._begin_step(Draft(0, now_ns, _WARM_UP))

    def _begin_step(self, draft: Draft) -> None:
        self._draft = draft
        self._marks = draft.marks
        if self._flagged:
            self._flagged = False
            self._note_flags(0)
        # Had a batch; had a backward; ends with the running one.
        self._fed = self._trained = self._due = False

    @property
    def step(self) -> int:
        """Index of the running step."""
        return self._draft.step

    # What it holds.

    def flag(self, flags: int) -> None:
        """Mark the running step; any thread may."""
        self._draft.flags |= flags
        self._flagged = True
        self._note_flags(self._draft.flags)

    def spend(self, agent_ns: int) -> None:
        """Add wall time that the agent took from the training thread in this step at a collective or a batch.

        Thread time is what counts, but to read its clock four times would cost a collective 40 % more (0.26 µs each of
        2.7 µs). Step ends, where captures begin and are written, are thread time; the marks are not timed at all, that
        would double them.
        """
        self._draft.agent_ns += agent_ns

    # Communication.

    def issue(self, collective: Collective, slot: int = 0) -> None:
        """Note a collective at its issue, counted in an issue slot of the ring."""
        if len(self._marks.collectives) >= MARKS_MAX:
            self._drop_marks()
        self._marks.collectives.append(collective)
        self._last_kind = collective.kind
        self._seen_kinds.add(collective.kind)
        self._note_issue(slot, collective.issue_ns)
        if self.timeline is not None:
            self.timeline.issued(collective)

    def expect(self, collective: Collective) -> None:
        """Take the end of the next wait as the time when `collective` was done: nobody else will say."""
        self._pending.append(collective)

    def note_unmeasured(self, traffic: Mapping[int, Traffic] | None) -> None:
        """Note collectives, by kind, that were carried out without being dispatched; None if nobody knows which."""
        unmeasured = self._marks.unmeasured
        if traffic is None:
            traffic = dict.fromkeys(self._seen_kinds, (0, 0, 0))
        for kind, added in traffic.items():
            self._seen_kinds.add(kind)
            count, payload_bytes, bus_bytes = unmeasured.get(kind, (0, 0, 0))
            unmeasured[kind] = (count + added[0], payload_bytes + added[1], bus_bytes + added[2])

    def begin_block(self) -> int:
        """Return the time at which a wait begins; on a device it is seen there too."""
        now = monotonic_ns()
        if self.timeline is not None:
            self.timeline.mark_wait(now)
        return now

    def block(self, start_ns: int, end_ns: int) -> None:
        """Note that the training thread waited for communication."""
        pending = self._pending
        kind = ~self._last_kind
        if pending:
            kind = pending[-1].kind
            for collective in pending:
                collective.done_ns = end_ns
            pending.clear()
        if self._last_kind != _NO_KIND:
            self._marks.blocks.append((start_ns, end_ns, kind))
            self._beat(end_ns)
            if self.timeline is not None:
                self.timeline.mark_wait(end_ns)

    # Its end.

    def _end_step(self, now: int) -> None:
        draft = self._draft
        draft.end_ns = now
        cpu_ns = thread_time_ns()
        draft.cpu_ns = cpu_ns - self._cpu_start_ns
        self._cpu_start_ns = cpu_ns
        draft.kinds = self._seen_kinds
        draft.has_backward = self._backward_known
        self.quantities.end_step(draft)
        garbage = self.garbage
        if garbage is not None and (garbage.events or garbage.taken):
            draft.marks.gcs = collections = garbage.take(self.thread)
            draft.gc_full_count = min(garbage.take_full_count(), len(collections))
        if draft.flops == MISSING:
            draft.flops = self.flops(draft.samples, draft.tokens)
        if self.compilations is not None:
            compiled = self.compilations()
            draft.recompilations = compiled - self._compiled
            self._compiled = compiled
        if self._pending:
            self._drop_pending()
        self._last_ns = now
        following = Draft(draft.step + 1, now, 0)
        self._begin_step(following)
        self._beat(now)
        if self.timeline is None:
            self._store(make_record(draft))
        else:
            self.timeline.close(draft)
            for ready in self.timeline.ready():
                self._store(make_record(ready))
        following.flags |= self._at_boundary(following.step)
        following.agent_ns += thread_time_ns() - cpu_ns

    def finish(self) -> None:
        """Record nothing more; write the steps that the device was not done with when they ended."""
        self.thread = 0
        if self.timeline is not None:
            for draft in self.timeline.drain():
                self._store(make_record(draft))

    def _begin_again(self, now_ns: int) -> None:
        """Forget what the running step was made of so far: its rest is another thread's, and it is a warm-up."""
        self._drop_pending()
        self._draft.marks = self._marks = Marks()
        self._draft.flags |= _WARM_UP
        self._fed = self._trained = self._due = False
        self._last_ns = now_ns
        self._cpu_start_ns = thread_time_ns()

    def _drop_marks(self) -> None:
        """Forget what the running step was made of so far: its time is the host's, and it is not one like the others.

        A process that never steps (an evaluation of hours, inference over several ranks) must not fill memory.
        """
        self._drop_pending()
        self._draft.marks = self._marks = Marks()
        self._draft.flags |= _EVALUATION

    def _drop_pending(self) -> None:
        """Give up on collectives that nobody waited for: when they are done is not known, and taken as at once."""
        for collective in self._pending:
            collective.done_ns = collective.issue_ns
        self._pending.clear()
