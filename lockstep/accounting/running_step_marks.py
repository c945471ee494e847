"""Dispatches the marks of the training thread that do not end a step to the running step."""

from collections.abc import Callable, Mapping
from typing import ClassVar

from lockstep.accounting.communication_marks import ARGUMENT, DETAIL, SUBJECT, TIME, Handler, Mark
from lockstep.accounting.events import DATA, PHASE_COUNT
from lockstep.accounting.state import ANY_INTEGER, StateForm
from lockstep.accounting.step_in_progress import StepInProgress
from lockstep.contracts.bounds import FLAGS_MAX
from lockstep.contracts.marks import ANNOTATED, OTHER_THREAD, MarkKind
from lockstep.contracts.records import MISSING, Flag

_EVALUATION = int(Flag.EVALUATION)


class RunningStepMarks:
    """Applies marks to `running`; `refuse()` is called for a malformed one.

    `handlers` are by the kind of a mark. Notes on the batch fetched last are held until the batch is counted.
    """

    STATE: ClassVar[Mapping[str, StateForm]] = dict.fromkeys(("_tokens", "_work"), ANY_INTEGER)

    def __init__(self, running: StepInProgress, refuse: Callable[[], None]) -> None:
        self._running, self._spans, self._refuse = running, running.spans, refuse
        self._tokens = self._work = MISSING
        spans = running.spans
        handlers: dict[MarkKind, Handler] = {
            MarkKind.DATA_BEGIN: lambda mark: spans.begin_phase(DATA, mark[TIME]),
            MarkKind.DATA_END: lambda mark: spans.end_data(mark[TIME]),
            MarkKind.BACKWARD_BEGIN: lambda mark: spans.begin_backward(mark[TIME]),
            MarkKind.OPTIMIZER_BEGIN: self._begin_optimizer,
            MarkKind.SCALER_BEGIN: self._begin_scaler,
            MarkKind.CLOSURE_BEGIN: lambda mark: spans.begin_closure(mark[TIME]),
            MarkKind.CLOSURE_END: lambda mark: spans.end_closure(mark[TIME]),
            MarkKind.PHASE_BEGIN: self._begin_phase,
            MarkKind.PHASE_END: self._end_phase,
            MarkKind.GC_BEGIN: lambda mark: running.begin_collection(mark[TIME]),
            MarkKind.GC_END: lambda mark: running.end_collection(mark[DETAIL], mark[TIME]),
            MarkKind.BATCH_TOKENS: self._note_tokens,
            MarkKind.BATCH_WORK: self._note_work,
            MarkKind.BATCH: self._add_batch,
            MarkKind.BATCH_EVALUATED: self._add_evaluated_batch,
            MarkKind.ANNOTATION: self._annotate,
            MarkKind.FLAGS: self._flag,
            MarkKind.COMPILED: lambda mark: running.note_compiled(mark[ARGUMENT]),
            MarkKind.AGENT_COST: self._spend,
            MarkKind.MODEL_FLOPS: self.set_flops,
        }
        self.handlers: dict[int, Handler] = {
            **{int(kind): handler for kind, handler in handlers.items()},
            MarkKind.FLAGS | OTHER_THREAD: self._flag,
            MarkKind.AGENT_COST | OTHER_THREAD: self._spend_elsewhere,
        }

    def set_flops(self, mark: Mark) -> None:
        """Set the model's FLOPs for the following steps."""
        if not self._running.flops.set(mark[DETAIL], mark[ARGUMENT]):
            self._refuse()

    def _begin_optimizer(self, mark: Mark) -> None:
        self._spans.begin_optimizer(mark[SUBJECT], self._running.learner, mark[TIME])

    def _begin_scaler(self, mark: Mark) -> None:
        self._spans.begin_scaler(mark[SUBJECT], mark[ARGUMENT], self._running.learner, mark[TIME])

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
