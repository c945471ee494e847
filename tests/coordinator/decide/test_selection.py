"""Whom to profile."""

from dataclasses import replace

import pytest

from coordinator.decide.selection import select
from coordinator.detect.anomalies import FLUCTUATION
from coordinator.settings.run_policy import ProfilePolicy
from lockstep.contracts.domains import from_degrees
from tests.coordinator.conftest import anomaly
from tests.coordinator.decide.story import Story

POLICY = ProfilePolicy()
TOPOLOGY = from_degrees({"tp": 2, "dp": 2, "pp": 2}, 8)
"""Tensor groups (0 1) (2 3) (4 5) (6 7), data groups (0 2) (1 3) (4 6) (5 7), stages 0 to 3 and 4 to 7."""


@pytest.fixture
def incident():
    story = Story()
    story.evaluate(60, anomaly(ranks=(1,)))
    return story.incident


def test_one_healthy_peer_of_each_domain_that_does_the_same_work(incident):
    """Rank 0 shares the tensor group, rank 3 the data group; the other stage does other work."""
    chosen = select(incident, TOPOLOGY, set(range(8)), {1}, POLICY)
    assert (chosen.suspects, set(chosen.peers)) == ((1,), {0, 3})


def test_ranks_in_trouble_and_ranks_that_are_gone_are_no_peers(incident):
    """A rank that is slow by another incident, or never came, gives nothing to compare with; the next one is taken."""
    chosen = select(incident, TOPOLOGY, set(range(8)) - {3}, {0, 1}, POLICY)
    assert chosen.peers == (2,)


def test_a_slow_node_is_told_by_two_of_its_ranks(incident):
    """Ranks of one incident are never peers of each other."""
    node = replace(incident, ranks=(0, 1, 2), scope="node")
    chosen = select(node, TOPOLOGY, set(range(8)), {0, 1, 2}, POLICY)
    assert (chosen.suspects, chosen.peers) == ((0, 1), (3,))


def test_a_job_is_told_by_ranks_of_every_stage(incident):
    """No one is healthy then: stages are covered in turn, up to the limit."""
    job = replace(incident, kind=FLUCTUATION, scope="job", ranks=())
    chosen = select(job, TOPOLOGY, set(range(8)), set(), replace(POLICY, job_ranks=3))
    assert (chosen.suspects, chosen.peers) == ((0, 4, 1), ())


def test_ranks_that_nobody_knows_give_no_capture(incident):
    """A rank beyond the topology cannot be placed."""
    assert select(replace(incident, ranks=(12,)), TOPOLOGY, {12}, set(), POLICY).ranks == ()
