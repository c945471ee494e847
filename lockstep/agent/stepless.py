"""Detects a training whose steps cannot be seen: backwards run, but nothing that ends a step.

Parameters updated by hand (`p -= lr * p.grad`), or by an optimizer that is not a torch.optim.Optimizer, leave no mark,
nor does a loop that only computes gradients. A hint for the user is printed once, and the exporter counts the process
as unwatched until an end is seen.
"""

from typing import TYPE_CHECKING

from lockstep.agent import unwatched
from lockstep.agent.boundary import warn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstep.agent.mark_buffer import MarkBuffer

PATIENCE_NS = 300_000_000_000
"""Five minutes: the longest steps known, of a thousand micro-batches, take less."""
BACKWARDS_MIN = 100
"""An evaluation or an analysis makes a few."""
TEXT = (
    "backwards run and no optimizer steps, so no end of a step is seen; call lockstep.step_end() where a step ends, "
    "or step a torch.optim.Optimizer"
)


class StepWatch:
    """State of one process; `look` is called at most ten times a second, on the training thread."""

    def __init__(self, marks: "MarkBuffer", environ: "Mapping[str, str]") -> None:
        self._marks = marks
        self._environ = environ
        self._is_stepless = False
        self.begin()

    def begin(self) -> None:
        """Begin an attempt."""
        self._since_ns = self._backwards = 0

    def look(self, now_ns: int, *, has_stepped: bool) -> None:
        """Check whether steps end; `has_stepped` is true if one ended since the last call."""
        if has_stepped or not self._since_ns:
            self._since_ns, self._backwards = now_ns, self._marks.backward_ends
            if self._is_stepless and has_stepped:
                self._is_stepless = False
                unwatched.withdraw()
            return
        backwards = self._marks.backward_ends - self._backwards
        if not self._is_stepless and now_ns - self._since_ns >= PATIENCE_NS and backwards >= BACKWARDS_MIN:
            self._is_stepless = True
            warn(f"{backwards} {TEXT}")
            unwatched.mark("steps", TEXT, self._environ)
