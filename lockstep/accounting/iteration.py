"""Learns where an iteration ends from the training itself (PerfTracker, section 4.1).

An iteration is a repeating sequence of events. The events are the ends of outermost optimizer steps, each with a flag
whether training (a batch or a backward) preceded it. PerfTracker's sequence also contains the batches. But ranks of one
job may differ in those (only the first tensor-parallel rank loads data), and all ranks must end their steps at the same
events.

Until M identical repetitions are seen, every optimizer end after training ends a step. From then on, the last event of
the repeating sequence does: one iteration of a GAN is one step, and so is one that steps an optimizer per parameter
group. Steps that differ from the others, including those of a GAN before it is learnt, are not `is_regular`.
"""

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import ClassVar

from lockstep.accounting.state import ANY_INTEGER, BOOLEAN, COUNT, DictForm, IntegerForm, ListForm, StateForm
from lockstep.contracts.errors import MalformedError

REPEATS = 10
"""PerfTracker's M: identical sequences until one is accepted."""
RELEARN_EVENTS = 200
"""PerfTracker's K. If more than a tenth of this many events do not match, the sequence is learnt again. The paper's
rule (none of K events completes a match) never gives up a short sequence that is part of a longer one."""
PERIOD_MAX = 32
"""Length of the longest sequence that can be learnt."""

_OPTIMIZERS_MAX = 64  # a training that keeps creating optimizers must not fill the memory
_HISTORY_MAX = REPEATS * PERIOD_MAX
_MISSES_MAX = RELEARN_EVENTS // 10


class IterationLearner:
    """The learner of one rank; an event is a small integer, odd if training preceded it.

    `sequence` is the repeating sequence, empty until it is learnt; `is_regular` is true if the last step was like the
    others.
    """

    STATE: ClassVar[Mapping[str, StateForm]] = {
        "_numbers": DictForm(ANY_INTEGER, IntegerForm(1, _OPTIMIZERS_MAX), _OPTIMIZERS_MAX),
        "sequence": ListForm(COUNT, PERIOD_MAX),
        "is_regular": BOOLEAN,
        "_history": ListForm(COUNT, _HISTORY_MAX, lambda events: deque(events, maxlen=_HISTORY_MAX)),
        "_position": IntegerForm(0, PERIOD_MAX),
        "_events": COUNT,
        "_misses": COUNT,
    }

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._restart()

    def _restart(self) -> None:
        self.sequence: list[int] = []
        self.is_regular = True
        self._history: deque[int] = deque(maxlen=_HISTORY_MAX)
        self._position = self._events = self._misses = 0

    def event_of(self, identity: int) -> int:
        """Return the even event of an optimizer without preceding training: by appearance, alike on all ranks."""
        number = self._numbers.get(identity)
        if number is None:
            if len(self._numbers) == _OPTIMIZERS_MAX:
                self._numbers.clear()
            self._numbers[identity] = number = len(self._numbers) + 1
        return 2 * number

    def ends_step(self, event: int) -> bool:
        """Process the next event; return whether it ends a training step."""
        if not self.sequence:
            return self._learn(event)
        self._events += 1
        if event != self.sequence[self._position]:
            return self._miss(event)
        self._position += 1
        if self._position < len(self.sequence):
            return False
        self._position = 0
        self.is_regular = True
        if self._events >= RELEARN_EVENTS:
            self._events = self._misses = 0
        return True

    @property
    def is_settled(self) -> bool:
        """Whether the sequence is learnt, and the last step was like the others."""
        return bool(self.sequence) and self.is_regular

    def begin_sequence(self) -> None:
        """Expect the first event of the sequence next, after a step that was not followed event by event."""
        self._position = 0

    def check(self, *, what: str, where: str) -> None:
        """Reject a restored state that is inconsistent.

        Raises
        ------
        MalformedError
            The next event is beyond the end of the sequence.
        """
        if self._position >= max(len(self.sequence), 1):
            expected = f"below the length of the sequence, {len(self.sequence)}"
            raise MalformedError(f"{what}.position", where=where, got=self._position, expected=expected)

    def _learn(self, event: int) -> bool:
        history = self._history
        history.append(event)
        self.is_regular = history.count(event) == len(history)
        for period in range(1, min(PERIOD_MAX, len(history) // REPEATS) + 1):
            if event == history[-1 - period] and self._repeats(period):
                self.sequence = list(history)[-period:]
                history.clear()
                break
        return bool(event & 1)

    def _repeats(self, period: int) -> bool:
        """Whether the history ends with REPEATS repetitions of its last `period` events, with training among them."""
        recent = list(islice(self._history, len(self._history) - period * REPEATS, None))
        sequence = recent[-period:]
        return recent == sequence * REPEATS and any(event & 1 for event in sequence)

    def _miss(self, event: int) -> bool:
        """Handle an unexpected event: as the beginning of the next sequence, otherwise as the end of a step."""
        self._misses += 1
        self.is_regular = False
        if self._misses > _MISSES_MAX:
            self._restart()
            return self._learn(event)
        restarts = event == self.sequence[0] and self._position > 0
        self._position = 1 if restarts else 0
        return bool(event & 1) and not restarts
