"""HOT (budget 400 ns a mark, 2,000 ns a block): marks in Python, for processes that cannot load `_marks`.

The interface and the bytes are those of the C extension; contracts/marks.py is the layout. Nothing is interpreted here:
lockstep/accounting makes step records of the marks, in the exporter. mark_block.py defines which thread may append.
"""

from collections.abc import Callable
from threading import get_ident
from typing import Any

from lockstep.agent.call_marks import CallMarks
from lockstep.agent.mark_block import BACKWARDS, LAST, OPTIMIZERS, STEP, STEPS, ordinal_at, pack_mark, pack_plain
from lockstep.contracts.marks import ORDINAL_MASK, OTHER_THREAD, MarkKind
from lockstep.contracts.records import MISSING, Flag

_IDENTITY_SHIFT = 4  # addresses of objects are multiples of 16

# fmt: off
(
    _BEGIN, _DATA_BEGIN, _DATA_END, _BACKWARD_BEGIN, _BACKWARD_END, _OPTIMIZER_BEGIN, _OPTIMIZER_END,
    _SCALER_BEGIN, _SCALER_END, _CLOSURE_BEGIN, _CLOSURE_END, _PHASE_BEGIN, _PHASE_END, _EXPLICIT, _STEP_END,
) = (int(kind) for kind in MarkKind if kind <= MarkKind.STEP_END)  # struct packs plain integers in half the time
(
    _GC_BEGIN, _GC_END, _BATCH_TOKENS, _BATCH_WORK, _BATCH, _BATCH_EVALUATED, _ANNOTATION, _FLAGS, _COMPILED,
    _AGENT_COST, _FAILURE, _FINISH, _THREAD, _FUSED_STEP,
) = (int(kind) for kind in MarkKind if MarkKind.GC_BEGIN <= kind <= MarkKind.FUSED_STEP)
_MODEL_FLOPS = int(MarkKind.MODEL_FLOPS)
# fmt: on

_EVALUATION = int(Flag.EVALUATION)
_WORKS_FOR_BACKWARD, _STEPS_ELSEWHERE = 2, 3


class MarkBuffer(CallMarks):
    """The marks of one attempt, one method for each event that hooks report; constructed as `MarkBlockWriter`.

    Methods append one mark, stamped with CLOCK_MONOTONIC in ns, and return nothing unless stated. They may be called on
    any thread: a call that is not the training thread's to make is ignored, as are all calls while `thread` is 0.
    None raises for a failed store (`failures`).
    """

    __slots__ = ()

    # An attempt.

    def begin(self) -> None:
        """Begin an attempt. The calling thread becomes the training thread, whose marks count from now on."""
        self._take_thread(_BEGIN, self.collective_cost_ns, self.mark_cost_ns)

    def change_thread(self) -> None:
        """Make the calling thread the training thread; open backwards of the former one are forgotten."""
        self._take_thread(_THREAD, 0, 0)

    def _take_thread(self, kind: int, detail: int, subject: int) -> None:
        now, cpu_ns = self._clock(), self._cpu_clock()
        self.thread = get_ident()
        if self.garbage is not None:
            self.garbage.drain(self.thread)  # collections before this belong to no step
        self.backward_depth = self.elsewhere_ns = 0
        self._stepping_elsewhere = 0
        self._put(now, kind, detail, subject, cpu_ns)

    def finish(self) -> None:
        """End the attempt without a failure, store all marks, and ignore every later call."""
        if self.elsewhere_ns:
            self.note_elsewhere()
        self._append(_FINISH)
        self._end()

    def fail(self, failures: int) -> None:
        """End the attempt after `failures` failed hooks, store all marks, and ignore every later call."""
        self._append(_FAILURE, argument=failures)
        self._end()

    def _end(self) -> None:
        self.thread = 0  # first: what another thread appends before this is stored
        self._store()

    # Spans.

    # The three below hold a copy of `_put`, whose call costs 80 ns each time (benchmarks/mark_cost.py).

    def backward_begin(self) -> None:
        """Begin a backward pass; they may be nested (`backward_depth`)."""
        if self.elsewhere_ns:
            self.note_elsewhere()
        if get_ident() != self.thread and self._claim_thread(False) != 1:
            return
        now = self._clock()
        if not self.backward_depth:
            self._ends_at_backward = self.optimizer_ends
        self.backward_depth += 1
        at = self._at  # one turn
        first = self._position
        self._at = at + STEP
        pack_plain(self._block, at, now, _BACKWARD_BEGIN, 0)
        if now >= self._due_ns or at >= LAST:
            self._store()
        if self._has_sequel:
            self._follow(_BACKWARD_BEGIN, ordinal_at(first, at))

    def backward_end(self) -> None:
        """End the innermost backward pass, with the thread's CPU time in ns if a step may end here."""
        if get_ident() != self.thread:
            return
        now = self._clock()
        if self.backward_depth:
            self.backward_depth -= 1
        if self.optimizer_ends != self._ends_at_backward:  # the step may end here
            self._put_end(now, _BACKWARD_END, BACKWARDS)
            return
        at = self._at  # one turn
        first = self._position
        self._at = at + STEP
        self.backward_ends += 1
        pack_plain(self._block, at, now, _BACKWARD_END, MISSING)
        if now >= self._due_ns or at >= LAST:
            self._store()
        if self._device is not None:
            self._device(_BACKWARD_END, 0, 0, ordinal_at(first, at))
        if self.boundary_ends == BACKWARDS and self.boundary_at == self.backward_ends:
            self._at_boundary()
        if self._wants_poll:
            self._poll()

    def optimizer_begin(self, optimizer: object) -> None:
        """Begin the step of an optimizer, which may contain those of others."""
        if get_ident() != self.thread and not self._admits_optimizer(optimizer):
            return
        now = self._clock()
        identity = (id(optimizer) ^ self._key) >> _IDENTITY_SHIFT & ORDINAL_MASK
        at = self._at  # one turn
        first = self._position
        self._at = at + STEP
        pack_mark(self._block, at, now, _OPTIMIZER_BEGIN, 0, identity, 0)
        if now >= self._due_ns or at >= LAST:
            self._store()
        if self._has_sequel:
            self._follow(_OPTIMIZER_BEGIN, ordinal_at(first, at))

    def _admits_optimizer(self, optimizer: object) -> bool:
        """Whether the step of `optimizer`, on another thread, is now the training thread's.

        Autograd's own thread may step one for its backward, and a thread of the training's that does nothing else.
        """
        answer = self._claim_thread(True)
        if answer == _STEPS_ELSEWHERE:
            self._elsewhere = self._identity(optimizer)
            self._stepping_elsewhere += 1
            self.elsewhere_ns = self._clock()
        if answer == _WORKS_FOR_BACKWARD:
            self._put_fused_step(self._clock())
        return answer == 1

    def _put_fused_step(self, now: int) -> None:
        at = self._at  # one turn
        self.optimizer_ends += 1
        self._at = at + STEP
        pack_plain(self._block, at, now, _FUSED_STEP | OTHER_THREAD, 0)
        if now >= self._due_ns or at >= LAST:
            self._store()
        if self._wants_poll:
            self._poll()

    def optimizer_end(self) -> None:
        """End the innermost step of an optimizer, with the thread's CPU time in ns."""
        if get_ident() != self.thread:
            self._end_elsewhere()
            return
        self._put_end(self._clock(), _OPTIMIZER_END, OPTIMIZERS)

    def optimizer_pre_hook(self, optimizer: object, args: Any, kwargs: Any) -> Any:
        """Begin the step of an optimizer, as torch's step pre-hook; return replaced arguments or None."""
        self.optimizer_begin(optimizer)
        if self.meet is not None:
            self._meet_optimizer(optimizer, self.meet)
        if self.watch_closure is not None and (len(args) > 1 or kwargs):
            return self.watch_closure(args, kwargs)
        return None

    def optimizer_post_hook(self, _optimizer: object, _args: Any, _kwargs: Any) -> None:
        """End the step of an optimizer, as torch's step post-hook."""
        self.optimizer_end()

    def _meet_optimizer(self, optimizer: object, meet: Callable[[Any], None]) -> None:
        """Show an optimizer that was not met before, as far as that is remembered, to `meet`."""
        identity = self._identity(optimizer)
        if identity in self._met:
            return
        if get_ident() == self.thread or (self._stepping_elsewhere and identity == self._elsewhere):
            self._met.append(identity)
            meet(optimizer)

    def scaler_begin(self, scaler: object, optimizer: object) -> None:
        """Begin the step of a gradient scaler, which skips that of its optimizer when gradients overflowed."""
        if get_ident() == self.thread or self._admits_optimizer(optimizer):
            identity = self._identity(scaler)
            number = self._put(self._clock(), _SCALER_BEGIN, 0, identity, self._identity(optimizer))
            if self._device is not None:
                self._device(_SCALER_BEGIN, 0, 0, number & ORDINAL_MASK)

    def scaler_end(self, scaler: object) -> None:
        """End the step of a gradient scaler, with the thread's CPU time in ns."""
        if get_ident() != self.thread:
            self._end_elsewhere()
            return
        self._put_end(self._clock(), _SCALER_END, OPTIMIZERS, self._identity(scaler))

    # An optimizer that a thread of its own steps (offloaded to the host): the training thread notes its step where it
    # goes on, at the next batch, backward, or end of the attempt, with the time when it ended; when it began, if it
    # still runs: then it overlaps with the next step, and when it ends depends on chance.

    def _end_elsewhere(self) -> None:
        if self._stepping_elsewhere:
            self._stepping_elsewhere -= 1
            if self.elsewhere_ns:
                self.elsewhere_ns = self._clock()

    def note_elsewhere(self) -> None:
        """Note the step of an optimizer elsewhere, on the training thread and outside of a backward."""
        if get_ident() != self.thread or self.backward_depth:
            return
        ended_ns, self.elsewhere_ns = max(self.elsewhere_ns, self._last_time()), 0
        number = self._put(ended_ns, _OPTIMIZER_BEGIN, 0, self._elsewhere, 0)
        if self._device is not None:
            self._device(_OPTIMIZER_BEGIN, 0, 0, number & ORDINAL_MASK)
        self._put_end(ended_ns, _OPTIMIZER_END, OPTIMIZERS)

    def _identity(self, value: object) -> int:
        return (id(value) ^ self._key) >> _IDENTITY_SHIFT & ORDINAL_MASK

    def phase_begin(self, phase: int) -> None:
        """Begin a phase that the training names: 0 data, 1 forward, 2 backward, 3 optimizer."""
        if get_ident() == self.thread or self._claim_thread(False) == 1:
            self._put(self._clock(), _PHASE_BEGIN, phase, 0, 0)

    def phase_end(self, phase: int) -> None:
        """End a phase begun by `phase_begin`."""
        self._append_own(_PHASE_END, phase)

    def begin_explicit(self) -> None:
        """Declare that from now on steps end at `step_end` only, not where optimizers step."""
        if get_ident() == self.thread or self._claim_thread(False) == 1:
            self._put(self._clock(), _EXPLICIT, 0, 0, 0)

    def step_end(self) -> None:
        """End the running step by a call of the training, with the thread's CPU time in ns."""
        if get_ident() != self.thread and self._claim_thread(False) != 1:
            return
        self._put_end(self._clock(), _STEP_END, STEPS)

    # What else a step holds.

    def collect(self, phase: str, info: dict[str, Any]) -> None:
        """Mark the start or stop of a garbage collection, as a callback of `gc.callbacks`.

        Python may run signal handlers in here, and the collector swallows what they raise; the C extension runs none
        (garbage.py).
        """
        kind = _GC_BEGIN if phase == "start" else _GC_END
        self._append_own(kind, info.get("generation", 0))

    def batch(self, samples: int, tokens: int, work: int) -> None:
        """Count samples, tokens and work (records.py) of the batch fetched last; MISSING if unknown."""
        if tokens != MISSING:
            self._append_own(_BATCH_TOKENS, 0, 0, tokens)
        if work != MISSING:
            self._append_own(_BATCH_WORK, 0, 0, work)
        self._append_own(_BATCH, 0, 0, samples)

    def batch_evaluated(self) -> None:
        """Mark the batch fetched last, and thereby the running step, as an evaluation's."""
        if get_ident() == self.thread:
            self._append_own(_BATCH_EVALUATED)
            self._set_flags(self._flags | _EVALUATION)

    def model_flops(self, unit: int, argument: int) -> None:
        """Set the model's FLOPs per unit from the running step on.

        `unit` is an index in FLOPS_UNITS, `argument` the FLOPs as `marks.flops_argument` packs them.
        """
        self._append_own(_MODEL_FLOPS, unit, 0, argument)

    def annotate(self, quantity: int, value: int) -> None:
        """Add `value` to a quantity of the running step; `quantity` is its index in ANNOTATED, which gives the unit."""
        if get_ident() == self.thread or self._claim_thread(False) == 1:
            self._put(self._clock(), _ANNOTATION, quantity, 0, value)

    def flag(self, flags: int) -> None:
        """Add flags (`records.Flag` bits) to the running step."""
        self._append(_FLAGS, 0, 0, flags)
        self._set_flags(self._flags | flags)

    def compiled(self, graphs: int) -> None:
        """Set how many graphs torch.compile has compiled in this process."""
        self._append_own(_COMPILED, 0, 0, graphs)

    def spend(self, cost_ns: int) -> None:
        """Add to the CPU time that the agent cost the training thread in the running step, ns."""
        self._append(_AGENT_COST, 0, 0, cost_ns)
