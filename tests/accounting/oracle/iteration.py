"""Where an iteration ends, learnt from the training itself (PerfTracker, section 4.1).

An iteration is what repeats. Its events here are the ends of outermost optimizer steps, each with whether there was
training (a batch or a backward) since the one before. PerfTracker's sequence holds the batches as well; but ranks of
one job may differ in those (only the first tensor-parallel rank loads data), and all ranks must end their steps
at the same events. Optimizer steps are the same on all of them.

Until M identical repeats are seen, every optimizer end after training ends a step. Then the last event of the
repeating sequence does: one iteration of a GAN is one step, and so is one that steps an optimizer per parameter group.
Steps that are not like the others, those of a GAN before it is learnt among them, are not `regular`.
"""

REPEATS = 10
"""PerfTracker's M: identical sequences until one is believed."""
RELEARN_EVENTS = 200
"""PerfTracker's K. When more than a tenth of so many events do not fit, the sequence is learnt anew: the paper's rule
(none of K events completes a match) never gives up a short sequence that is part of a longer one."""
PERIOD_MAX = 32
"""Events of the longest sequence that is looked for."""

_OPTIMIZERS_MAX = 64  # optimizers made anew each step must not pile up
_MISSES_MAX = RELEARN_EVENTS // 10
_HISTORY_MAX = REPEATS * PERIOD_MAX


class Iteration:
    """The learner of one rank; an event is a small integer, odd if training led up to it."""

    __slots__ = ("_events", "_history", "_misses", "_numbers", "_position", "_sequence", "regular")

    def __init__(self) -> None:
        self._sequence: list[int] = []
        self._numbers: dict[int, int] = {}
        self._forget()

    def _forget(self) -> None:
        self._sequence = []
        self._history: list[int] = []
        self._position = self._events = self._misses = 0
        self.regular = True
        """Whether the step that ended last is one like the others."""

    def event_of(self, optimizer: object) -> int:
        """Return the event of an optimizer without training before it: even, by order of appearance.

        So it is the same on all ranks.
        """
        number = self._numbers.get(id(optimizer))
        if number is None:
            if len(self._numbers) == _OPTIMIZERS_MAX:
                self._numbers.clear()
            self._numbers[id(optimizer)] = number = len(self._numbers) + 1
        return 2 * number

    def ends_step(self, event: int) -> bool:
        """Return whether a training step ends with `event`, the next one."""
        sequence = self._sequence
        if not sequence:
            return self._learn(event)
        self._events += 1
        if event != sequence[self._position]:
            return self._miss(event)
        self._position += 1
        if self._position < len(sequence):
            return False
        self._position = 0
        self.regular = True
        if self._events >= RELEARN_EVENTS:
            self._events = self._misses = 0
        return True

    def _learn(self, event: int) -> bool:
        history = self._history
        history.append(event)
        if len(history) > _HISTORY_MAX:
            del history[0]
        self.regular = history.count(event) == len(history)
        for period in range(1, min(PERIOD_MAX, len(history) // REPEATS) + 1):
            if event == history[-1 - period] and self._repeats(period):
                self._sequence = history[-period:]
                self._history = []
                break
        return bool(event & 1)

    def _repeats(self, period: int) -> bool:
        """Whether the history ends in REPEATS times its last `period` events, with training among them."""
        history = self._history
        sequence = history[-period:]
        return history[-period * REPEATS :] == sequence * REPEATS and any(event & 1 for event in sequence)

    def _miss(self, event: int) -> bool:
        """Fit an unexpected event in: as the beginning of the next sequence, else as the end of a step."""
        self._misses += 1
        self.regular = False
        if self._misses > _MISSES_MAX:
            self._forget()
            return self._learn(event)
        restarts = event == self._sequence[0] and self._position > 0
        self._position = 1 if restarts else 0
        return bool(event & 1) and not restarts
