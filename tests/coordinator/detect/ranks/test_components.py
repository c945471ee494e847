"""Which part of a rank's work is to blame."""

import numpy as np
import pytest

from coordinator.detect.ranks.components import Explainer, medians, parts_of
from coordinator.detect.ranks.groups import Groups
from coordinator.settings.policy import CausePolicy
from tests.coordinator.scenarios import Scenario, generate

POLICY = CausePolicy()


def slow(*columns, ranks=8):
    mask = np.zeros(ranks, dtype=bool)
    mask[list(columns)] = True
    return mask


def explain(rows, slow_r, stages, typical, replicas=None):
    """Explain slow ranks from their last steps; with `replicas`, they are slower than their own replica."""
    explainer = Explainer(stages, replicas)
    return explainer.explain(medians(rows), slow_r, slow_r, typical, POLICY)


@pytest.mark.parametrize("part", ["compute", "data", "gc", "host"])
def test_the_part_that_grew_is_the_cause(part):
    """Each part that makes a rank slow is named, from three slow steps, with both sides' figures."""
    rows = list(generate(Scenario().with_fault(part, 3, seconds=0.05, begin=60)).rows())
    explained = explain(rows[60:63], slow(3), Groups([0] * 8), {})
    assert explained.keys() == {3}
    assert (explained[3].cause, explained[3].confidence) == (part, "high")
    assert explained[3].own[part] - explained[3].peers[part] == pytest.approx(0.05, abs=0.01)
    assert explained[3].own["wait"] < explained[3].peers["wait"]


def test_slow_peers_are_no_reference():
    """With seven of eight ranks slow, the eighth is the measure."""
    rows = list(generate(Scenario().with_fault("data", *range(7), seconds=0.05)).rows())
    explained = explain(rows[-3:], slow(*range(7)), Groups([0] * 8), {})
    assert {item.cause for item in explained.values()} == {"data"}
    assert len(explained) == 7


def test_a_rank_alone_in_its_stage_is_compared_with_its_past():
    """Where nobody does the same work, what the rank's steps used to consist of is the reference."""
    rows = list(generate(Scenario(degrees="pp=2").with_fault("host", 1, seconds=0.05, begin=60)).rows())
    explained = explain(rows[60:63], slow(1, ranks=2), Groups([0, 1]), parts_of(rows[50]))
    assert explained[1].cause == "host"


def test_an_uneven_batch_is_not_blamed_for_a_slow_loader():
    """Compute that the whole replica shares is no part of what makes one of its ranks slower than the others."""
    scenario = Scenario(degrees="tp=4,dp=4", sequence_sigma=0.12).with_fault("data", 5, seconds=0.04, begin=60)
    rows = list(generate(scenario).rows())
    longest = max(range(60, 118), key=lambda step: rows[step].components["compute"][4])
    replicas = Groups([rank // 4 for rank in range(16)])
    explained = explain(rows[longest : longest + 1], slow(5, ranks=16), Groups([0] * 16), {}, replicas)[5]
    assert explained.cause == "data"
    alone = explain(rows[longest : longest + 1], slow(5, ranks=16), Groups([0] * 16), {})[5]
    assert alone.cause == "compute"


def test_an_excess_that_nothing_holds_is_unknown():
    """Parts that were not measured cannot be blamed."""
    rows = list(generate(Scenario().with_fault("data", 3, seconds=0.05, begin=60)).rows())
    for row in rows:
        row.components["data"][:] = np.nan
    explanation = explain(rows[60:63], slow(3), Groups([0] * 8), {})[3]
    assert (explanation.cause, explanation.confidence) == ("unknown", "low")
    assert "data" not in explanation.own
