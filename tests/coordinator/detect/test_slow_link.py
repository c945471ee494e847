"""Domains that transfer more slowly than they used to."""

import numpy as np

from coordinator.detect.slow_link import SlowLinkTest
from coordinator.policy import Policy
from tests.coordinator.scenarios import Scenario, generate

POLICY = Policy()


def found(recording, *, moved=None):
    """Return {domain name: first step found} over a recording."""
    ranks = np.arange(recording.topology.world_size)
    test = SlowLinkTest(recording.topology.domains, ranks, POLICY.link, POLICY.excess)
    first = {}
    for row in recording.rows():
        if moved is not None:
            row.moved.update({kind: value * moved[row.step] for kind, value in row.moved.items()})
        test.step(row, row.step)
        for slow in test.found(float(row.duration.max())):
            first.setdefault((slow.domain.kind, slow.domain.ranks), row.step)
    return first


def test_a_slow_tensor_group_is_named_alone():
    """The last arriver of the slow group waits longer than it ever did; every other group is as before."""
    scenario = Scenario(degrees="tp=2,dp=4").with_fault("tp", 2, 3, seconds=0.03, begin=60)
    first = found(generate(scenario))
    assert first.keys() == {("tp", (2, 3))}
    assert 62 <= first["tp", (2, 3)] <= 63


def test_a_slow_rank_is_not_a_slow_link():
    """Its peers wait for it, but it is the last arriver itself and waits for the transfer only."""
    scenario = Scenario(degrees="tp=2,dp=4").with_fault("compute", 3, seconds=0.2, begin=60)
    assert found(generate(scenario)) == {}


def test_a_group_with_a_missing_member_says_nothing():
    """Without the last arriver's record the least wait is somebody's waiting."""
    recording = generate(Scenario(degrees="tp=2,dp=4").with_fault("compute", 3, seconds=0.2, begin=60))
    recording.present[60:, 3] = False
    assert found(recording) == {}


def test_more_bytes_are_no_slower_link():
    """Twice the time for twice the bytes is the same link."""
    recording = generate(Scenario(degrees="dp=4").with_fault("dp", *range(4), seconds=0.05, begin=60))
    assert found(recording) != {}
    assert found(recording, moved=np.where(np.arange(120) < 60, 1.0, 2.0)) == {}
