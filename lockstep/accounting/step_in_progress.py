"""The running step of one rank: its content, and the record built from it at its end.

May live here: which state of an attempt outlives a step, and which does not. Not here: marks, and lost marks.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from lockstep.accounting.communication import CommunicationTracker
from lockstep.accounting.events import COLLECTIONS_MAX, EVENTS_MAX, StepEvents
from lockstep.accounting.iteration import IterationLearner
from lockstep.accounting.model_flops import ModelFlops
from lockstep.accounting.quantities import StepQuantities
from lockstep.accounting.spans import SpanTracker
from lockstep.accounting.state import (
    ANY_INTEGER,
    BOOLEAN,
    COUNT,
    TIME_NS,
    OptionalForm,
    StateForm,
    Stateful,
    TupleForm,
    mapping,
    restore,
    saved,
)
from lockstep.accounting.step_arrays import StepArrays
from lockstep.accounting.step_record import BuiltStep, EndedStep, FinishedStep
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.records import MISSING, RECORD_STRUCT, Flag

_RECORD_DIGITS = re.compile(f"[0-9a-f]{{{2 * RECORD_STRUCT.size}}}")
_OLDEST_GENERATION = 2
_WARM_UP, _EVALUATION, _SKIPPED = int(Flag.WARM_UP), int(Flag.EVALUATION), int(Flag.SKIPPED_OPTIMIZER)


class AgentCosts(NamedTuple):
    """Cost of the agent on the training thread, ns: per mark, and per collective in addition to its marks."""

    mark_ns: int = 0
    collective_ns: int = 0


class StepInProgress:
    """The running step of an attempt that began at `start_ns`, when its thread had used `cpu_ns` of CPU time.

    `costs` are those of marks and collectives, None if lost. `spans`, `communication` and `quantities` are its content;
    `is_incomplete` is set if some of its marks are lost. Steps that end are appended to `ended`.
    """

    STATE: ClassVar[Mapping[str, StateForm]] = {
        **dict.fromkeys(("step", "_flags", "_full_collections"), COUNT),
        **dict.fromkeys(("_start_ns", "_collection_began_ns"), TIME_NS),
        **dict.fromkeys(("_cpu_start_ns", "_agent_ns"), ANY_INTEGER),
        **dict.fromkeys(("is_incomplete", "_has_resumed"), BOOLEAN),
        **dict.fromkeys(("_compiled", "_compiled_before"), OptionalForm(ANY_INTEGER)),
        "_costs": OptionalForm(TupleForm(COUNT, COUNT, make=AgentCosts)),
    }

    def __init__(self, start_ns: int, cpu_ns: int, costs: AgentCosts | None, ended: list[EndedStep]) -> None:
        self._costs = costs
        self.flops = ModelFlops()
        self.append: Callable[[FinishedStep], None] = ended.append
        self.deliver: Callable[[FinishedStep], None] = self.append
        """Called with each step that ends; with a device, a function that calls `append` later."""
        self.learner = IterationLearner()
        self.spans = SpanTracker(start_ns)
        self.communication = CommunicationTracker()
        self.quantities = StepQuantities()
        self._compiled: int | None = None
        self._compiled_before: int | None = 0
        self.step = 0
        self.begin(0, start_ns, cpu_ns)
        self._flags = _WARM_UP  # its beginning is not known exactly

    def begin(self, step: int, start_ns: int, cpu_ns: int) -> None:
        """Begin a step; the previous one is dropped."""
        self.step = step
        self._start_ns = start_ns
        self._cpu_start_ns = cpu_ns
        self._flags = self._agent_ns = 0
        self._full_collections = self._collection_began_ns = 0
        self.is_incomplete = self._has_resumed = False
        self._hold(StepEvents())
        self.spans.begin_step(start_ns)

    def _hold(self, events: StepEvents) -> None:
        self.spans.events = events
        self.communication.begin_step(events)

    # Content of the step.

    def flag(self, flags: int) -> None:
        """Add flags to the step."""
        self._flags |= flags

    def spend(self, agent_ns: int) -> None:
        """Add to the agent's cost on the training thread in this step."""
        self._agent_ns += agent_ns

    def note_compiled(self, graphs: int) -> None:
        """Note the number of graphs compiled so far in the process."""
        self._compiled = graphs

    def begin_collection(self, now_ns: int) -> None:
        """Begin a garbage collection."""
        self._collection_began_ns = now_ns

    def end_collection(self, generation: int, now_ns: int) -> None:
        """End a garbage collection of this generation."""
        if not self._collection_began_ns:
            return
        collections = self.spans.events.collections
        if len(collections) == COLLECTIONS_MAX:
            del collections[0]
        collections.append((self._collection_began_ns, now_ns))
        self._collection_began_ns = 0
        self._full_collections += generation == _OLDEST_GENERATION

    @property
    def longest(self) -> int:
        """Number of events of the most frequent sort in the step so far."""
        held = self.spans.events
        return max(len(held.spans), len(held.collectives), len(held.blocked), self.communication.expected_count)

    def limit_events(self, more: int) -> None:
        """Drop the events of the step so far if `more` events are too many; the time becomes host time.

        A process that never steps (an evaluation of hours, inference over several ranks) must not fill the memory.
        """
        if self.longest + more > EVENTS_MAX:
            events = StepEvents()
            events.collections = self.spans.events.collections
            self._hold(events)
            self._flags |= _EVALUATION

    def change_thread(self, now_ns: int, cpu_ns: int) -> None:
        """Drop the events of the step so far: the rest is another thread's, and the step counts as warm-up.

        `cpu_ns` is the CPU time that the other thread had used.
        """
        self.learner = IterationLearner()
        self._hold(StepEvents())
        self.communication.forget_waits()
        self.spans.begin_step(now_ns)
        self.spans.leave_all()
        self._cpu_start_ns = cpu_ns
        self._full_collections = self._collection_began_ns = 0
        self._flags |= _WARM_UP

    def note_skipped(self) -> None:
        """Note that a gradient scaler has skipped its optimizer."""
        self._flags |= _SKIPPED

    # End of the step.

    def ends_with(self, event: int) -> bool:
        """Return whether an iteration, and the step with it, ends with `event` (iteration.py)."""
        if not self.learner.ends_step(event):
            return False
        if not self.learner.is_regular:
            self._flags |= _WARM_UP
        return True

    def end(self, now_ns: int, cpu_ns: int, marks: int, arrays: StepArrays | None) -> None:
        """End the step after this many marks; `cpu_ns` is MISSING if unknown.

        `arrays` is its communication; None if that is in `communication.events`.
        """
        quantities, has_evaluated = self.quantities.end_step(self.step)
        if quantities["flops"] == MISSING:
            quantities["flops"] = self.flops.of_step(quantities["samples"], quantities["tokens"])
        events = self.spans.events
        collectives = len(events.collectives) if arrays is None else len(arrays.issue_ns_C)
        finished = FinishedStep(
            step=self.step,
            start_ns=self._start_ns,
            end_ns=now_ns,
            flags=self._flags | (_EVALUATION if has_evaluated else 0),
            events=events,
            arrays=arrays,
            domains=frozenset(self.communication.domains),
            has_backward=self.spans.backward_known,
            full_collections=min(self._full_collections, len(events.collections)),
            cpu_ns=MISSING if MISSING in (cpu_ns, self._cpu_start_ns) else cpu_ns - self._cpu_start_ns,
            quantities=quantities,
            recompilations=self._recompilations(),
            agent_ns=self._agent_cost_ns(marks, collectives),
        )
        # A span that ends right after accounting resumed may have begun in the lost marks.
        finished.is_incomplete = self.is_incomplete or (self._has_resumed and self.spans.has_unmatched_end)
        self.begin(self.step + 1, now_ns, cpu_ns)  # ends collectives for which nothing waited
        self.deliver(finished)

    def _agent_cost_ns(self, marks: int, collectives: int) -> int:
        if self._costs is None:
            return MISSING
        return self._agent_ns + marks * self._costs.mark_ns + collectives * self._costs.collective_ns

    def _recompilations(self) -> int:
        compiled, before = self._compiled, self._compiled_before
        self._compiled_before = compiled
        return MISSING if compiled is None or before is None else compiled - before

    # Lost marks.

    def lose(self) -> None:
        """Drop everything that depends on lost marks."""
        self._compiled = self._compiled_before = None
        self.spans.leave_all()
        self.communication.lose()
        self.quantities.begin_step()
        self.is_incomplete = True

    def resume(self, ended: int, now_ns: int, cpu_ns: int) -> None:
        """Resume accounting at the end of a step, `ended` steps after the one in which marks were lost."""
        if ended == 1:
            finished = FinishedStep(step=self.step, start_ns=self._start_ns, end_ns=now_ns, flags=self._flags)
            finished.is_incomplete = True
            self.deliver(finished)
        self.learner.begin_sequence()
        self.begin(self.step + ended, now_ns, cpu_ns)
        self._has_resumed = True

    # State.

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        return {
            "step": saved(self),
            "learner": saved(self.learner),
            "spans": saved(self.spans),
            "communication": self.communication.state(),
            "quantities": saved(self.quantities),
            "flops": saved(self.flops),
        }

    def restore(self, state: Any, *, what: str, where: str) -> None:
        """Restore a state.

        Raises
        ------
        MalformedError
            It is not such a state.
        """
        mapping(state, what, where)
        parts: dict[str, Stateful] = {
            "step": self,
            "learner": self.learner,
            "spans": self.spans,
            "quantities": self.quantities,
            "flops": self.flops,
        }
        for name, part in parts.items():
            restore(part, state.get(name), what=f"{what}.{name}", where=where)
        self.learner.check(what=f"{what}.learner", where=where)
        self.communication.restore(state.get("communication"), what=f"{what}.communication", where=where)
        self.spans.events = self.communication.events


class BuiltStepForm:
    """The form of a BuiltStep: its record in hexadecimal digits, and whether it is incomplete."""

    def save(self, value: BuiltStep) -> list[Any]:
        """Return the list."""
        return [value.record.hex(), value.is_incomplete]

    def load(self, value: Any, what: str, where: str) -> BuiltStep:
        """Return the step."""
        match value:
            case [str(digits), bool(is_incomplete)] if _RECORD_DIGITS.fullmatch(digits):
                return BuiltStep(bytes.fromhex(digits), is_incomplete)
        expected = f"{2 * RECORD_STRUCT.size} hexadecimal digits, and true or false"
        raise MalformedError(what, where=where, got=value, expected=expected)
