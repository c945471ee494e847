"""Estimates how likely lost records alone explain the gap by which a hang is found, if only records are known.

Pure. The way in which records get lost is unknown, and the first loss may come now: after n steps its chance is one in
n, whatever gets lost. Only a log as a whole shows the pattern. If records have been lost independently of each other,
several missing together have the product of their chances. If they have been lost together, the number of steps is all
that is known.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.detect.hangs.hang import Hang

_TOGETHER_CHANCE = 0.01
"""Chance below which coincidences refute that losses are independent: of 100 logs with such losses, one for each of two
tests shows no hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Records that a log lacks between others of the same rank: these are certainly lost, whatever its end means.

    `lost` counts them without those that all ranks of a host lack together (one batch), `records` those that arrived.
    Of the lost ones, `repeated` follow a lost one of the same rank, and at most `most_ranks` are of one step.
    `stride_steps` is the usual distance of the log's steps. `gone` ranks vanish from the log while others continue: it
    was cut, or the run continues without them. `past_s` holds by rank the intervals of time (unix s) in which its
    records seem to have stopped although it had ended a further step: a record was lost, or was on its way.
    """

    lost: int
    records: int
    repeated: int = 0
    most_ranks: int = 0
    stride_steps: int = 1
    gone: frozenset[int] = frozenset()
    past_s: Mapping[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    def excludes(self, hang: "Hang", now_s: float) -> bool:
        """Whether the log shows that a rank of `hang` had ended the step in which it is thought to hang at `now_s`."""
        return any(begin <= now_s < end for rank in hang.ranks for begin, end in self.past_s.get(rank, ()))

    def chance_of(self, hang: "Hang", rank_count: int) -> float:
        """Return the probability that such losses produce the evidence of `hang`; 1 if that is no evidence.

        It is at most the number of subsets of so many ranks, times the probability that one loses all these records.
        Records that all ranks of a host lack are none, because one batch holds them.
        """
        steps = hang.behind_host_steps // self.stride_steps
        if not steps or not self._are_independent(rank_count) or not self.gone.isdisjoint(hang.ranks):
            return 1.0
        ranks, of_record = len(hang.ranks), (self.lost + 1) / (self.records + 1)
        # In logarithms: ten thousand ranks have more subsets than a float can count.
        subsets = math.lgamma(rank_count + 1) - math.lgamma(ranks + 1) - math.lgamma(rank_count - ranks + 1)
        return math.exp(min(subsets + ranks * steps * math.log(of_record), 0.0))

    def _are_independent(self, rank_count: int) -> bool:
        """Whether chance explains how many records were lost in a row, and how many in the worst step."""
        if not self.lost:
            return True
        in_row = _poisson_tail(self.repeated, self.lost * self.lost / (self.lost + self.records))
        steps = (self.lost + self.records) / rank_count
        in_step = steps * _poisson_tail(self.most_ranks, self.lost / steps)
        return min(in_row, in_step) >= _TOGETHER_CHANCE


def _poisson_tail(count: int, mean: float) -> float:
    """Return the probability of `count` or more events where `mean` are expected."""
    fewer = (math.exp(number * math.log(mean) - mean - math.lgamma(number + 1)) for number in range(count))
    return max(1.0 - math.fsum(fewer), 0.0)
