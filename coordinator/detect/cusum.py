"""A clipped one-sided sum of one series' evidence: it shows that something lasts (Page 1954).

Pure. `ranks/cusum_test.py` keeps the same of many series at once.
"""

from typing import ClassVar

from coordinator.detect.state_dict import Learner


class Cusum(Learner):
    """`sum` is 0 while nothing lasts; since it left zero there have been `run` steps, of `total` deviation in all."""

    LEARNT: ClassVar[tuple[str, ...]] = ("sum", "run", "total")

    def __init__(self) -> None:
        self.sum = 0.0
        self.run = 0
        self.total = 0.0

    def add(self, score: float, deviation: float, most: float) -> None:
        """Take one step: its score, and its deviation. The sum stays below `most`, else it would not come back."""
        self.sum = min(max(self.sum + score, 0.0), most)
        self.run = self.run + 1 if self.sum > 0 else 0
        self.total = self.total + deviation if self.sum > 0 else 0.0

    def clear(self) -> None:
        """Begin again at zero."""
        self.sum = self.total = 0.0
        self.run = 0

    @property
    def mean(self) -> float:
        """Mean deviation since the sum left zero, 0 at zero."""
        return self.total / self.run if self.run else 0.0
