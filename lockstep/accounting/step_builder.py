"""Builds step records from blocks of marks: accounts for one rank's training thread, outside of its process.

May live here: which mark goes where, and what to do when some are lost. Not here: clocks, files, the content of a step.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

from lockstep.accounting.alignment import ENDS_FORM, EndCounts, EndsPerStep
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
from lockstep.accounting.events import EVENTS_MAX
from lockstep.accounting.lost_marks import BuilderCounts, LostMarks
from lockstep.accounting.pending_marks import (
    COMMUNICATION_KINDS,
    DEVICE_OTHER_KIND,
    KIND_AT,
    OTHER_KIND,
    PENDING_MAX,
    events_end,
    has_plain_kinds,
)
from lockstep.accounting.running_step_marks import RunningStepMarks
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
from lockstep.accounting.step_in_progress import AgentCosts, BuiltStepForm, StepInProgress
from lockstep.accounting.step_record import BuiltStep, EndedStep, built_steps
from lockstep.contracts.capture import BACKWARD, OPTIMIZER, STEP, StepBoundary
from lockstep.contracts.errors import ContractVersionError
from lockstep.contracts.limits import MONOTONIC_NS_MAX
from lockstep.contracts.marks import (
    KIND_MASK,
    MARK_BYTES,
    MARK_STRUCT,
    OTHER_THREAD,
    MarkBlock,
    MarkKind,
)
from lockstep.contracts.records import MISSING

STATE_VERSION = 3

_DEVICE_STEPS = OptionalForm(ListForm(BuiltStepForm(), PENDING_STEPS_MAX + 1))
_STEP_END, _DEVICE_EVENT = int(MarkKind.STEP_END), int(MarkKind.DEVICE_EVENT)
_BACKWARD_END = int(MarkKind.BACKWARD_END)
_OPTIMIZER_ENDS = (int(MarkKind.OPTIMIZER_END), int(MarkKind.SCALER_END))
_END_KIND_OF = {_BACKWARD_END: BACKWARD, **dict.fromkeys(_OPTIMIZER_ENDS, OPTIMIZER)}


class StepBuilder(LostMarks):
    """Builds the steps of one attempt of a rank; a new attempt has its own ring and gets a new builder.

    `counts` counts unusable input. `is_aligned` is true while steps are accounted for: from the beginning of the
    attempt, and after lost marks from the end of a step that alignment.py can number. A reader that comes late, or
    loses marks before the iteration is learnt, accounts without step numbers until ten steps show them; no record is
    built until then. `failures` counts the agent's failed hooks, after which it wrote nothing more. `has_finished` is
    true if the attempt ended well.
    """

    STATE: ClassVar[Mapping[str, StateForm]] = {
        **dict.fromkeys(
            ("is_aligned", "has_finished", "_explicit", "_is_gapped", "_is_numberless", "_is_provisional"), BOOLEAN
        ),
        **dict.fromkeys(("failures",), ANY_INTEGER),
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
        self._ended: list[EndedStep] = []
        self._handlers: dict[int, Handler] = {}
        self._limited_until = 0
        """Position up to which no step can have too many events, because a mark adds at most one event of each sort."""
        self._at = 0
        """Position in the attempt of the mark being handled."""
        self._begin_attempt(0, MISSING, AgentCosts())

    def add(self, block: MarkBlock) -> list[BuiltStep]:
        """Return the steps that end in `block`; a gap since the previous block counts as lost marks."""
        return built_steps(self.take(block))

    def take(self, block: MarkBlock) -> list[EndedStep]:
        """Return the same steps, whose records are still to be built (`built_steps`)."""
        if block.position != self._position:
            self._miss(block)
        count = block.count
        self._position = block.position + count
        self._ends = EndCounts(block.backward_ends, block.optimizer_ends, block.step_ends)
        if self._position > self._limited_until:
            self._limit(count)
        if has_plain_kinds(block.marks):
            self._add_runs(block, 0)
        else:
            self._add_each(block, 0)
        if not self._ended:
            return []
        ended = self._ended.copy()
        self._ended.clear()
        if self._is_provisional:
            self._number()
            return []
        return ended

    def take_next(self, blocks: deque[MarkBlock], *, marks_max: int) -> list[EndedStep]:
        """Remove the first of `blocks` and return the steps that end in it, as `take` does.

        Blocks that follow it are taken with it, which costs less, up to `marks_max` marks in all: a mark ends at most
        one step.
        """
        block = blocks.popleft()
        end = block.position + block.count
        last = min(block.position + marks_max, self._limited_until)
        following = []
        while blocks and blocks[0].position == end and end + blocks[0].count <= last:
            following.append(blocks.popleft().marks)
            end += len(following[-1]) // MARK_BYTES
        if following:
            ends = block.backward_ends, block.optimizer_ends, block.step_ends
            block = MarkBlock(block.sequence, block.position, *ends, b"".join((block.marks, *following)))
        return self.take(block)

    def _limit(self, more: int) -> None:
        """Drop the events of the running step if `more` marks may exceed the limit."""
        pending = self._communication.pending
        if self._running.longest + pending.longest() + more > EVENTS_MAX or len(pending) > PENDING_MAX:
            self._communication.settle()
            self._running.limit_events(more)
        longest = self._running.longest + pending.longest()
        self._limited_until = self._position + min(EVENTS_MAX - longest - more, PENDING_MAX - len(pending))

    def _add_runs(self, block: MarkBlock, first: int) -> None:
        """Handle the marks of a block from `first` on, but buffer those of communication until the step ends."""
        marks, behind, device = block.marks, first, self._device
        kinds = marks[KIND_AT::MARK_BYTES]
        search = (OTHER_KIND if device is None else DEVICE_OTHER_KIND).search  # `finditer` costs more than all searches
        while found := search(kinds, behind):
            at = found.start()
            if not self.is_aligned:
                self._add_each(block, behind)
                return
            if behind < at:
                self._keep(block, behind, at)
            self._at, behind = block.position + at, at + 1
            if device is None:
                self._handle(MARK_STRUCT.unpack_from(marks, at * MARK_BYTES))
            elif kinds[at] == _DEVICE_EVENT:
                behind = events_end(kinds, at)
                device.read_events(marks[at * MARK_BYTES : behind * MARK_BYTES], block.position + behind - 1)
            else:
                self._handle_on_device(MARK_STRUCT.unpack_from(marks, at * MARK_BYTES), device)
            if self._device is not device:
                self._add_runs(block, behind)
                return
        if not self.is_aligned:
            self._add_each(block, behind)
        elif behind < len(kinds):
            self._keep(block, behind, len(kinds))

    def _keep(self, block: MarkBlock, first: int, end: int) -> None:
        run = block.marks[first * MARK_BYTES : end * MARK_BYTES]
        self._communication.pending.add(run, block.position + first, is_backward=self._spans.is_backward)

    def _add_each(self, block: MarkBlock, first: int) -> None:
        """Handle the marks of a block from `first` on."""
        self._communication.settle()
        marks = enumerate(MARK_STRUCT.iter_unpack(block.marks[first * MARK_BYTES :]), block.position + first)
        for self._at, mark in marks:
            if self._device is None:
                self._handle(mark)
            else:
                self._handle_on_device(mark, self._device)

    def _handle_on_device(self, mark: Mark, device: DeviceMarks) -> None:
        device.ordinal = self._at
        reader = device.readers.get(mark[KIND])
        if reader is not None and mark[TIME] <= MONOTONIC_NS_MAX:
            reader(mark)
            return
        handler = self._handlers.get(mark[KIND])
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
        """Return the complete state after the last added block, as JSON values.

        It is small if a step has just ended; of the running step it contains every event.
        """
        self._communication.settle()
        return {
            "version": STATE_VERSION,
            "builder": saved(self),
            "counts": saved(self.counts),
            "stride": saved(self._ends_per_step),
            "batch": saved(self._own),
            "running": self._running.state(),
            "device": _DEVICE_STEPS.save(None if self._device is None else self._device.steps_given_up()),
        }

    @classmethod
    def from_state(cls, state: Any, *, where: str) -> "StepBuilder":
        """Return a builder that continues from a state; `where` names its source in messages.

        Raises
        ------
        MalformedError
            It is not a state returned by `state`.
        ContractVersionError
            It was written by another version of this program.
        """
        got = mapping(state, "accounting state", where).get("version")
        if got != STATE_VERSION:
            raise ContractVersionError("version of the accounting state", where=where, got=got, expected=STATE_VERSION)
        builder = cls()
        parts: dict[str, Stateful] = {
            "builder": builder,
            "counts": builder.counts,
            "stride": builder._ends_per_step,
            "batch": builder._own,
        }
        for name, part in parts.items():
            restore(part, state.get(name), what=f"accounting state: {name}", where=where)
        builder._running.restore(state.get("running"), what="accounting state: running", where=where)
        steps = _DEVICE_STEPS.load(state.get("device"), "accounting state: device", where)
        if steps is not None:
            builder._ended += steps
            builder._device = DeviceMarks(builder._running, builder._communication, builder._position - 1)
        return builder

    @property
    def ends(self) -> int:
        """Number of optimizer steps and named steps that have ended in the attempt."""
        return self._ends.optimizers + self._ends.steps

    @property
    def is_numbered(self) -> bool:
        """Whether the number of the running step is known."""
        return self.is_aligned and not self._is_provisional

    @property
    def step(self) -> int:
        """Index of the running step; valid if `is_numbered`."""
        return self._running.step

    def boundary(self, first_step: int) -> StepBoundary | None:
        """Return how the process itself recognises the begin of `first_step`, or of the running step if that is later.

        None if steps are not numbered, or do not all end in the same way.
        """
        if not self.is_numbered or not (self._explicit or self._running.learner.is_settled):
            return None
        return self._ends_per_step.boundary(self.step, max(first_step, self.step), is_named=self._explicit)

    def _begin_attempt(self, start_ns: int, cpu_ns: int, costs: AgentCosts | None) -> None:
        self._running = StepInProgress(start_ns, cpu_ns, costs, self._ended)
        self._spans = self._running.spans
        self._communication = CommunicationMarks(self._running.communication, self._refuse, self._lack)
        self._began_at = self._at
        self._ends_per_step = EndsPerStep()
        self._explicit = self._is_gapped = self._is_numberless = self._is_provisional = False
        self._own = RunningStepMarks(self._running, self._refuse)
        self._handlers.update(self._make_handlers())  # in place: a block of marks may be under way
        self._device: DeviceMarks | None = None

    # Marks that end a step.

    def _end_iteration(self, event: int | None, mark: Mark) -> None:
        if event is None or self._explicit:
            return
        if self._running.ends_with(event):
            self._end(mark, _END_KIND_OF[mark[KIND]])

    def _end(self, mark: Mark, end_kind: str) -> None:
        arrays = self._communication.end_step(is_plain=self._spans.have_ascended)
        self._running.end(mark[TIME], mark[ARGUMENT], self._at - self._began_at, arrays)
        self._began_at = self._at
        self._ends_per_step.end_step(self._ends, end_kind)

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

    # Dispatch of marks.

    def _make_handlers(self) -> dict[int, Handler]:
        """Return the handlers by kind of mark, for the current attempt."""
        ending: dict[MarkKind, Handler] = {
            MarkKind.BEGIN: self._begin,
            MarkKind.BACKWARD_END: self._end_backward,
            MarkKind.OPTIMIZER_END: self._end_optimizer,
            MarkKind.SCALER_END: self._end_scaler,
            MarkKind.EXPLICIT: self._begin_explicit,
            MarkKind.STEP_END: self._end_step,
            MarkKind.FAILURE: self._fail,
            MarkKind.FINISH: self._finish,
            MarkKind.THREAD: self._change_thread,
            MarkKind.MARKS_LOST: self._note_lost,
        }
        elsewhere = dict.fromkeys(DEVICE_KINDS, self._meet_device) | {
            int(MarkKind.FAILURE): self._fail,
            int(MarkKind.FINISH): self._finish,
            int(MarkKind.FUSED_STEP): self._fuse_optimizer,
        }
        return {
            **{int(kind): handler for kind, handler in ending.items()},
            **dict.fromkeys(DEVICE_KINDS, self._meet_device),
            **self._own.handlers,
            **{kind | OTHER_THREAD: handler for kind, handler in elsewhere.items()},
            **dict.fromkeys(COMMUNICATION_KINDS, self._communicate),
        }

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

    def _finish(self, _mark: Mark) -> None:
        self.has_finished = True
        if self._device is not None:
            self._device.drain()

    def _fail(self, mark: Mark) -> None:
        self.failures = mark[ARGUMENT]
        if self._device is not None:
            self._device.drain()

    def _meet_device(self, mark: Mark) -> None:
        """Begin to measure on a device; if its begin mark is lost, its anchors show it."""
        if self._device is None and DeviceMarks.begins(mark):
            self._communication.settle()
            self._device = DeviceMarks(self._running, self._communication, self._at)
            self._device.readers[mark[KIND]](mark)

    def _end_backward(self, mark: Mark) -> None:
        self._ends = self._ends.after(_BACKWARD_END)
        if self._spans.end_backward(mark[TIME]):
            if not self._spans.is_in_optimizer:  # an optimizer may call its closure any number of times
                self._running.quantities.add_backward()
            self._end_iteration(self._spans.fused_event(), mark)

    def _end_optimizer(self, mark: Mark) -> None:
        self._ends = self._ends.after(mark[KIND])
        self._end_iteration(self._spans.end_optimizer(mark[TIME]), mark)

    def _end_scaler(self, mark: Mark) -> None:
        if self._spans.has_skipped(mark[SUBJECT]):
            self._running.note_skipped()
        self._end_optimizer(mark)
