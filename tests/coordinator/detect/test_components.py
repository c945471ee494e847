"""Which part of a rank's work is to blame."""

import numpy as np
import pytest

from coordinator.detect.components import explain, explain_run, medians, middling, parts_of
from coordinator.detect.groups import Groups
from coordinator.policy import CausePolicy
from tests.coordinator.scenarios import Scenario, generate

POLICY = CausePolicy()


def slow(*columns, ranks=8):
    mask = np.zeros(ranks, dtype=bool)
    mask[list(columns)] = True
    return mask


@pytest.mark.parametrize("part", ["compute", "data", "gc", "host"])
def test_the_part_that_grew_is_the_cause(part):
    """Each part that makes a rank slow is named, from three slow steps, with both sides' figures."""
    rows = list(generate(Scenario().with_fault(part, 3, seconds=0.05, begin=60)).rows())
    explained = explain(rows[60:63], slow(3), Groups([0] * 8), {}, POLICY)
    assert explained.keys() == {3}
    assert explained[3].cause == part
    assert explained[3].own[part] - explained[3].peers[part] == pytest.approx(0.05, abs=0.01)
    assert explained[3].own["wait"] < explained[3].peers["wait"]


def test_slow_peers_are_no_reference():
    """With seven of eight ranks slow, the eighth is the measure."""
    rows = list(generate(Scenario().with_fault("data", *range(7), seconds=0.05)).rows())
    explained = explain(rows[-3:], slow(*range(7)), Groups([0] * 8), {}, POLICY)
    assert {item.cause for item in explained.values()} == {"data"}
    assert len(explained) == 7


def test_a_rank_alone_in_its_stage_is_compared_with_its_past():
    """Where nobody does the same work, what the rank's steps used to consist of is the reference."""
    rows = list(generate(Scenario(degrees="pp=2").with_fault("host", 1, seconds=0.05, begin=60)).rows())
    explained = explain(rows[60:63], slow(1, ranks=2), Groups([0, 1]), parts_of(rows[50]), POLICY)
    assert explained[1].cause == "host"


def test_an_excess_that_nothing_holds_is_unknown():
    """Parts that were not measured cannot be blamed."""
    rows = list(generate(Scenario().with_fault("data", 3, seconds=0.05, begin=60)).rows())
    for row in rows:
        row.components["data"][:] = np.nan
    explanation = explain(rows[60:63], slow(3), Groups([0] * 8), {}, POLICY)[3]
    assert explanation.cause == "unknown"
    assert "data" not in explanation.own


def test_a_slower_run_blames_communication_last():
    """Waiting grows with whatever grows on a few ranks; it is the cause only where no own work grew."""
    rows = list(generate(Scenario().with_fault("data", *range(8), seconds=0.05, begin=60)).rows())
    before, after = middling(medians(rows[50:53])), middling(medians(rows[60:63]))
    assert explain_run(before, after, POLICY) == "data"
    assert explain_run(before, {**before, "wait": before["wait"] + 0.1}, POLICY) == "link"
    assert explain_run(before, before, POLICY) == "unknown"
