"""HOT (budget 300 ns a mark, 5,000 ns a step): the marks of the running step, and its end.

Owns the draft of the running step; hooks call the methods below, which note times and nothing else. Not here: torch,
the failure boundary (hooks get these methods guarded), the decision who records (agent.py).

Threads: everything belongs to the training thread, whose id is `thread`; calls from others return at once. 0 is
no thread's id, so a recorder with `thread == 0` is inert: before training begins, after a failure, in a forked child.
Two exceptions: a backward on a GPU issues collectives from autograd's own thread while the training thread is inside
it, and `Collective.done_ns` is set by the backend's thread. Both are single stores or appends, atomic under the GIL.

On a device the marks say when work was queued. `timeline` notes a device event at each of them and hands a step's
draft back, in device time, when the device has come so far; without it a step is complete when it ends.
"""

from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

from lockstep.agent.account import BACKWARD, DATA, FORWARD, OPTIMIZER, Collective, Marks
from lockstep.agent.iteration import Iteration
from lockstep.agent.quantities import Quantities
from lockstep.agent.record import Draft, make_record
from lockstep.contracts.records import MISSING, Flag
from lockstep.contracts.ring import OTHER_SLOT

if TYPE_CHECKING:
    from lockstep.agent.garbage import CollectionLog

MARKS_MAX = 16_384
"""Marks of one sort in a step: three times what the largest known steps issue, and under 4 MB."""

_NONE = -1
_WARM_UP = int(Flag.WARM_UP)
_SKIPPED = int(Flag.SKIPPED_OPTIMIZER)
_EVALUATION = int(Flag.EVALUATION)
_FUSED_EVENT = 1  # optimizers that step inside backward


def unknown_flops(_samples: int, _tokens: int) -> int:
    """Answer that the model FLOPs of a step are not known."""
    return MISSING


class Recorder:
    """Marks of one rank's training thread.

    `store(record)` takes each finished record, `at_boundary(next_step)` returns flags for the step that begins;
    `adopt()` is asked when a thread that is not the training thread trains, and answers whether it now is the one.
    """

    def __init__(
        self, store: Callable[[bytearray], None], at_boundary: Callable[[int], int], adopt: Callable[[], bool]
    ) -> None:
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
        self._adopt = adopt
        self._explicit = False
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
        self._iteration = Iteration()
        self._seen_kinds: set[int] = set()
        self._pending: list[Collective] = []
        self._last_kind = _NONE
        self._backward_known = self._data_known = False
        self._compiled = 0
        self.quantities = Quantities()
        """What the running step holds."""
        self._depth = [0, 0, 0, 0]
        self._open = _NONE
        self._owner: object = None
        self._event = 0
        self._stepped = self._in_closure = False
        self._opened_ns = self._last_ns = now_ns
        self._cpu_start_ns = thread_time_ns()
        self._begin_step(Draft(0, now_ns, _WARM_UP))

    def _begin_step(self, draft: Draft) -> None:
        self._draft = draft
        self._marks = draft.marks
        if self._flagged:
            self._flagged = False
            self._note_flags(0)
        self._fed = self._trained = self._due = False

    @property
    def step(self) -> int:
        """Index of the running step."""
        return self._draft.step

    # Spans of the training thread. The outermost wins: what runs inside a span belongs to it, except that a
    # backward inside an optimizer step (a closure) is a backward.

    def enter_data(self) -> None:
        """Begin to wait for a batch."""
        if get_ident() != self.thread:
            return
        self._depth[DATA] += 1
        if self._open == _NONE:
            self._open = DATA
            self._opened_ns = now = monotonic_ns()
            if self.timeline is not None:
                self.timeline.mark(now)

    def leave_data(self) -> bool:
        """End it; return whether the batch is this step's own."""
        if get_ident() != self.thread or not self._depth[DATA]:
            return False
        now = monotonic_ns()
        self._depth[DATA] -= 1
        if self._depth[DATA] or self._open != DATA:
            return False
        if len(self._marks.spans) >= MARKS_MAX:
            self._drop_marks()
        self._marks.spans.append((DATA, self._opened_ns, now))
        self._open = _NONE
        self._last_ns = now
        self._fed = self._data_known = True
        self._beat(now)
        if self.timeline is not None:
            self.timeline.mark(now)
        return True

    def enter_backward(self) -> None:
        """Begin a backward; what ran since the last span was its forward."""
        if get_ident() != self.thread and not self._adopt():
            return
        depth = self._depth
        depth[BACKWARD] += 1
        if depth[BACKWARD] != 1:
            return
        now = monotonic_ns()
        if self._open == _NONE:
            self._marks.spans.append((FORWARD, self._last_ns, now))
        elif self._open in (FORWARD, OPTIMIZER):
            self._marks.spans.append((self._open, self._opened_ns, now))
        else:
            return
        self._open = BACKWARD
        self._opened_ns = now
        self._beat(now)
        if self.timeline is not None:
            self.timeline.mark(now)

    def leave_backward(self) -> None:
        """End it, and the step with it if an optimizer stepped inside."""
        if get_ident() != self.thread or not self._depth[BACKWARD]:
            return
        now = monotonic_ns()
        self._depth[BACKWARD] -= 1
        if self._depth[BACKWARD] or self._open != BACKWARD:
            return
        if len(self._marks.spans) >= MARKS_MAX:
            self._drop_marks()
        self._marks.spans.append((BACKWARD, self._opened_ns, now))
        self._last_ns = now
        self._backward_known = self._trained = True
        if self._in_closure:
            self._open = FORWARD
            self._opened_ns = now
        elif self._depth[OPTIMIZER]:
            self._open = OPTIMIZER
            self._opened_ns = now
        else:
            self._open = _NONE
        if not self._depth[OPTIMIZER]:  # a closure is called as often as its optimizer likes
            self.quantities.add_backward()
        if self.timeline is not None:
            self.timeline.mark(now)
        if self._due:
            self._due = False
            self._end_iteration(now, _FUSED_EVENT)

    def enter_optimizer(self, optimizer: object) -> None:
        """Begin an optimizer's step, which may contain those of others."""
        if get_ident() != self.thread and not self._adopt():
            return
        self._stepped = True
        if optimizer is self._owner:  # its last step raised, so it never left
            self._depth[OPTIMIZER] = 0
            if self._open == OPTIMIZER:
                self._open = _NONE
        self._depth[OPTIMIZER] += 1
        if self._depth[OPTIMIZER] == 1:
            self._open_optimizer(optimizer, optimizer)

    def enter_closure(self) -> None:
        """Begin to evaluate the model inside an optimizer's step: a forward, as far as no backward runs."""
        if get_ident() == self.thread and self._open == OPTIMIZER:
            self._in_closure = True
            self._switch(FORWARD)

    def leave_closure(self) -> None:
        """End it; the optimizer goes on."""
        if get_ident() == self.thread and self._in_closure:
            self._in_closure = False
            if self._open == FORWARD:
                self._switch(OPTIMIZER)

    def _switch(self, phase: int) -> None:
        now = monotonic_ns()
        self._marks.spans.append((self._open, self._opened_ns, now))
        self._open = phase
        self._opened_ns = now
        if self.timeline is not None:
            self.timeline.mark(now)

    def enter_scaler(self, scaler: object, optimizer: object) -> None:
        """Begin a gradient scaler's step, which skips that of its optimizer when gradients overflowed."""
        self.enter_optimizer(scaler)
        if self._owner is scaler:
            self._stepped = False
            self._event = self._iteration.event_of(optimizer)

    def leave_scaler(self, scaler: object) -> None:
        """End it, and flag the step if the optimizer did not."""
        if self._owner is scaler and not self._stepped and get_ident() == self.thread:
            self._draft.flags |= _SKIPPED
        self.leave_optimizer()

    def _open_optimizer(self, owner: object, optimizer: object) -> None:
        self._owner = owner
        self._event = self._iteration.event_of(optimizer)
        if self._open == _NONE:
            self._open = OPTIMIZER
            self._opened_ns = now = monotonic_ns()
            if self.timeline is not None:
                self.timeline.mark(now)

    def leave_optimizer(self) -> None:
        """End it; the outermost one ends the training step where an iteration ends."""
        if get_ident() != self.thread or not self._depth[OPTIMIZER]:
            return
        now = monotonic_ns()
        self._depth[OPTIMIZER] -= 1
        if self._depth[OPTIMIZER]:
            return
        self._owner = None
        if self._open == OPTIMIZER:
            self._marks.spans.append((OPTIMIZER, self._opened_ns, now))
            self._open = _NONE
            self._last_ns = now
            if self.timeline is not None:
                self.timeline.mark(now)
            event = self._event + self._has_trained()
            self._trained = self._fed = False
            self._end_iteration(now, event)
        elif self._open == BACKWARD:  # optimizers fused into the backward: the step ends where that does
            self._due = True

    def _has_trained(self) -> bool:
        """Whether training led up to this optimizer step, by the best sign that this rank ever gives."""
        if self._backward_known:
            return self._trained
        return self._fed or not self._data_known

    # What frameworks without torch's hooks say themselves (lockstep.phase and its like).

    def enter_phase(self, phase: int) -> None:
        """Begin a phase (DATA, FORWARD, BACKWARD, OPTIMIZER) that the training names itself."""
        if get_ident() != self.thread and not self._adopt():
            return
        self._depth[phase] += 1
        if self._open == _NONE:
            self._open = phase
            self._opened_ns = monotonic_ns()

    def leave_phase(self, phase: int) -> None:
        """End it."""
        if get_ident() != self.thread or not self._depth[phase]:
            return
        self._depth[phase] -= 1
        if self._depth[phase] or self._open != phase:
            return
        now = monotonic_ns()
        self._marks.spans.append((phase, self._opened_ns, now))
        self._open = _NONE
        self._last_ns = now
        self._backward_known |= phase == BACKWARD
        self._beat(now)

    def begin_explicit(self) -> None:
        """From now on steps end where the training says so, not where iterations are seen to end."""
        if get_ident() == self.thread or self._adopt():
            self._explicit = True

    def end_explicit(self) -> None:
        """End the running step here."""
        self.begin_explicit()
        if get_ident() == self.thread:
            self._end_step(monotonic_ns())

    # What a step holds.

    def annotate(self, name: str, value: int) -> None:
        """Add `value` to the step's samples, tokens, work or flops, which from now on only annotations count."""
        if get_ident() == self.thread or self._adopt():
            self.quantities.annotate(name, value)

    def flag(self, flags: int) -> None:
        """Mark the running step; any thread may."""
        self._draft.flags |= flags
        self._flagged = True
        self._note_flags(self._draft.flags)

    # Communication.

    def records_here(self) -> bool:
        """Whether a collective issued by the calling thread, now, belongs to the training thread's step."""
        return get_ident() == self.thread or (self.thread != 0 and self._open == BACKWARD)

    def issue(self, collective: Collective, slot: int = OTHER_SLOT) -> None:
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

    def begin_block(self) -> int:
        """Return the time at which a wait begins; on a device it is seen there too."""
        now = monotonic_ns()
        if self.timeline is not None:
            self.timeline.mark(now)
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
        if self._last_kind != _NONE:
            self._marks.blocks.append((start_ns, end_ns, kind))
            self._beat(end_ns)
            if self.timeline is not None:
                self.timeline.mark(end_ns)

    def spend(self, agent_ns: int) -> None:
        """Add to what the agent cost the training thread in this step: step ends and collectives.

        The marks and counted batches are not timed: that would double them.
        """
        self._draft.agent_ns += agent_ns

    # The end of a step.

    def _end_iteration(self, now: int, event: int) -> None:
        if not self._explicit and self._iteration.ends_step(event):
            if not self._iteration.regular:
                self._draft.flags |= _WARM_UP
            self._end_step(now)

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
        following.agent_ns += monotonic_ns() - now

    def finish(self) -> None:
        """Record nothing more; write the steps that the device was not done with when they ended."""
        self.thread = 0
        if self.timeline is not None:
            for draft in self.timeline.drain():
                self._store(make_record(draft))

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
