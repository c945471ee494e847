"""Blocks of marks in, step records out: what the training thread of one rank did, accounted for outside of it.

May live here: which mark goes where, and what to do when some are lost. Not here: clocks, files, what a step holds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lockstep.accounting.alignment import ENDS_FORM, EndCounts, Stride
from lockstep.accounting.device_marks import DEVICE_KINDS, DeviceMarks
from lockstep.accounting.events import DATA, PHASE_COUNT
from lockstep.accounting.state import ANY_INTEGER, BOOLEAN, COUNT, StateForm, Stateful, mapping, restore, saved
from lockstep.accounting.step_in_progress import BuiltStep, ModelFlopsOf, StepInProgress
from lockstep.contracts.bounds import FLAGS_MAX, MONOTONIC_NS_MAX, STEP_MAX
from lockstep.contracts.control import BACKWARD, OPTIMIZER, STEP, StepBoundary
from lockstep.contracts.errors import ContractVersionError
from lockstep.contracts.marks import (
    ANNOTATED,
    KIND_MASK,
    MARK_STRUCT,
    OTHER_THREAD,
    MarkBlock,
    MarkKind,
)
from lockstep.contracts.records import MISSING, Flag

Mark = tuple[int, int, int, int, int]
"""(time ns, kind, detail, subject, argument)."""
Handler = Callable[[Mark], None]
_TIME, _KIND, _DETAIL, _SUBJECT, _ARGUMENT = range(5)

STATE_VERSION = 1

_EVALUATION = int(Flag.EVALUATION)
_BEGIN = int(MarkKind.BEGIN)
_STEP_END = int(MarkKind.STEP_END)
_EXPLICIT = int(MarkKind.EXPLICIT)
_THREAD = int(MarkKind.THREAD)
_BACKWARD_END = int(MarkKind.BACKWARD_END)
_OPTIMIZER_ENDS = (int(MarkKind.OPTIMIZER_END), int(MarkKind.SCALER_END))
_END_KIND_OF = {_BACKWARD_END: BACKWARD, **dict.fromkeys(_OPTIMIZER_ENDS, OPTIMIZER)}
_ENDS = frozenset((_BACKWARD_END, _STEP_END, *_OPTIMIZER_ENDS))
_ANY_THREAD = frozenset(
    int(kind)
    for kind in (
        *(MarkKind.ISSUE, MarkKind.DONE, MarkKind.DONE_UNKNOWN, MarkKind.EXPECT, MarkKind.WAIT_BEGIN),
        *(MarkKind.WAIT_END, MarkKind.FLAGS, MarkKind.AGENT_COST, MarkKind.FAILURE, MarkKind.FINISH),
        *(MarkKind.UNMEASURED, MarkKind.UNMEASURED_BUS),
    )
)


@dataclass(slots=True)
class BuilderCounts:
    """What a builder could not use: marks that never came, whole steps among them, and marks that no agent writes."""

    lost_marks: int = 0
    lost_steps: int = 0
    malformed_marks: int = 0

    STATE: ClassVar[Mapping[str, StateForm]] = dict.fromkeys(("lost_marks", "lost_steps", "malformed_marks"), COUNT)


def _unknown_flops(_samples: int, _tokens: int) -> int:
    return MISSING


class StepBuilder:
    """Builds the steps of one attempt of a rank; a new attempt, which has a ring of its own, gets a new builder.

    `counts` is what could not be used, `is_aligned` whether the number of the running step is known: from the
    attempt's beginning on, and after lost marks from a step's end on that alignment.py can number. Where it is not
    known, no record is built. `failures` are the agent's failed hooks, after which it wrote nothing more, and
    `has_finished` says that the attempt ended well.
    """

    STATE: ClassVar[Mapping[str, StateForm]] = {
        **dict.fromkeys(("is_aligned", "has_finished", "_explicit", "_is_gapped", "_is_numberless"), BOOLEAN),
        **dict.fromkeys(("failures", "_tokens", "_work"), ANY_INTEGER),
        "_position": COUNT,
        "_ends": ENDS_FORM,
    }

    def __init__(self, flops_of: ModelFlopsOf = _unknown_flops) -> None:
        self._flops_of = flops_of
        self.counts = BuilderCounts()
        self.is_aligned = False
        self.failures = 0
        self.has_finished = False
        self._position = 0
        self._ends = EndCounts()
        self._built: list[BuiltStep] = []
        self._handlers = self._make_handlers()
        self._begin_attempt(0, MISSING)

    def add(self, block: MarkBlock) -> list[BuiltStep]:
        """Return the steps that end in `block`, which follows the block added before, as far as none is lost."""
        if block.position != self._position:
            self._lose(block.position - self._position)
        self._position = block.position + block.count
        self._ends = EndCounts(block.backward_ends, block.optimizer_ends, block.step_ends)
        self._running.limit_events(block.count)
        if self._device is None:
            self._add_marks(block)
        else:
            self._add_marks_of_device(block, self._device)
        built = self._built.copy()
        self._built.clear()
        return built

    def _add_marks(self, block: MarkBlock) -> None:
        handler_of = self._handlers.get
        for mark in MARK_STRUCT.iter_unpack(block.marks):
            handler = handler_of(mark[1])  # the literals are _KIND and _TIME, whose look-ups cost as much as the rest
            if handler is None or mark[0] > MONOTONIC_NS_MAX:
                self._refuse()
            elif self.is_aligned:
                handler(mark)
            else:
                self._align(mark)
        if self._device is not None and mark[1] != MarkKind.DEVICE_BEGIN:
            self._device.forget_running()  # marks of it follow in this block, whose ordinals were not counted

    def _add_marks_of_device(self, block: MarkBlock, device: DeviceMarks) -> None:
        """Add marks whose ordinals count: what is read of a device names them by these."""
        handler_of = self._handlers.get
        for ordinal, mark in enumerate(MARK_STRUCT.iter_unpack(block.marks), block.position):
            device.ordinal = ordinal
            kind = mark[1]
            handler = handler_of(kind)
            if handler is None or mark[0] > MONOTONIC_NS_MAX:
                self._refuse()
            elif kind & KIND_MASK in DEVICE_KINDS:
                device.read(mark)
            elif self.is_aligned:
                device.handle(mark, handler)
            else:
                self._align(mark)
                if self.is_aligned:
                    device.resume()

    def state(self) -> dict[str, Any]:
        """Return all that is known behind the last block added, as values of JSON.

        Small where a step has just ended: of the running step it has every event.
        """
        return {
            "version": STATE_VERSION,
            "builder": saved(self),
            "counts": saved(self.counts),
            "stride": saved(self._stride),
            "running": self._running.state(),
        }

    @classmethod
    def from_state(cls, state: Any, flops_of: ModelFlopsOf = _unknown_flops, *, where: str) -> "StepBuilder":
        """Return a builder that goes on where the one that had this state stood; `where` the state comes from.

        Raises
        ------
        MalformedError
            It is no state that `state` returned.
        ContractVersionError
            It is one of another version of this program.
        """
        got = mapping(state, "accounting state", where).get("version")
        if got != STATE_VERSION:
            raise ContractVersionError("version of the accounting state", where=where, got=got, expected=STATE_VERSION)
        builder = cls(flops_of)
        parts: dict[str, Stateful] = {"builder": builder, "counts": builder.counts, "stride": builder._stride}
        for name, part in parts.items():
            restore(part, state.get(name), what=f"accounting state: {name}", where=where)
        builder._running.restore(state.get("running"), what="accounting state: running", where=where)
        return builder

    @property
    def step(self) -> int:
        """Index of the running step, as far as `is_aligned`."""
        return self._running.step

    def boundary(self, first_step: int) -> StepBoundary | None:
        """Return how the process itself sees `first_step` begin, or the running step where that is past.

        None where steps are not numbered, or not all alike in what ends them.
        """
        if not self.is_aligned or not (self._explicit or self._running.learner.is_settled):
            return None
        return self._stride.boundary(self.step, max(first_step, self.step), is_named=self._explicit)

    def _begin_attempt(self, start_ns: int, cpu_ns: int) -> None:
        self._running = StepInProgress(start_ns, cpu_ns, self._flops_of, self._built)
        self._spans = self._running.spans
        self._communication = self._running.communication
        self._stride = Stride()
        self._explicit = self._is_gapped = self._is_numberless = False
        self._tokens = self._work = MISSING
        self._device: DeviceMarks | None = None

    # What is lost.

    def _refuse(self) -> None:
        """Count a mark that no agent writes; what its step was made of is not known."""
        self.counts.malformed_marks += 1
        self._running.is_incomplete = True

    def _lose(self, marks: int) -> None:
        self.counts.lost_marks += max(marks, 0)
        self.is_aligned = False
        self._is_gapped = True
        self._running.lose()
        if self._device is not None:
            self._device.lose_marks()

    def _note_lost(self, mark: Mark) -> None:
        """Count marks that found no room in the process; what the running step waited for is not known."""
        self.counts.lost_marks += max(mark[_ARGUMENT], 0)
        self._running.is_incomplete = True

    def _align(self, mark: Mark) -> None:
        """Resume where `mark` is the end of a step whose number is known."""
        kind = mark[_KIND]
        if kind == _BEGIN:
            self._begin(mark)
            return
        if kind in _ENDS:
            self._ends = self._ends.after(kind)
        if kind == _THREAD and len(self._running.learner.sequence) > 1:
            self._is_numberless = True  # which ends are a step's is learnt again: those before that are not known
        if kind in (_EXPLICIT, _STEP_END) and not self._explicit:
            self._is_numberless = True  # since when the training names its steps is lost, and their number with it
        if self._is_numberless or kind not in _ENDS or (self._explicit and kind != _STEP_END):
            return
        ended = 0
        if self._explicit:
            ended = self._stride.named_steps(self._ends)
        elif self._running.learner.is_settled:
            ended = self._stride.learnt_steps(self._ends)
        if 0 < ended <= STEP_MAX - self.step:  # counts that no training has are no step's number either
            self.counts.lost_steps += ended if ended > 1 else 0  # of one, the limits are known
            self.is_aligned = True
            self._stride.resume(self._ends)
            self._running.resume(ended, mark[_TIME], mark[_ARGUMENT])

    # What ends a step.

    def _end_iteration(self, event: int | None, mark: Mark) -> None:
        if event is None or self._explicit:
            return
        if self._running.end_iteration(event, mark[_TIME], mark[_ARGUMENT]):
            self._stride.end_step(self._ends, _END_KIND_OF[mark[_KIND]])

    def _begin_explicit(self, _mark: Mark) -> None:
        if self._is_gapped and not self._explicit:
            self._is_numberless = True  # as in _align
            self.is_aligned = False
        self._explicit = True

    def _end_step(self, mark: Mark) -> None:
        self._ends = self._ends.after(_STEP_END)
        self._begin_explicit(mark)
        if self.is_aligned:
            self._running.end(mark[_TIME], mark[_ARGUMENT])
            self._stride.end_step(self._ends, STEP)

    # Which mark goes where.

    def _make_handlers(self) -> dict[int, Handler]:
        handlers: dict[MarkKind, Handler] = {
            MarkKind.BEGIN: self._begin,
            MarkKind.DATA_BEGIN: lambda mark: self._spans.begin_phase(DATA, mark[_TIME]),
            MarkKind.DATA_END: lambda mark: self._spans.end_data(mark[_TIME]),
            MarkKind.BACKWARD_BEGIN: lambda mark: self._spans.begin_backward(mark[_TIME]),
            MarkKind.BACKWARD_END: self._end_backward,
            MarkKind.OPTIMIZER_BEGIN: self._begin_optimizer,
            MarkKind.OPTIMIZER_END: self._end_optimizer,
            MarkKind.SCALER_BEGIN: self._begin_scaler,
            MarkKind.SCALER_END: self._end_scaler,
            MarkKind.CLOSURE_BEGIN: lambda mark: self._spans.begin_closure(mark[_TIME]),
            MarkKind.CLOSURE_END: lambda mark: self._spans.end_closure(mark[_TIME]),
            MarkKind.PHASE_BEGIN: self._begin_phase,
            MarkKind.PHASE_END: self._end_phase,
            MarkKind.EXPLICIT: self._begin_explicit,
            MarkKind.STEP_END: self._end_step,
            MarkKind.ISSUE: self._issue,
            MarkKind.DONE: lambda mark: self._communication.end(mark[_SUBJECT], mark[_TIME]),
            MarkKind.DONE_UNKNOWN: lambda mark: self._communication.end(mark[_SUBJECT]),
            MarkKind.EXPECT: lambda mark: self._communication.expect(mark[_SUBJECT]),
            MarkKind.WAIT_BEGIN: self._begin_wait,
            MarkKind.WAIT_END: self._end_wait,
            MarkKind.GC_BEGIN: lambda mark: self._running.begin_collection(mark[_TIME]),
            MarkKind.GC_END: lambda mark: self._running.end_collection(mark[_DETAIL], mark[_TIME]),
            MarkKind.BATCH_TOKENS: self._note_tokens,
            MarkKind.BATCH_WORK: self._note_work,
            MarkKind.BATCH: self._add_batch,
            MarkKind.BATCH_EVALUATED: self._add_evaluated_batch,
            MarkKind.ANNOTATION: self._annotate,
            MarkKind.FLAGS: self._flag,
            MarkKind.COMPILED: lambda mark: self._running.note_compiled(mark[_ARGUMENT]),
            MarkKind.AGENT_COST: self._spend,
            MarkKind.FAILURE: self._fail,
            MarkKind.FINISH: self._finish,
            MarkKind.THREAD: lambda mark: self._running.change_thread(mark[_TIME], mark[_ARGUMENT]),
            MarkKind.UNMEASURED: self._note_unmeasured,
            MarkKind.UNMEASURED_BUS: self._note_unmeasured_bus,
            MarkKind.MARKS_LOST: self._note_lost,
        }
        own = {int(kind): handler for kind, handler in handlers.items()}
        own |= dict.fromkeys(DEVICE_KINDS, self._meet_device)
        elsewhere = {kind: own[kind] for kind in _ANY_THREAD | DEVICE_KINDS} | {
            MarkKind.ISSUE: self._if_backward(self._issue),
            MarkKind.WAIT_BEGIN: self._begin_wait_elsewhere,
            MarkKind.WAIT_END: self._end_wait_elsewhere,
            MarkKind.UNMEASURED: self._if_backward(self._note_unmeasured),
            MarkKind.UNMEASURED_BUS: self._if_backward(self._note_unmeasured_bus),
            MarkKind.AGENT_COST: self._if_backward(self._spend),
        }
        return own | {kind | OTHER_THREAD: handler for kind, handler in elsewhere.items()}

    def _begin(self, mark: Mark) -> None:
        self.is_aligned = True
        self._begin_attempt(mark[_TIME], mark[_ARGUMENT])

    def _finish(self, _mark: Mark) -> None:
        self.has_finished = True
        if self._device is not None:
            self._device.drain()

    def _fail(self, mark: Mark) -> None:
        self.failures = mark[_ARGUMENT]
        if self._device is not None:
            self._device.drain()

    def _meet_device(self, mark: Mark) -> None:
        """Begin to measure on a device, by the last mark of its block: ordinals count from the next block on."""
        if self._device is None and DeviceMarks.begins(mark):
            self._device = DeviceMarks(self._running, self._position - 1)
            self._device.read(mark)

    def _end_backward(self, mark: Mark) -> None:
        self._ends = self._ends.after(_BACKWARD_END)
        if self._spans.end_backward(mark[_TIME]):
            if not self._spans.is_in_optimizer:  # a closure is called as often as its optimizer likes
                self._running.quantities.add_backward()
            self._end_iteration(self._spans.fused_event(), mark)

    def _begin_optimizer(self, mark: Mark) -> None:
        self._spans.begin_optimizer(mark[_SUBJECT], self._running.learner, mark[_TIME])

    def _end_optimizer(self, mark: Mark) -> None:
        self._ends = self._ends.after(mark[_KIND])
        self._end_iteration(self._spans.end_optimizer(mark[_TIME]), mark)

    def _begin_scaler(self, mark: Mark) -> None:
        self._spans.begin_scaler(mark[_SUBJECT], mark[_ARGUMENT], self._running.learner, mark[_TIME])

    def _end_scaler(self, mark: Mark) -> None:
        if self._spans.has_skipped(mark[_SUBJECT]):
            self._running.note_skipped()
        self._end_optimizer(mark)

    def _begin_phase(self, mark: Mark) -> None:
        if mark[_DETAIL] < PHASE_COUNT:
            self._spans.begin_phase(mark[_DETAIL], mark[_TIME])
        else:
            self._refuse()

    def _end_phase(self, mark: Mark) -> None:
        if mark[_DETAIL] < PHASE_COUNT:
            self._spans.end_phase(mark[_DETAIL], mark[_TIME])
        else:
            self._refuse()

    # Communication. Of another thread it belongs to the step inside a backward: autograd's threads issue there. Whether
    # a thread is one of those is known in the process alone, where others leave no such marks (contracts/marks.py).

    def _issue(self, mark: Mark) -> None:
        time_ns, _, detail, ordinal, argument = mark
        if not self._communication.issue(ordinal, detail, argument, time_ns):
            self._refuse()

    def _if_backward(self, handler: Handler) -> Handler:
        def handle(mark: Mark) -> None:
            if self._spans.is_backward:
                handler(mark)

        return handle

    def _note_unmeasured(self, mark: Mark) -> None:
        _, _, domain, count, payload_bytes = mark
        if not self._communication.note_unmeasured(domain, count, payload_bytes, 0):
            self._refuse()

    def _note_unmeasured_bus(self, mark: Mark) -> None:
        if not self._communication.note_unmeasured(mark[_DETAIL], 0, 0, mark[_ARGUMENT]):
            self._refuse()

    def _begin_wait(self, mark: Mark) -> None:
        if not self._communication.begin_wait(mark[_TIME]):
            self._refuse_waits()

    def _begin_wait_elsewhere(self, mark: Mark) -> None:
        if not self._communication.begin_other_wait(mark[_TIME], is_ours=self._spans.is_backward):
            self._refuse_waits()

    def _refuse_waits(self) -> None:
        self._communication.forget_waits()
        self._refuse()

    def _end_wait(self, mark: Mark) -> None:
        if not self._communication.end_wait(mark[_TIME]):
            self._running.is_incomplete = True

    def _end_wait_elsewhere(self, mark: Mark) -> None:
        if not self._communication.end_other_wait(mark[_TIME]):
            self._running.is_incomplete = True

    def _note_tokens(self, mark: Mark) -> None:
        self._tokens = mark[_ARGUMENT]

    def _note_work(self, mark: Mark) -> None:
        self._work = mark[_ARGUMENT]

    def _add_batch(self, mark: Mark) -> None:
        if self._spans.owns_batch:
            self._running.quantities.add_batch((mark[_ARGUMENT], self._tokens, self._work))
        self._tokens = self._work = MISSING

    def _add_evaluated_batch(self, _mark: Mark) -> None:
        if self._spans.owns_batch:
            self._running.flag(_EVALUATION)

    def _annotate(self, mark: Mark) -> None:
        if mark[_DETAIL] < len(ANNOTATED):
            self._running.quantities.annotate(mark[_DETAIL], mark[_ARGUMENT])
        else:
            self._refuse()

    def _flag(self, mark: Mark) -> None:
        if 0 <= mark[_ARGUMENT] <= FLAGS_MAX:
            self._running.flag(mark[_ARGUMENT])
        else:
            self._refuse()

    def _spend(self, mark: Mark) -> None:
        self._running.spend(mark[_ARGUMENT])
