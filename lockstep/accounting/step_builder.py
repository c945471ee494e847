"""Blocks of marks in, step records out: what the training thread of one rank did, accounted for outside of it.

May live here: which mark goes where, and what to do when some are lost. Not here: clocks, files, what a step holds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lockstep.accounting.alignment import ENDS_FORM, EndCounts, Stride
from lockstep.accounting.communication_marks import (
    ARGUMENT,
    DETAIL,
    KIND,
    SUBJECT,
    TIME,
    CommunicationMarks,
    Handler,
    Mark,
)
from lockstep.accounting.device_marks import DEVICE_KINDS, DeviceMarks
from lockstep.accounting.device_tracker import PENDING_STEPS_MAX
from lockstep.accounting.events import DATA, EVENTS_MAX, PHASE_COUNT
from lockstep.accounting.pending_marks import COMMUNICATION_KINDS, KIND_AT, OTHER_KIND, PENDING_MAX, has_plain_kinds
from lockstep.accounting.state import (
    ANY_INTEGER,
    BOOLEAN,
    COUNT,
    ListForm,
    OptionalForm,
    StateForm,
    Stateful,
    mapping,
    restore,
    saved,
)
from lockstep.accounting.step_in_progress import AgentCosts, BuiltStep, BuiltStepForm, StepInProgress
from lockstep.contracts.bounds import FLAGS_MAX, MONOTONIC_NS_MAX, STEP_MAX
from lockstep.contracts.control import BACKWARD, OPTIMIZER, STEP, StepBoundary
from lockstep.contracts.errors import ContractVersionError
from lockstep.contracts.marks import (
    ANNOTATED,
    KIND_MASK,
    MARK_BYTES,
    MARK_STRUCT,
    OTHER_THREAD,
    MarkBlock,
    MarkKind,
)
from lockstep.contracts.records import MISSING, Flag

STATE_VERSION = 1

_DEVICE_STEPS = OptionalForm(ListForm(BuiltStepForm(), PENDING_STEPS_MAX + 1))
_EVALUATION = int(Flag.EVALUATION)
_BEGIN = int(MarkKind.BEGIN)
_STEP_END = int(MarkKind.STEP_END)
_EXPLICIT = int(MarkKind.EXPLICIT)
_THREAD = int(MarkKind.THREAD)
_BACKWARD_END = int(MarkKind.BACKWARD_END)
_OPTIMIZER_ENDS = (int(MarkKind.OPTIMIZER_END), int(MarkKind.SCALER_END))
_END_KIND_OF = {_BACKWARD_END: BACKWARD, **dict.fromkeys(_OPTIMIZER_ENDS, OPTIMIZER)}
_ENDS = frozenset((_BACKWARD_END, _STEP_END, *_OPTIMIZER_ENDS))
_COUNTED = _ENDS | {MarkKind.FUSED_STEP | OTHER_THREAD}
_ANY_THREAD = frozenset(int(kind) for kind in (MarkKind.FLAGS, MarkKind.AGENT_COST, MarkKind.FAILURE, MarkKind.FINISH))


@dataclass(slots=True)
class BuilderCounts:
    """What a builder could not use: marks that never came, whole steps among them, and marks that no agent writes."""

    lost_marks: int = 0
    lost_steps: int = 0
    malformed_marks: int = 0

    STATE: ClassVar[Mapping[str, StateForm]] = dict.fromkeys(("lost_marks", "lost_steps", "malformed_marks"), COUNT)


class StepBuilder:
    """Builds the steps of one attempt of a rank; a new attempt, which has a ring of its own, gets a new builder.

    `counts` is what could not be used, `is_aligned` whether steps are accounted for: from the attempt's beginning on,
    and after lost marks from a step's end on that alignment.py can number. A reader that comes late, or loses marks
    before the iteration is learnt, accounts without numbers until ten steps show them. Without one no record is built.
    `failures` are the agent's failed hooks, after which it wrote nothing more, and `has_finished` says that the attempt
    ended well.
    """

    STATE: ClassVar[Mapping[str, StateForm]] = {
        **dict.fromkeys(
            ("is_aligned", "has_finished", "_explicit", "_is_gapped", "_is_numberless", "_is_provisional"), BOOLEAN
        ),
        **dict.fromkeys(("failures", "_tokens", "_work"), ANY_INTEGER),
        **dict.fromkeys(("_position", "_began_at"), COUNT),
        "_ends": ENDS_FORM,
    }

    def __init__(self) -> None:
        self.counts = BuilderCounts()
        self.is_aligned = False
        self.failures = 0
        self.has_finished = False
        self._position = 0
        self._ends = EndCounts()
        self._built: list[BuiltStep] = []
        self._handlers = self._make_handlers()
        self._limited_until = 0
        """Marks of the attempt up to which no step can have too many events: a mark is at most one of each sort."""
        self._at = 0
        """Marks of the attempt before the one that is handled."""
        self._begin_attempt(0, MISSING, AgentCosts())

    def add(self, block: MarkBlock) -> list[BuiltStep]:
        """Return the steps that end in `block`, which follows the block added before, as far as none is lost."""
        if block.position != self._position:
            self._miss(block)
        count = block.count
        self._position = block.position + count
        self._ends = EndCounts(block.backward_ends, block.optimizer_ends, block.step_ends)
        if self._position > self._limited_until:
            self._limit(count)
        if self._device is not None:  # what is read of it names marks by their positions
            marks = enumerate(MARK_STRUCT.iter_unpack(block.marks), block.position)
            self._add_each_on_device(marks, self._device)
        elif has_plain_kinds(block.marks):
            self._add_runs(block)
        else:
            self._add_each(block, 0)
        built = self._built.copy()
        self._built.clear()
        if self._is_provisional and built:
            self._number()
            return []
        return built

    def _limit(self, more: int) -> None:
        """Forget what the running step was made of if with `more` marks it may be of too many events."""
        pending = self._communication.pending
        if self._running.longest + pending.longest() + more > EVENTS_MAX or len(pending) > PENDING_MAX:
            self._communication.settle()
            self._running.limit_events(more)
        longest = self._running.longest + pending.longest()
        self._limited_until = self._position + min(EVENTS_MAX - longest - more, PENDING_MAX - len(pending))

    def _add_runs(self, block: MarkBlock) -> None:
        """Handle the marks of a block, but keep those of communication until the step ends."""
        marks, behind = block.marks, 0
        kinds = marks[KIND_AT::MARK_BYTES]
        for found in OTHER_KIND.finditer(kinds):
            at = found.start()
            if not self.is_aligned or self._device is not None:
                self._add_each(block, behind)
                return
            if at > behind:
                run = marks[behind * MARK_BYTES : at * MARK_BYTES]
                self._communication.pending.add(run, is_backward=self._spans.is_backward)
            self._at = block.position + at
            self._handle(MARK_STRUCT.unpack_from(marks, at * MARK_BYTES))
            behind = at + 1
        if behind < len(kinds) and self.is_aligned:
            run = marks[behind * MARK_BYTES :]
            self._communication.pending.add(run, is_backward=self._spans.is_backward)

    def _add_each(self, block: MarkBlock, first: int) -> None:
        """Handle the marks of a block from `first` on."""
        marks = enumerate(MARK_STRUCT.iter_unpack(block.marks[first * MARK_BYTES :]), block.position + first)
        for self._at, mark in marks:
            self._handle(mark)
            if self._device is not None:
                self._add_each_on_device(marks, self._device)

    def _add_each_on_device(self, marks: Iterable[tuple[int, Mark]], device: DeviceMarks) -> None:
        reader_of, handler_of = device.readers.get, self._handlers.get
        for at, mark in marks:
            self._at = device.ordinal = at
            reader = reader_of(mark[KIND])
            if reader is not None and mark[TIME] <= MONOTONIC_NS_MAX:
                reader(mark)
                continue
            handler = handler_of(mark[KIND])
            if handler is None or mark[TIME] > MONOTONIC_NS_MAX:
                self._refuse()
            elif self.is_aligned:
                device.handle(mark, handler)
            else:
                self._align(mark)
                if self.is_aligned:
                    device.resume()

    def _handle(self, mark: Mark) -> None:
        handler = self._handlers.get(mark[KIND])
        if handler is None or mark[TIME] > MONOTONIC_NS_MAX:
            self._refuse()
        elif self.is_aligned or mark[KIND] & KIND_MASK in DEVICE_KINDS:
            handler(mark)
        else:
            self._align(mark)

    def state(self) -> dict[str, Any]:
        """Return all that is known behind the last block added, as values of JSON.

        Small where a step has just ended: of the running step it has every event.
        """
        self._communication.settle()
        return {
            "version": STATE_VERSION,
            "builder": saved(self),
            "counts": saved(self.counts),
            "stride": saved(self._stride),
            "running": self._running.state(),
            "device": _DEVICE_STEPS.save(None if self._device is None else self._device.steps_given_up()),
        }

    @classmethod
    def from_state(cls, state: Any, *, where: str) -> "StepBuilder":
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
        builder = cls()
        parts: dict[str, Stateful] = {"builder": builder, "counts": builder.counts, "stride": builder._stride}
        for name, part in parts.items():
            restore(part, state.get(name), what=f"accounting state: {name}", where=where)
        builder._running.restore(state.get("running"), what="accounting state: running", where=where)
        steps = _DEVICE_STEPS.load(state.get("device"), "accounting state: device", where)
        if steps is not None:
            builder._built += steps
            builder._device = DeviceMarks(builder._running, builder._position - 1)
        return builder

    @property
    def ends(self) -> int:
        """How many optimizer steps and named steps have ended in the attempt."""
        return self._ends.optimizers + self._ends.steps

    @property
    def is_numbered(self) -> bool:
        """Whether the number of the running step is known."""
        return self.is_aligned and not self._is_provisional

    @property
    def step(self) -> int:
        """Index of the running step, as far as `is_numbered`."""
        return self._running.step

    def boundary(self, first_step: int) -> StepBoundary | None:
        """Return how the process itself sees `first_step` begin, or the running step where that is past.

        None where steps are not numbered, or not all alike in what ends them.
        """
        if not self.is_numbered or not (self._explicit or self._running.learner.is_settled):
            return None
        return self._stride.boundary(self.step, max(first_step, self.step), is_named=self._explicit)

    def _begin_attempt(self, start_ns: int, cpu_ns: int, costs: AgentCosts | None) -> None:
        self._running = StepInProgress(start_ns, cpu_ns, costs, self._built)
        self._spans = self._running.spans
        self._communication = CommunicationMarks(self._running.communication, self._refuse, self._lack)
        self._began_at = self._at
        self._stride = Stride()
        self._explicit = self._is_gapped = self._is_numberless = self._is_provisional = False
        self._tokens = self._work = MISSING
        self._device: DeviceMarks | None = None

    # What is lost.

    def _refuse(self) -> None:
        """Count a mark that no agent writes; what its step was made of is not known."""
        self.counts.malformed_marks += 1
        self._running.is_incomplete = True

    def _lack(self) -> None:
        """Note that something which the step depends on is lost."""
        self._running.is_incomplete = True

    def _miss(self, block: MarkBlock) -> None:
        """Go on with `block`, before which marks are lost."""
        is_first = self._position == 0 and not self.is_aligned
        knows_stride = self._explicit or self._running.learner.is_settled
        if is_first or self._is_provisional or not knows_stride:
            self._begin_late(block)
        else:
            self._lose(block.position - self._position)

    def _begin_late(self, block: MarkBlock) -> None:
        """Account without numbers from `block` on, until `_number` knows them: too little was learnt before it."""
        self.counts.lost_marks += max(block.position - self._position, 0)
        self._at = block.position
        start_ns = MARK_STRUCT.unpack_from(block.marks)[TIME]
        self._begin_attempt(min(start_ns, MONOTONIC_NS_MAX), MISSING, None)
        self._running.lose()
        self.is_aligned = self._is_provisional = True

    def _number(self) -> None:
        """Find the number of the running step, if all ends of the attempt are those of steps like the last ones.

        Of a sequence of several events nobody knows when it was learnt, and so how many steps there were before.
        """
        learner = self._running.learner
        count = self._stride.all_steps(is_named=self._explicit)
        is_learnt = self._explicit or (learner.is_settled and len(learner.sequence) == 1)
        if is_learnt and 0 < count <= STEP_MAX:
            if self._device is not None:
                self._device.renumber(count - self._running.step)
            self.counts.lost_steps += self._running.step
            self._running.step = count
            self._is_provisional = False

    def _lose(self, marks: int) -> None:
        self._limited_until = 0
        self._communication.settle()
        self.counts.lost_marks += max(marks, 0)
        self.is_aligned = False
        self._is_gapped = True
        self._running.lose()
        if self._device is not None:
            self._device.lose_marks()

    def _note_lost(self, mark: Mark) -> None:
        """Count marks that found no room in the process; what the running step waited for is not known."""
        self.counts.lost_marks += max(mark[ARGUMENT], 0)
        self._running.is_incomplete = True

    def _align(self, mark: Mark) -> None:
        """Resume where `mark` is the end of a step whose number is known."""
        kind = mark[KIND]
        if kind == _BEGIN:
            self._begin(mark)
            return
        if kind in _COUNTED:
            self._ends = self._ends.after(kind)
        if kind == MarkKind.MODEL_FLOPS:
            self._set_flops(mark)
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
            self._began_at = self._at
            self._running.resume(ended, mark[TIME], mark[ARGUMENT])

    # What ends a step.

    def _end_iteration(self, event: int | None, mark: Mark) -> None:
        if event is None or self._explicit:
            return
        if self._running.ends_with(event):
            self._end(mark, _END_KIND_OF[mark[KIND]])

    def _end(self, mark: Mark, end_kind: str) -> None:
        arrays = self._communication.end_step(is_plain=lambda: self._device is None and self._spans.have_ascended())
        self._running.end(mark[TIME], mark[ARGUMENT], self._at - self._began_at, arrays)
        self._began_at = self._at
        self._stride.end_step(self._ends, end_kind)

    def _begin_explicit(self, _mark: Mark) -> None:
        if self._is_gapped and not self._explicit:
            self._is_numberless = True  # as in _align
            self.is_aligned = False
        self._explicit = True

    def _end_step(self, mark: Mark) -> None:
        self._ends = self._ends.after(_STEP_END)
        self._begin_explicit(mark)
        if self.is_aligned:
            self._end(mark, STEP)

    # Which mark goes where.

    def _make_handlers(self) -> dict[int, Handler]:
        handlers: dict[MarkKind, Handler] = {
            MarkKind.BEGIN: self._begin,
            MarkKind.DATA_BEGIN: lambda mark: self._spans.begin_phase(DATA, mark[TIME]),
            MarkKind.DATA_END: lambda mark: self._spans.end_data(mark[TIME]),
            MarkKind.BACKWARD_BEGIN: lambda mark: self._spans.begin_backward(mark[TIME]),
            MarkKind.BACKWARD_END: self._end_backward,
            MarkKind.OPTIMIZER_BEGIN: self._begin_optimizer,
            MarkKind.OPTIMIZER_END: self._end_optimizer,
            MarkKind.SCALER_BEGIN: self._begin_scaler,
            MarkKind.SCALER_END: self._end_scaler,
            MarkKind.CLOSURE_BEGIN: lambda mark: self._spans.begin_closure(mark[TIME]),
            MarkKind.CLOSURE_END: lambda mark: self._spans.end_closure(mark[TIME]),
            MarkKind.PHASE_BEGIN: self._begin_phase,
            MarkKind.PHASE_END: self._end_phase,
            MarkKind.EXPLICIT: self._begin_explicit,
            MarkKind.STEP_END: self._end_step,
            MarkKind.GC_BEGIN: lambda mark: self._running.begin_collection(mark[TIME]),
            MarkKind.GC_END: lambda mark: self._running.end_collection(mark[DETAIL], mark[TIME]),
            MarkKind.BATCH_TOKENS: self._note_tokens,
            MarkKind.BATCH_WORK: self._note_work,
            MarkKind.BATCH: self._add_batch,
            MarkKind.BATCH_EVALUATED: self._add_evaluated_batch,
            MarkKind.ANNOTATION: self._annotate,
            MarkKind.FLAGS: self._flag,
            MarkKind.COMPILED: lambda mark: self._running.note_compiled(mark[ARGUMENT]),
            MarkKind.AGENT_COST: self._spend,
            MarkKind.FAILURE: self._fail,
            MarkKind.FINISH: self._finish,
            MarkKind.THREAD: self._change_thread,
            MarkKind.MODEL_FLOPS: self._set_flops,
            MarkKind.MARKS_LOST: self._note_lost,
        }
        own = {int(kind): handler for kind, handler in handlers.items()}
        own |= dict.fromkeys(DEVICE_KINDS, self._meet_device)
        elsewhere = {kind: own[kind] for kind in _ANY_THREAD | DEVICE_KINDS} | {
            MarkKind.FUSED_STEP: self._fuse_optimizer,
            MarkKind.AGENT_COST: self._spend_elsewhere,
        }
        return (
            own
            | {kind | OTHER_THREAD: handler for kind, handler in elsewhere.items()}
            | dict.fromkeys(COMMUNICATION_KINDS, self._communicate)
        )

    def _communicate(self, mark: Mark) -> None:
        self._communication.handle(mark, is_backward=self._spans.is_backward)

    def _begin(self, mark: Mark) -> None:
        self.is_aligned = True
        self._begin_attempt(mark[TIME], mark[ARGUMENT], AgentCosts(mark[SUBJECT], mark[DETAIL]))

    def _change_thread(self, mark: Mark) -> None:
        self._communication.settle()
        self._running.change_thread(mark[TIME], mark[ARGUMENT])

    def _fuse_optimizer(self, mark: Mark) -> None:
        self._ends = self._ends.after(mark[KIND])
        self._spans.fuse_optimizer()

    def _set_flops(self, mark: Mark) -> None:
        if not self._running.flops.set(mark[DETAIL], mark[ARGUMENT]):
            self._refuse()

    def _finish(self, _mark: Mark) -> None:
        self.has_finished = True
        if self._device is not None:
            self._device.drain()

    def _fail(self, mark: Mark) -> None:
        self.failures = mark[ARGUMENT]
        if self._device is not None:
            self._device.drain()

    def _meet_device(self, mark: Mark) -> None:
        """Begin to measure on a device; one whose beginning is lost is known by its anchors."""
        if self._device is None and DeviceMarks.begins(mark):
            self._communication.settle()
            self._device = DeviceMarks(self._running, self._at)
            self._device.readers[mark[KIND]](mark)

    def _end_backward(self, mark: Mark) -> None:
        self._ends = self._ends.after(_BACKWARD_END)
        if self._spans.end_backward(mark[TIME]):
            if not self._spans.is_in_optimizer:  # a closure is called as often as its optimizer likes
                self._running.quantities.add_backward()
            self._end_iteration(self._spans.fused_event(), mark)

    def _begin_optimizer(self, mark: Mark) -> None:
        self._spans.begin_optimizer(mark[SUBJECT], self._running.learner, mark[TIME])

    def _end_optimizer(self, mark: Mark) -> None:
        self._ends = self._ends.after(mark[KIND])
        self._end_iteration(self._spans.end_optimizer(mark[TIME]), mark)

    def _begin_scaler(self, mark: Mark) -> None:
        self._spans.begin_scaler(mark[SUBJECT], mark[ARGUMENT], self._running.learner, mark[TIME])

    def _end_scaler(self, mark: Mark) -> None:
        if self._spans.has_skipped(mark[SUBJECT]):
            self._running.note_skipped()
        self._end_optimizer(mark)

    def _begin_phase(self, mark: Mark) -> None:
        if mark[DETAIL] < PHASE_COUNT:
            self._spans.begin_phase(mark[DETAIL], mark[TIME])
        else:
            self._refuse()

    def _end_phase(self, mark: Mark) -> None:
        if mark[DETAIL] < PHASE_COUNT:
            self._spans.end_phase(mark[DETAIL], mark[TIME])
        else:
            self._refuse()

    def _note_tokens(self, mark: Mark) -> None:
        self._tokens = mark[ARGUMENT]

    def _note_work(self, mark: Mark) -> None:
        self._work = mark[ARGUMENT]

    def _add_batch(self, mark: Mark) -> None:
        if self._spans.owns_batch:
            self._running.quantities.add_batch((mark[ARGUMENT], self._tokens, self._work))
        self._tokens = self._work = MISSING

    def _add_evaluated_batch(self, _mark: Mark) -> None:
        if self._spans.owns_batch:
            self._running.flag(_EVALUATION)

    def _annotate(self, mark: Mark) -> None:
        if mark[DETAIL] < len(ANNOTATED):
            self._running.quantities.annotate(mark[DETAIL], mark[ARGUMENT])
        else:
            self._refuse()

    def _flag(self, mark: Mark) -> None:
        if 0 <= mark[ARGUMENT] <= FLAGS_MAX:
            self._running.flag(mark[ARGUMENT])
        else:
            self._refuse()

    def _spend(self, mark: Mark) -> None:
        self._running.spend(mark[ARGUMENT])

    def _spend_elsewhere(self, mark: Mark) -> None:
        if self._spans.is_backward:
            self._spend(mark)
