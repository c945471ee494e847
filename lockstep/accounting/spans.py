"""Turns marks of the training thread into spans of phases and ends of outermost optimizer steps.

The outermost span wins: everything that runs inside belongs to it, except that a backward inside an optimizer's step (a
closure) is a backward. Forward is the time between the last span and a backward.

Methods that may end an iteration return its event (iteration.py), other methods nothing. Not here: what ends a step.
"""

from collections.abc import Mapping
from operator import le
from typing import ClassVar

from lockstep.accounting.events import BACKWARD, DATA, FORWARD, OPTIMIZER, PHASE_COUNT, StepEvents
from lockstep.accounting.iteration import IterationLearner
from lockstep.accounting.state import BOOLEAN, COUNT, TIME_NS, IntegerForm, StateForm, TupleForm
from lockstep.contracts.bounds import INT63_MAX

_NO_PHASE = -1
_NO_OWNER = -1
FUSED_EVENT = 1
"""Event of optimizers that step inside a backward."""


class SpanTracker:
    """The current span of one rank's training thread; spans that end are appended to `events.spans`.

    `backward_known` is true if this rank has ever shown a backward, `is_backward` if it is inside one, `owns_batch` if
    the last data span was the outermost span. `last_ns` is when the last span or step ended. `has_unmatched_end` is
    true if a span ended in this step that never began.
    """

    STATE: ClassVar[Mapping[str, StateForm]] = {
        **dict.fromkeys(("last_ns", "_opened_ns"), TIME_NS),
        **dict.fromkeys(("has_unmatched_end", "backward_known", "_data_known", "owns_batch"), BOOLEAN),
        **dict.fromkeys(("_fed", "_trained", "_due", "_stepped", "_in_closure"), BOOLEAN),
        "_depth": TupleForm(*[COUNT] * PHASE_COUNT, make=lambda *depth: list(depth)),
        "_open": IntegerForm(_NO_PHASE, PHASE_COUNT - 1),
        "_owner": IntegerForm(_NO_OWNER, INT63_MAX),
        "_event": COUNT,
    }

    def __init__(self, start_ns: int) -> None:
        self.events = StepEvents()
        self.backward_known = self._data_known = False
        self.owns_batch = True
        self.begin_step(start_ns)
        self.leave_all()

    def begin_step(self, start_ns: int) -> None:
        """Begin a step: no training precedes its optimizer step yet."""
        self.last_ns = start_ns
        self.has_unmatched_end = False
        self._fed = self._trained = self._due = False

    def leave_all(self) -> None:
        """Forget which spans are open."""
        self._depth = [0] * PHASE_COUNT
        self._open = _NO_PHASE
        self._opened_ns = 0
        self._owner = _NO_OWNER
        self._event = 0
        self._stepped = self._in_closure = False

    @property
    def is_backward(self) -> bool:
        """Whether the training thread is inside a backward."""
        return self._open == BACKWARD

    @property
    def open_since(self) -> tuple[int, int]:
        """The open phase (negative for none) and when it began, ns."""
        return self._open, self._opened_ns

    @property
    def is_in_optimizer(self) -> bool:
        """Whether an optimizer step is under way, which may call its closure any number of times."""
        return self._depth[OPTIMIZER] > 0

    def have_ascended(self) -> bool:
        """Whether the step's spans so far are in the order of time."""
        times = [time for _, begin, end in self.events.spans for time in (begin, end)]
        return all(map(le, times, times[1:]))

    def _close(self, now_ns: int) -> None:
        self.events.spans.append((self._open, self._opened_ns, now_ns))

    def _switch(self, phase: int, now_ns: int) -> None:
        self._close(now_ns)
        self._open = phase
        self._opened_ns = now_ns

    def _leave(self, phase: int) -> bool:
        """Count the end of a span of `phase`; return whether it was the open one."""
        depth = self._depth
        if not depth[phase]:
            self.has_unmatched_end = True
            return False
        depth[phase] -= 1
        return not depth[phase] and self._open == phase

    def begin_phase(self, phase: int, now_ns: int) -> None:
        """Begin to wait for a batch, or a phase that the training names."""
        self._depth[phase] += 1
        if self._open == _NO_PHASE:
            self._open = phase
            self._opened_ns = now_ns

    def end_phase(self, phase: int, now_ns: int) -> None:
        """End a phase that the training names."""
        if self._leave(phase):
            self._switch(_NO_PHASE, now_ns)
            self.last_ns = now_ns
            self.backward_known |= phase == BACKWARD

    def end_data(self, now_ns: int) -> None:
        """End the wait for a batch."""
        self.owns_batch = self._leave(DATA)
        if self.owns_batch:
            self._switch(_NO_PHASE, now_ns)
            self.last_ns = now_ns
            self._fed = self._data_known = True

    def begin_backward(self, now_ns: int) -> None:
        """Begin a backward; the time since the last span was its forward."""
        self._depth[BACKWARD] += 1
        if self._depth[BACKWARD] != 1:
            return
        if self._open == _NO_PHASE:
            self.events.spans.append((FORWARD, self.last_ns, now_ns))
        elif self._open in (FORWARD, OPTIMIZER):
            self._close(now_ns)
        else:
            return
        self._open = BACKWARD
        self._opened_ns = now_ns

    def end_backward(self, now_ns: int) -> bool:
        """End a backward; return whether it was the outermost span.

        `fused_event` returns the event of optimizers inside.
        """
        if not self._leave(BACKWARD):
            return False
        after = FORWARD if self._in_closure else OPTIMIZER if self._depth[OPTIMIZER] else _NO_PHASE
        self._switch(after, now_ns)
        self.last_ns = now_ns
        self.backward_known = self._trained = True
        return True

    def fuse_optimizer(self) -> None:
        """Note that autograd's thread has stepped an optimizer inside the open backward."""
        self._due |= self.is_backward

    def fused_event(self) -> int | None:
        """Return the event of optimizers that stepped inside the backward that has just ended.

        None on the next call.
        """
        if not self._due:
            return None
        self._due = False
        return FUSED_EVENT

    def begin_optimizer(self, identity: int, learner: IterationLearner, now_ns: int) -> None:
        """Begin an optimizer step, which may contain steps of other optimizers."""
        self._stepped = True
        if identity == self._owner:  # its last step raised, so it never ended
            self._depth[OPTIMIZER] = 0
            if self._open == OPTIMIZER:
                self._open = _NO_PHASE
        self._depth[OPTIMIZER] += 1
        if self._depth[OPTIMIZER] != 1:
            return
        self._owner = identity
        self._event = learner.event_of(identity)
        if self._open == _NO_PHASE:
            self._open = OPTIMIZER
            self._opened_ns = now_ns

    def end_optimizer(self, now_ns: int) -> int | None:
        """End an optimizer step; return the event if it was the outermost one."""
        depth = self._depth
        if not depth[OPTIMIZER]:
            self.has_unmatched_end = True
            return None
        depth[OPTIMIZER] -= 1
        if depth[OPTIMIZER]:
            return None
        self._owner = _NO_OWNER
        if self._open == BACKWARD:  # fused into the backward: the step ends with it
            self._due = True
        if self._open != OPTIMIZER:
            return None
        self._switch(_NO_PHASE, now_ns)
        self.last_ns = now_ns
        event = self._event + self._has_trained()
        self._trained = self._fed = False
        return event

    def _has_trained(self) -> bool:
        """Whether training preceded this optimizer step, by the most reliable sign that this rank shows."""
        if self.backward_known:
            return self._trained
        return self._fed or not self._data_known

    def begin_scaler(self, identity: int, optimizer: int, learner: IterationLearner, now_ns: int) -> None:
        """Begin a gradient scaler's step, which skips its optimizer's step if gradients overflowed."""
        self.begin_optimizer(identity, learner, now_ns)
        if self._owner == identity:
            self._stepped = False
            self._event = learner.event_of(optimizer)

    def has_skipped(self, identity: int) -> bool:
        """Whether the scaler whose step ends now has skipped its optimizer."""
        return self._owner == identity and not self._stepped

    def begin_closure(self, now_ns: int) -> None:
        """Begin to evaluate the model inside an optimizer step: a forward, except where a backward runs."""
        if self._open == OPTIMIZER:
            self._in_closure = True
            self._switch(FORWARD, now_ns)

    def end_closure(self, now_ns: int) -> None:
        """End a closure; the optimizer continues."""
        if self._in_closure:
            self._in_closure = False
            if self._open == FORWARD:
                self._switch(OPTIMIZER, now_ns)
