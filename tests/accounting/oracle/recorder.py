"""HOT (budget 300 ns a mark, 5,000 ns a step): the marks of the training thread, and which of them ends a step.

Hooks call the methods below, which note times and nothing else. What a step holds and what becomes of it at its end
is running_step.py's. Not here: torch, the failure boundary (hooks get these methods guarded), the decision who records
(agent.py).

Threads: everything belongs to the training thread, whose id is `thread`; calls from others return at once. 0 is
no thread's id, so a recorder with `thread == 0` is inert: before training begins, after a failure, in a forked child.
VACANT is no thread's id either: the training thread has ended, and the next one that trains takes its place.
Two exceptions: autograd's own threads issue collectives and step fused optimizers while the training thread is inside
its backward, and `Collective.done_ns` is set by the backend's thread. Each is a single store or append, atomic under
the GIL.
"""

from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns

from lockstep.contracts.records import Flag
from tests.accounting.oracle.account import BACKWARD, DATA, FORWARD, OPTIMIZER
from tests.accounting.oracle.iteration import Iteration
from tests.accounting.oracle.running_step import MARKS_MAX, RunningStep

VACANT = -1
"""`Recorder.thread` once the training thread has ended."""

_NONE = -1
_WARM_UP = int(Flag.WARM_UP)
_SKIPPED = int(Flag.SKIPPED_OPTIMIZER)
_FUSED_EVENT = 1  # optimizers that step inside backward


def _never() -> bool:
    """Answer for a process that has no autograd."""
    return False


class Recorder(RunningStep):
    """Marks of one rank's training thread.

    `store(record)` takes each finished record, `at_boundary(next_step)` returns flags for the step that begins;
    `adopt()` is asked when a thread that is not the training thread trains, and answers whether it now is the one.
    """

    def __init__(
        self, store: Callable[[bytearray], None], at_boundary: Callable[[int], int], adopt: Callable[[], bool]
    ) -> None:
        self._adopt = adopt
        self._explicit = False
        self.in_graph_task: Callable[[], bool] = _never
        """Whether the calling thread runs a part of an autograd graph's backward, now (hooks/backward.py)."""
        super().__init__(store, at_boundary)

    def begin_attempt(
        self,
        now_ns: int,
        beat: Callable[[int], None],
        note_issue: Callable[[int, int], None] | None = None,
        note_flags: Callable[[int], None] | None = None,
    ) -> None:
        """Forget everything and begin step 0, as `RunningStep.begin_attempt` says."""
        self._iteration = Iteration()
        self._close_spans(now_ns)
        super().begin_attempt(now_ns, beat, note_issue, note_flags)
        self._first_step = self.step

    def _close_spans(self, now_ns: int) -> None:
        self._depth = [0, 0, 0, 0]
        self._open = _NONE
        self._owner: object = None
        self._event = 0
        self._stepped = self._in_closure = False
        self._opened_ns = now_ns

    def records_here(self) -> bool:
        """Whether a collective issued by the calling thread, now, belongs to the training thread's step.

        On another thread it does where that works for the training thread's backward. Threads that save a checkpoint
        meanwhile do not; one that runs a backward of its own at the same time cannot be distinguished from autograd's.
        """
        return get_ident() == self.thread or (self.thread > 0 and self._open == BACKWARD and self.in_graph_task())

    # Which thread trains.

    @property
    def may_change_thread(self) -> bool:
        """Whether another thread that trains takes the place of the training thread.

        It does once that has ended, and as long as it has completed no step: it may only have set the job up. What
        runs inside its open backward works for it.
        """
        if self.thread == VACANT:
            return True
        return self.thread != 0 and self.step == self._first_step and not self._depth[BACKWARD]

    def change_thread(self) -> None:
        """Make the calling thread the training thread. What the former one left in the running step is dropped."""
        now = monotonic_ns()
        self._iteration = Iteration()
        self._close_spans(now)
        self._begin_again(now)
        self._first_step = self.step
        self.thread = get_ident()

    def vacate(self, thread: int) -> None:
        """Note that `thread` has ended."""
        if thread == self.thread:
            self.thread = VACANT

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
            self._due |= self.records_here()  # fused into a backward on a device, autograd's own thread steps
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

    def _end_iteration(self, now: int, event: int) -> None:
        if not self._explicit and self._iteration.ends_step(event):
            if not self._iteration.regular:
                self._draft.flags |= _WARM_UP
            self._end_step(now)

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

    def annotate(self, name: str, value: int) -> None:
        """Add `value` to the step's samples, tokens, work or flops, which from now on only annotations count."""
        if get_ident() == self.thread or self._adopt():
            self.quantities.annotate(name, value)
