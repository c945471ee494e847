"""Turns ranks with repeated single slow steps into anomalies: cause and evidence of the last slow step.

Pure. Shapes: R ranks.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.detect.anomalies import Anomaly
from coordinator.detect.ranks.components import SELF
from coordinator.detect.ranks.intermittent import IntermittentTest
from coordinator.detect.ranks.rank_anomalies import RankAnomalies
from coordinator.detect.state_dict import nested, part_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from coordinator.intake.timeline import StepRow
    from coordinator.settings.policy import CausePolicy, ExcessPolicy


class IntermittentAnomalies:
    """State of the anomalies of ranks that are slow in single steps."""

    def __init__(self, ranks: int, anomalies: RankAnomalies, policy: "ExcessPolicy") -> None:
        self._anomalies = anomalies
        self.test = IntermittentTest(ranks, policy)
        self._found: dict[int, Anomaly] = {}

    def find(
        self, far: "Mapping[int, float]", row: "StepRow", others: "Sequence[Anomaly]", policy: "CausePolicy"
    ) -> list[Anomaly]:
        """Return an anomaly for each rank that is too often far beyond noise, given those that are so in this step.

        Ranks that one of the `others` names are left out.
        """
        test = self.test
        test.step(far, row.step)
        if not test.alarms:
            self._found.clear()
            return []
        self._found = {column: self._found[column] for column in test.alarms if column in self._found}
        if test.acting:
            for column, explanation in self._anomalies.explain(row, sorted(test.acting), policy).items():
                ratio, share, onset_step = test.of(column)
                more_s = max(explanation.own.get(SELF, 0.0) - explanation.peers.get(SELF, 0.0), 0.0)
                found = self._anomalies.anomaly_of(
                    column,
                    explanation,
                    onset_step=onset_step,
                    excess_ratio=ratio,
                    excess_seconds=share * more_s,
                    numbers={"share_of_steps": share},
                )
                line = f"rank {found.ranks[0]} works {ratio:.0%} longer in {share:.1%} of the steps, one here and there"
                self._found[column] = replace(found, evidence=(line, *found.evidence), lost_seconds=more_s)
        named = {each.ranks for each in others}
        marked = [replace(each, acts=column in test.acting) for column, each in self._found.items()]
        return [each for each in marked if each.ranks not in named]

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return the learnt state, arrays by name."""
        return nested({"counts": self.test.state_dict()})

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore the result of `state_dict`; arrays that do not fit are ignored."""
        self.test.load_state_dict(part_of(state, "counts"))
