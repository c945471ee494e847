"""How likely lost records alone leave the gap by which a hang is found, where only records are known.

Pure. It is not known how records get lost, and the first loss may come now: after n steps that is one in n, whatever
gets lost. Only a log as a whole shows how: where records have been lost one by one, and seldom, several together that
lack at the very end are no chance.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.detect.hangs.hang import Hang


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Which records a log lacks between others of the same rank: those are lost, whatever its end means.

    `lost` of them, with `records` that arrived; at most `longest_steps` of one rank in a row, `most_ranks` in one step.
    `gone` ranks are not in the log any more while others go on: it was cut, or goes on without them.
    """

    lost: int
    records: int
    longest_steps: int
    most_ranks: int
    gone: frozenset[int] = frozenset()

    def chance_of(self, hang: "Hang", rank_count: int) -> float:
        """Return how likely they leave the evidence of `hang`; 1 if that is no evidence.

        A host's ranks may lack for one lost batch, and what was lost at once before may be lost so again.
        """
        ranks, records = hang.numbers.get("late_ranks", 1.0), hang.numbers.get("lacking_records", 1.0)
        steps = records / ranks
        is_new = steps > max(self.longest_steps, 1) or ranks > max(self.most_ranks, 1)
        if hang.is_of_hosts or not is_new or not self.gone.isdisjoint(hang.ranks):
            return 1.0
        of_record = (self.lost + 1) / (self.records + 1)
        # By logarithms: a thousand ranks to the power of hundreds is no number.
        return math.exp(min(ranks * math.log(rank_count) + records * math.log(of_record), 0.0))
