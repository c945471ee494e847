"""From announcements to the shape of a run."""

import pytest

from coordinator.intake.topology import Membership, replicas_of
from lockstep.contracts.domains import from_degrees
from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.contracts.messages import GroupInfo
from tests.coordinator.conftest import START_UNIX_S, announce


def test_ranks_hosts_and_groups_of_several_nodes():
    """What nodes say is put together; a group that both announce counts once."""
    membership = Membership()
    assert membership.take(announce(0, 1)) == ([], True)
    assert membership.take(announce(2, 3, node="n1"))[1]
    assert membership.ranks == [0, 1, 2, 3]
    assert membership.nodes[3] == "n1"
    assert [domain.ranks for domain in membership.topology().domains] == [(0, 1, 2, 3)]
    assert membership.take(announce(2, 3, node="n1")) == ([], False)


def test_a_new_incarnation_is_noticed():
    """A changed attempt names the rank that restarted."""
    membership = Membership()
    membership.take(announce(0, 1))
    restarted, _ = membership.take(announce(0, 1, attempt=2))
    assert [info.rank for info in restarted] == [0, 1]


def test_a_lying_node_does_not_set_the_world():
    """World size is what most ranks say; ranks of another world are left out."""
    membership = Membership()
    membership.take(announce(0, 1, 2))
    membership.take(announce(900_000, world=1 << 20, node="liar", groups=[]))
    assert membership.world_size == 4
    assert membership.ranks == [0, 1, 2]


def test_a_smaller_attempt_replaces_a_larger_one():
    """What ranks said before they died stops counting against those that live."""
    membership = Membership()
    membership.take(announce(*range(8), world=8))
    membership.take(announce(0, 1, world=2, attempt=2, heartbeat_s=START_UNIX_S + 600))
    assert (membership.world_size, membership.ranks) == (2, [0, 1])


def test_a_run_is_finished_when_all_ranks_are():
    """One running rank is enough to go on."""
    membership = Membership()
    membership.take(announce(0, 1, state="finished"))
    membership.take(announce(2, 3, node="n1"))
    assert not membership.is_finished
    membership.take(announce(2, 3, node="n1", state="finished"))
    assert membership.is_finished


def test_a_world_is_complete_when_every_rank_is_announced():
    """Twice the same rank is one; a rank of another world is none of this one."""
    membership = Membership()
    assert not membership.is_complete
    membership.take(announce(0, 1, 2))
    membership.take(announce(0, 1, 2))
    assert not membership.is_complete
    membership.take(announce(3, node="n1"))
    assert membership.is_complete
    membership.take(announce(3, node="n1", world=8))
    assert not membership.is_complete


@pytest.mark.parametrize(
    "spans",
    [[[0, 1 << 20, 1]] * 3, [[3, 1, 1]], [[0, 1 << 63, 1]], [[0, 5, 0]], [[0, 5]]],
    ids=["many", "falling", "endless", "still", "short"],
)
def test_hostile_groups_are_refused_whole(spans):
    """A group that is none is an error, and nothing of the announcement is taken."""
    membership = Membership()
    groups = [GroupInfo(kind="dp", name=f"g{n}", ranks=spans) for n in range(2)]
    with pytest.raises(MalformedError):
        membership.take(announce(0, groups=groups))
    assert membership.infos == {}


def test_configured_degrees_go_before_announced_groups():
    """Degrees name the domains; those that do not fit the world are an error that says so."""
    membership = Membership(degrees="tp=2,dp=2")
    membership.take(announce(0, 1, 2, 3))
    assert {domain.kind for domain in membership.topology().domains} == {"tp", "dp"}
    membership.degrees = "tp=8"
    with pytest.raises(ConfigError, match="world size 4"):
        membership.topology()


def test_replicas_are_ranks_that_work_on_the_same_samples():
    """Tensor and pipeline partners share a replica, data-parallel partners do not."""
    replicas = replicas_of(from_degrees({"tp": 2, "dp": 2, "pp": 2}, 8))
    assert replicas == [0, 0, 2, 2, 0, 0, 2, 2]
