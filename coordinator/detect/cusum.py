"""A clipped one-sided cumulative sum (CUSUM) of one series, which detects a lasting deviation (Page 1954).

Pure. `ranks/series_cusum.py` does the same for many series at once.
"""

from typing import ClassVar

from coordinator.detect.state_dict import Learner


class Cusum(Learner):
    """`sum` is 0 without a deviation; `run` counts the steps since it left zero, `total` is their summed deviation."""

    LEARNT: ClassVar[tuple[str, ...]] = ("sum", "run", "total")

    def __init__(self) -> None:
        self.sum = 0.0
        self.run = 0
        self.total = 0.0

    def add(self, score: float, deviation: float, most: float) -> None:
        """Add one step's score and deviation. The sum is clipped at `most`, so that it can return to zero."""
        self.sum = min(max(self.sum + score, 0.0), most)
        self.run = self.run + 1 if self.sum > 0 else 0
        self.total = self.total + deviation if self.sum > 0 else 0.0

    def clear(self) -> None:
        """Reset to zero."""
        self.sum = self.total = 0.0
        self.run = 0

    @property
    def mean(self) -> float:
        """Mean deviation since the sum left zero; 0 if it is at zero."""
        return self.total / self.run if self.run else 0.0
