"""Estimates how likely lost records alone explain the gap by which a hang is found, if only records are known.

Pure. The way in which records get lost is unknown, and the first loss may come now: after n steps its chance is one in
n, whatever gets lost. Only a log as a whole shows the pattern: if records have been lost singly and rarely, several
missing together at the very end are no coincidence.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.detect.hangs.hang import Hang


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Records that a log lacks between others of the same rank: these are certainly lost, whatever its end means.

    `lost` counts them, `records` those that arrived. At most `longest_steps` of one rank are missing in a row, and at
    most `most_ranks` in one step. `gone` ranks vanish from the log while others continue: it was cut, or the run
    continues without them.
    """

    lost: int
    records: int
    longest_steps: int
    most_ranks: int
    gone: frozenset[int] = frozenset()

    def chance_of(self, hang: "Hang", rank_count: int) -> float:
        """Return the probability that such losses produce the evidence of `hang`; 1 if that is no evidence.

        A host's ranks may be missing because of one lost batch, and a loss as large as an earlier one may recur.
        """
        ranks, records = hang.numbers.get("late_ranks", 1.0), hang.numbers.get("lacking_records", 1.0)
        steps = records / ranks
        is_new = steps > max(self.longest_steps, 1) or ranks > max(self.most_ranks, 1)
        if hang.is_of_hosts or not is_new or not self.gone.isdisjoint(hang.ranks):
            return 1.0
        of_record = (self.lost + 1) / (self.records + 1)
        # In logarithms: a thousand ranks to the power of hundreds overflows.
        return math.exp(min(ranks * math.log(rank_count) + records * math.log(of_record), 0.0))
