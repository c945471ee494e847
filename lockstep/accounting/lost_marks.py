"""How the step builder handles lost marks: it counts them, and finds the number of the running step again."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lockstep.accounting.alignment import EndCounts, EndsPerStep
from lockstep.accounting.communication_marks import ARGUMENT, KIND, TIME, CommunicationMarks, Mark
from lockstep.accounting.running_step_marks import RunningStepMarks
from lockstep.accounting.state import COUNT, StateForm
from lockstep.accounting.step_in_progress import AgentCosts, StepInProgress
from lockstep.contracts.bounds import STEP_MAX
from lockstep.contracts.limits import MONOTONIC_NS_MAX
from lockstep.contracts.marks import MARK_STRUCT, OTHER_THREAD, MarkBlock, MarkKind
from lockstep.contracts.records import MISSING

if TYPE_CHECKING:
    from lockstep.accounting.device_marks import DeviceMarks

_BEGIN = int(MarkKind.BEGIN)
_THREAD = int(MarkKind.THREAD)
_STEP_END = int(MarkKind.STEP_END)
_EXPLICIT = int(MarkKind.EXPLICIT)
_ENDS = frozenset(
    int(kind) for kind in (MarkKind.BACKWARD_END, MarkKind.OPTIMIZER_END, MarkKind.SCALER_END, MarkKind.STEP_END)
)
_COUNTED = _ENDS | {MarkKind.FUSED_STEP | OTHER_THREAD}


@dataclass(slots=True)
class BuilderCounts:
    """Counts of unusable input: lost marks, completely lost steps, and malformed marks."""

    lost_marks: int = 0
    lost_steps: int = 0
    malformed_marks: int = 0

    STATE: ClassVar[Mapping[str, StateForm]] = dict.fromkeys(("lost_marks", "lost_steps", "malformed_marks"), COUNT)


class LostMarks(ABC):
    """The part of StepBuilder that continues after lost or malformed marks."""

    counts: BuilderCounts
    is_aligned: bool
    _position: int
    _at: int
    _began_at: int
    _limited_until: int
    _ends: EndCounts
    _ends_per_step: EndsPerStep
    _running: StepInProgress
    _own: RunningStepMarks
    _communication: CommunicationMarks
    _device: "DeviceMarks | None"
    _explicit: bool
    _is_gapped: bool
    _is_numberless: bool
    _is_provisional: bool

    @abstractmethod
    def _begin_attempt(self, start_ns: int, cpu_ns: int, costs: AgentCosts | None) -> None:
        """Begin the accounting of an attempt at `start_ns`."""

    @abstractmethod
    def _begin(self, mark: Mark) -> None:
        """Begin a step at a mark."""

    def _refuse(self) -> None:
        """Count a malformed mark; the content of its step is then unknown."""
        self.counts.malformed_marks += 1
        self._running.is_incomplete = True

    def _lack(self) -> None:
        """Note that something on which the step depends is lost."""
        self._running.is_incomplete = True

    def _miss(self, block: MarkBlock) -> None:
        """Continue with `block`, before which marks are lost."""
        is_first = self._position == 0 and not self.is_aligned
        knows_ends_per_step = self._explicit or (self._running.learner.is_settled and self._ends_per_step.is_known)
        if is_first or self._is_provisional or not knows_ends_per_step:
            self._begin_late(block)
        else:
            self._lose(block.position - self._position)

    def _begin_late(self, block: MarkBlock) -> None:
        """Account from `block` on without step numbers until `_number` finds them: too little was learnt before it."""
        self.counts.lost_marks += max(block.position - self._position, 0)
        is_numbered = self.is_aligned and not self._is_provisional
        ends_per_step = self._ends_per_step.forgotten(self._running.step if is_numbered else None)
        self._at = block.position
        start_ns = MARK_STRUCT.unpack_from(block.marks)[TIME]
        self._begin_attempt(min(start_ns, MONOTONIC_NS_MAX), MISSING, None)
        self._running.lose()
        self._ends_per_step = ends_per_step
        self.is_aligned = self._is_provisional = True

    def _number(self) -> None:
        """Find the number of the running step, if all ends since the last known one are of steps like the last one.

        If the sequence has several events, it is unknown when it was learnt, and therefore how many steps preceded it.
        """
        learner = self._running.learner
        count = self._ends_per_step.all_steps(is_named=self._explicit)
        is_learnt = self._explicit or (learner.is_settled and len(learner.sequence) == 1)
        if is_learnt and 0 < count <= STEP_MAX:
            if self._device is not None:
                self._device.renumber(count - self._running.step)
            known = self._ends_per_step.known_step  # 0 for a reader that came late, which has lost the steps it built
            self.counts.lost_steps += count - known if known else self._running.step
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
        """Count marks that did not fit in the process' buffer; the waits of the running step are then unknown."""
        self.counts.lost_marks += max(mark[ARGUMENT], 0)
        self._running.is_incomplete = True

    def _align(self, mark: Mark) -> None:
        """Resume if `mark` is the end of a step whose number is known."""
        kind = mark[KIND]
        if kind == _BEGIN:
            self._begin(mark)
            return
        if kind in _COUNTED:
            self._ends = self._ends.after(kind)
        if kind == MarkKind.MODEL_FLOPS:
            self._own.set_flops(mark)
        if kind == _THREAD and len(self._running.learner.sequence) > 1:
            self._is_numberless = True  # the sequence is learnt again, and ends before that cannot be assigned to steps
        if kind in (_EXPLICIT, _STEP_END) and not self._explicit:
            self._is_numberless = True  # it is lost when the training began to name its steps, and thereby their number
        if self._is_numberless or kind not in _ENDS or (self._explicit and kind != _STEP_END):
            return
        ended = 0
        if self._explicit:
            ended = self._ends_per_step.named_steps(self._ends)
        elif self._running.learner.is_settled:
            ended = self._ends_per_step.learnt_steps(self._ends)
        if 0 < ended <= STEP_MAX - self._running.step:  # implausible counts give no step number
            self.counts.lost_steps += ended if ended > 1 else 0  # the limits of a single step are known
            self.is_aligned = True
            self._ends_per_step.resume(self._ends)
            self._began_at = self._at
            self._running.resume(ended, mark[TIME], mark[ARGUMENT])
