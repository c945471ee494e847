"""What slow groups have in common."""

import numpy as np
import pytest

from coordinator.detect.links.tomography import Tomography
from coordinator.settings.policy import LinkPolicy
from lockstep.contracts.domains import from_degrees, parse_degrees

POLICY = LinkPolicy()
RANKS_PER_NODE = 8


class Job:
    """The groups of a job of given degrees, 8 ranks a node."""

    def __init__(self, degrees, *, hosts=True):
        parsed = parse_degrees(degrees, where="test")
        self.world = int(np.prod([size for kind, size in parsed.items() if kind != "ep"]))
        self.domains = from_degrees(parsed, self.world).domains
        kinds = list(dict.fromkeys(domain.kind for domain in self.domains))
        kind_of = np.array([kinds.index(domain.kind) for domain in self.domains])
        names = [f"n{rank // RANKS_PER_NODE}" for rank in range(self.world)] if hosts else ()
        self.tomography = Tomography(self.domains, kind_of, np.arange(self.world), names)

    def groups(self, *kinds, rank=None, node=None):
        """Return the groups of kinds, with `rank` or `node` those that hold it."""
        ranks = {rank} if rank is not None else set(range(self.world))
        if node is not None:
            ranks = set(range(node * RANKS_PER_NODE, (node + 1) * RANKS_PER_NODE))
        return [i for i, d in enumerate(self.domains) if d.kind in kinds and ranks.intersection(d.ranks)]

    def explain(self, groups, known=()):
        return self.tomography.explain(groups, known, POLICY)


@pytest.mark.parametrize("degrees", ["tp=4,pp=4,dp=8", "tp=8,pp=4,dp=8", "tp=2,pp=2,dp=32", "pp=4,dp=32"])
def test_groups_of_two_kinds_name_the_one_node_they_cross(degrees):
    """Every replica and pipeline group of a node is slow: nothing else is common to them."""
    job = Job(degrees)
    for node in (0, 3):
        slow = job.groups("pp", "dp", node=node)
        (verdict,) = job.explain(slow)
        assert (verdict.scope, verdict.node, verdict.rank) == ("node", f"n{node}", None)
        assert sorted(verdict.groups) == slow
        assert job.tomography.ranks_of(f"n{node}") == tuple(range(node * 8, node * 8 + 8))


def test_a_node_is_named_although_some_of_its_groups_have_not_alarmed_yet():
    """Records are missing now and then, and alarms come a step or two apart."""
    job = Job("tp=8,pp=4,dp=8")
    (verdict,) = job.explain(job.groups("pp", node=5)[1:] + job.groups("dp", node=5)[2:])
    assert (verdict.scope, verdict.node) == ("node", "n5")


def test_a_group_inside_a_node_is_no_network_card():
    """All tensor groups of a node are slow, and none leaves it."""
    job = Job("tp=4,pp=4,dp=8")
    slow = job.groups("tp", node=2)
    assert [verdict.scope for verdict in job.explain(slow)] == ["group", "group"]


def test_one_kind_alone_leaves_all_nodes_of_its_groups_and_they_are_one_thing():
    """Eight tensor lanes over the same nodes: one anomaly, and no node guessed."""
    job = Job("tp=8,dp=16")
    slow = job.groups("dp")
    (verdict,) = job.explain(slow)
    assert (verdict.scope, verdict.node, sorted(verdict.groups)) == ("group", "", slow)


def test_one_kind_whose_groups_share_a_single_node_names_it():
    """Context groups of two nodes each, laid out so that they cross in one node alone."""
    job = Job.__new__(Job)
    domain = from_degrees({"dp": 2}, 2).domains[0]
    job.domains = [type(domain)("cp", f"cp{i}", ranks) for i, ranks in enumerate([(0, 8), (1, 16), (24, 32), (17, 25)])]
    hosts = [f"n{rank // 8}" for rank in range(40)]
    job.tomography = Tomography(job.domains, np.zeros(4, dtype=np.intp), np.arange(40), hosts)
    (verdict,) = job.explain([0, 1])
    assert (verdict.scope, verdict.node) == ("node", "n0")


def test_two_slow_nodes_one_after_the_other_are_both_named():
    """At once four nodes would fit; the one that is known settles which."""
    job = Job("tp=8,pp=4,dp=8")
    first = job.explain(job.groups("pp", "dp", node=0))
    both = sorted({*job.groups("pp", "dp", node=0), *job.groups("pp", "dp", node=9)})
    assert {verdict.node for verdict in job.explain(both, first)} == {"n0", "n9"}
    assert all(verdict.scope == "group" for verdict in job.explain(both))


def test_what_is_left_of_a_node_stays_the_node():
    """Alarms end one by one: the last pipeline group is no new slow link."""
    job = Job("tp=8,pp=4,dp=8")
    known = job.explain(job.groups("pp", "dp", node=4))
    last = job.groups("pp", node=4)[:1]
    (verdict,) = job.explain(last, known)
    assert (verdict.scope, verdict.node, verdict.groups) == ("node", "n4", tuple(last))


def test_one_ranks_own_card_is_told_from_the_nodes():
    """One pipeline and one replica group are slow: they meet in one rank."""
    job = Job("tp=8,pp=4,dp=8")
    slow = job.groups("pp", "dp", rank=13)
    (verdict,) = job.explain(slow)
    assert (verdict.scope, verdict.node, verdict.rank) == ("node", "n1", 13)


@pytest.mark.parametrize("degrees", ["tp=2,pp=2,dp=2", "tp=4,pp=4,dp=8", "tp=8,pp=8,dp=4"])
def test_most_groups_of_a_kind_are_the_network(degrees):
    """No node is common to them, so there is one anomaly for the job."""
    job = Job(degrees)
    slow = job.groups("pp", "dp")
    (verdict,) = job.explain(slow)
    assert (verdict.scope, sorted(verdict.groups)) == ("job", slow)
    some = [group for group in slow if group % 4]
    assert [verdict.scope for verdict in job.explain(some)] == ["job"]


def test_a_job_takes_the_place_of_what_was_told_before():
    """The first alarms looked like a node; then everything is slow."""
    job = Job("tp=4,pp=4,dp=8")
    known = job.explain(job.groups("pp", "dp", node=1))
    (verdict,) = job.explain(job.groups("pp", "dp"), known)
    assert verdict.scope == "job"


def test_unrelated_groups_stay_apart():
    """A slow tensor group next to a slow node is a second thing."""
    job = Job("tp=4,pp=4,dp=8")
    tensor = job.groups("tp", rank=100)
    verdicts = job.explain(tensor + job.groups("pp", "dp", node=1))
    assert {(verdict.scope, verdict.node) for verdict in verdicts} == {("node", "n1"), ("group", "")}


def test_without_hosts_no_node_is_named():
    """Groups are still reported, each by itself, and the job still is."""
    job = Job("tp=8,pp=4,dp=8", hosts=False)
    slow = job.groups("pp", "dp", node=3)
    assert {verdict.scope for verdict in job.explain(slow)} == {"group"}
    assert [verdict.scope for verdict in job.explain(job.groups("pp", "dp"))] == ["job"]


def test_each_group_is_explained_once():
    """Whatever is slow, every group stands in exactly one verdict."""
    rng = np.random.default_rng(3)
    job = Job("tp=4,pp=4,dp=8")
    known = []
    for _ in range(50):
        slow = sorted(rng.choice(len(job.domains), int(rng.integers(1, 40)), replace=False).tolist())
        known = job.explain(slow, known)
        assert sorted(group for verdict in known for group in verdict.groups) == slow
