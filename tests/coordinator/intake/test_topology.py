"""From announcements to the shape of a run, and which node owns which rank."""

import tracemalloc
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.intake.refusals import RANK_CLAIMED
from coordinator.intake.replicas import replicas_of
from coordinator.intake.topology import OWNER_SILENT_SECONDS, Membership
from lockstep.contracts.codec import decode_as, encode
from lockstep.contracts.domains import Domain, from_degrees, from_groups, pack_ranks, unpack_ranks
from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.contracts.messages import GroupInfo, NodeAnnouncement, RankInfo, RunHeartbeat
from lockstep.contracts.topics import ANNOUNCE, run_topic
from tests.coordinator.conftest import START_UNIX_S, announce

NOW = START_UNIX_S + 1
S = 10**9


class Nodes:
    """A membership whose nodes send announcements and heartbeats, under a clock of the test's own."""

    def __init__(self):
        self.membership = Membership("job")
        self.now_s = START_UNIX_S
        self.ranks = {}
        self.last_alive_s = {}

    def announce(self, node, *ranks, attempt=1, world=4, **more):
        self.ranks[node] = ranks
        message = announce(
            *ranks, node=node, attempt=attempt, world=world, heartbeat_s=self.now_s, revision=attempt, **more
        )
        return self.membership.apply_announcement(message, self.now_s)

    def beat(self, node, *alive, revision=1, seconds=0.0):
        """Send the node's heartbeat in which the ranks `alive` live now, the others as they did last."""
        self.now_s += seconds
        self.last_alive_s |= {(node, rank): self.now_s for rank in alive}
        alive_unix_ns = [int(self.last_alive_s.get((node, rank), 0) * S) for rank in self.ranks[node]]
        heartbeat = RunHeartbeat(run="job", revision=revision, alive_unix_ns=alive_unix_ns)
        return self.membership.apply_heartbeat(node, heartbeat, self.now_s)

    def pass_time(self, seconds, **alive):
        """Let time pass with a heartbeat every ten seconds of nodes whose ranks live."""
        for _ in range(int(seconds // 10)):
            self.now_s += 10
            for node, ranks in alive.items():
                self.beat(node, *ranks, revision=2 if node == "moved" else 1)

    @property
    def claimed(self):
        return self.membership.refusals.counts[RANK_CLAIMED]


def test_ranks_hosts_and_groups_of_several_nodes():
    """What nodes announce is put together; a group that both announce counts once."""
    membership = Membership()
    first = membership.apply_announcement(announce(0, 1), NOW)
    assert (first.restarted, first.is_reshaped) == ([], True)
    assert membership.apply_announcement(announce(2, 3, node="n1"), NOW).is_reshaped
    assert membership.ranks == [0, 1, 2, 3]
    assert membership.nodes[3] == "n1"
    assert [domain.ranks for domain in membership.topology().domains] == [(0, 1, 2, 3)]
    again = membership.apply_announcement(announce(2, 3, node="n1"), NOW)
    assert (again.restarted, again.is_reshaped) == ([], False)


def test_a_new_incarnation_is_noticed():
    """A changed attempt names the rank that restarted."""
    membership = Membership()
    membership.apply_announcement(announce(0, 1), NOW)
    change = membership.apply_announcement(announce(0, 1, attempt=2), NOW)
    assert [info.rank for info in change.restarted] == [0, 1]


def test_a_lying_node_does_not_set_the_world():
    """World size is what most ranks announce; ranks of another world are left out."""
    membership = Membership()
    membership.apply_announcement(announce(0, 1, 2), NOW)
    membership.apply_announcement(announce(900_000, world=1 << 20, node="liar", groups=[]), NOW)
    assert membership.world_size == 4
    assert membership.ranks == [0, 1, 2]


def test_a_node_from_the_future_does_not_set_the_world():
    """A heartbeat that is dated ahead silences no rank: signs of life count when they arrive."""
    membership = Membership()
    membership.apply_announcement(announce(0, 1, 2), NOW)
    membership.apply_announcement(announce(3, world=512, node="liar", heartbeat_s=START_UNIX_S + 10**6), NOW)
    assert membership.world_size == 4


def test_a_smaller_attempt_replaces_a_larger_one():
    """What ranks announced before they died stops counting against those that live."""
    membership = Membership()
    membership.apply_announcement(announce(*range(8), world=8), NOW)
    later = announce(0, 1, world=2, attempt=2, heartbeat_s=START_UNIX_S + 600)
    assert membership.apply_announcement(later, NOW + 600).is_reshaped
    assert (membership.world_size, membership.ranks) == (2, [0, 1])


def test_a_world_that_shrinks_is_followed_by_heartbeats_alone():
    """Half of the ranks restart as a smaller world; a minute without a sign of the others decides."""
    nodes = Nodes()
    nodes.announce("old", *range(4, 8), world=8)
    nodes.announce("new", *range(4), world=8)
    nodes.now_s += 20
    nodes.announce("new", *range(3), attempt=2, world=3)
    assert nodes.membership.world_size == 8
    reshaped = [nodes.beat("new", 0, 1, 2, revision=2, seconds=10).is_reshaped for _ in range(6)]
    assert nodes.membership.world_size == 3
    assert reshaped.count(True) == 1


def test_a_run_is_finished_when_all_ranks_are():
    """One running rank is enough to go on."""
    membership = Membership()
    membership.apply_announcement(announce(0, 1, state="finished"), NOW)
    membership.apply_announcement(announce(2, 3, node="n1"), NOW)
    assert not membership.is_finished
    membership.apply_announcement(announce(2, 3, node="n1", state="finished"), NOW)
    assert membership.is_finished


def test_a_world_is_complete_when_every_rank_is_announced():
    """Ranks of another world do not count, nor does a rank count twice."""
    membership = Membership()
    assert not membership.is_complete
    membership.apply_announcement(announce(0, 1, 2), NOW)
    membership.apply_announcement(announce(0, 1, 2), NOW)
    assert not membership.is_complete
    membership.apply_announcement(announce(3, node="n1"), NOW)
    assert membership.is_complete
    membership.apply_announcement(announce(3, node="n1", world=8), NOW)
    assert not membership.is_complete


@pytest.mark.parametrize(
    "spans",
    [[[0, 1 << 62, 1]], [[9, 2, -1]], [[0, 4, 0]], [[0, 4]], [[0, 5, 1]], [[-1, 4, 1]], [[0, 2, 1], [1, 4, 1]]],
    ids=["endless", "falling", "still", "short", "outside", "negative", "overlapping"],
)
def test_hostile_groups_are_refused_whole(spans):
    """Ranges that cannot be, or of ranks that the node's world does not have: nothing of the announcement is used."""
    membership = Membership()
    membership.apply_announcement(announce(1, node="n1"), NOW)
    with pytest.raises(MalformedError):
        membership.apply_announcement(announce(0, groups=[GroupInfo(kind="dp", name="g", ranks=spans)]), NOW)
    assert list(membership.infos) == [1]
    assert membership.ranks_of("n0") is None
    assert len(membership.groups) == 1


def test_a_world_that_one_rank_invents_costs_nothing():
    """A million ranks in one announcement are neither laid out nor unpacked: the run has no shape until more vouch."""
    forged = announce(0, world=WORLD_SIZE_MAX)
    membership = Membership()
    tracemalloc.start()
    try:
        membership.apply_announcement(forged, NOW)
        topology = membership.topology()
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()
    assert (topology.world_size, topology.domains, membership.ranks) == (0, (), [])


def test_a_large_world_gets_its_shape_when_enough_ranks_announce_it():
    """One node of 8 ranks is enough for 8,192 ranks, not for 8,193."""
    for world, known in ((8192, 8192), (8193, 0)):
        membership = Membership()
        membership.apply_announcement(announce(*range(8), world=world), NOW)
        assert membership.world_size == known
    assert membership.apply_announcement(announce(8, world=8193, node="n1"), NOW).is_reshaped
    assert membership.world_size == 8193
    assert [len(domain.ranks) for domain in membership.topology().domains] == [8193]


def test_configured_degrees_go_before_announced_groups():
    """Degrees that fit the world win, others are an error that names them."""
    membership = Membership(degrees="tp=2,dp=2")
    membership.apply_announcement(announce(0, 1, 2, 3), NOW)
    assert {domain.kind for domain in membership.topology().domains} == {"tp", "dp"}
    membership.degrees = "tp=8"
    with pytest.raises(ConfigError, match="expected"):
        membership.topology()


def test_replicas_are_joined_by_tensor_and_pipeline():
    """Ranks of one model replica share it, replicas of a data-parallel job are one rank each."""
    assert replicas_of(from_degrees({"tp": 2, "dp": 2}, 4)) == [0, 0, 2, 2]
    assert replicas_of(from_degrees({"dp": 4}, 4)) == [0, 1, 2, 3]


def test_a_rank_belongs_to_the_node_that_announced_it_first():
    """Another node is refused, and counted once, as long as the owner shows the rank alive."""
    nodes = Nodes()
    nodes.announce("n0", 0, 1)
    nodes.announce("thief", 1, 2)
    assert (nodes.membership.nodes, nodes.claimed) == ({0: "n0", 1: "n0", 2: "thief"}, 1)
    nodes.pass_time(600, n0=(0, 1), thief=(1, 2))
    nodes.announce("thief", 1, 2, attempt=1)
    assert (nodes.membership.nodes[1], nodes.claimed) == ("n0", 1)


def test_a_restart_on_another_node_takes_its_ranks_along():
    """The old node shows them alive no more: after half a minute the new node's heartbeat moves them."""
    nodes = Nodes()
    nodes.announce("n0", 0, 1)
    nodes.pass_time(30, n0=(0, 1))
    nodes.announce("moved", 0, 1, attempt=2)
    assert nodes.claimed == 2
    nodes.pass_time(OWNER_SILENT_SECONDS - 10, n0=(), moved=(0, 1))
    assert set(nodes.membership.nodes.values()) == {"n0"}
    nodes.now_s += 10
    change = nodes.beat("moved", 0, 1, revision=2)
    assert [info.attempt for info in change.restarted] == [2, 2]
    assert set(nodes.membership.nodes.values()) == {"moved"}
    nodes.pass_time(600, n0=(0, 1), moved=(0, 1))
    assert set(nodes.membership.nodes.values()) == {"moved"}


def test_nodes_that_exchange_their_ranks_need_not_wait():
    """An elastic restart deals the ranks again: a node that does not announce a rank any more has let go of it."""
    nodes = Nodes()
    nodes.announce("a", 0, 1)
    nodes.announce("b", 2, 3)
    nodes.pass_time(10, a=(0, 1), b=(2, 3))
    nodes.now_s += 3
    nodes.announce("b", 0, 1, attempt=2)
    assert nodes.membership.nodes == {0: "a", 1: "a", 2: "b", 3: "b"}
    change = nodes.announce("a", 2, 3, attempt=2)
    assert nodes.membership.nodes == {0: "b", 1: "b", 2: "a", 3: "a"}
    assert sorted(info.rank for info in change.restarted) == [0, 1, 2, 3]


def test_a_stale_announcement_that_came_first_gives_way_at_once():
    """After a restart of the coordinator a ring that was left behind days ago may be announced before the living one."""
    nodes = Nodes()
    left = announce(0, node="left", heartbeat_s=START_UNIX_S - 250_000)
    nodes.membership.apply_announcement(left, nodes.now_s)
    nodes.announce("n0", 0, attempt=2)
    assert nodes.membership.nodes == {0: "n0"}
    assert nodes.claimed == 0


def test_many_claims_of_one_rank_cost_little():
    """A thousand invented nodes claim it: some of them are kept, and the restart elsewhere that comes last is one."""
    nodes = Nodes()
    nodes.announce("n0", 0)
    for number in range(1000):
        nodes.announce(f"invented-{number}", 0)
    nodes.now_s += 20
    nodes.announce("moved", 0, attempt=2)
    assert len(nodes.membership._claims[0]) < 10
    nodes.beat("invented-0", 0)
    nodes.pass_time(OWNER_SILENT_SECONDS, moved=(0,))
    assert nodes.membership.nodes == {0: "moved"}


def test_an_older_announcement_gets_no_rank_that_was_let_go():
    """A rank whose owner announces it no more does not go to who saw it last before that."""
    nodes = Nodes()
    nodes.announce("n0", 0, 1)
    left = announce(0, node="left", heartbeat_s=START_UNIX_S - 250_000)
    nodes.membership.apply_announcement(left, nodes.now_s)
    nodes.announce("n0", 1)
    assert nodes.membership.nodes == {0: "n0", 1: "n0"}


def test_heartbeats_of_another_announcement_are_not_used():
    """Their times would be those of other ranks."""
    nodes = Nodes()
    nodes.announce("n0", 0, 1)
    nodes.announce("moved", 0, attempt=2)
    nodes.pass_time(100, n0=())
    nodes.beat("moved", 0, revision=1)
    nodes.ranks["moved"] = (0, 1)
    nodes.beat("moved", 0, revision=2)
    nodes.ranks["unknown"] = (0,)
    nodes.beat("unknown", 0)
    assert set(nodes.membership.nodes.values()) == {"n0"}


KINDS = ("dp", "tp", "pp", "world", "later")
ranks_of_a_node = st.lists(st.integers(0, 7), unique=True, max_size=4)


@st.composite
def announced(draw, worlds=(8,)):
    """Draw an announcement of a job of up to eight ranks on four nodes; groups may be of anybody."""
    world = draw(st.sampled_from(worlds))
    ranks = [rank for rank in draw(ranks_of_a_node) if rank < world]
    groups = [
        GroupInfo(
            kind=draw(st.sampled_from(KINDS)), name=draw(st.sampled_from("ab")), ranks=pack_ranks(sorted(members))
        )
        for members in draw(st.lists(st.sets(st.integers(0, world - 1), min_size=1), max_size=3))
    ]
    return announce(
        *ranks,
        world=world,
        node=draw(st.sampled_from(["n0", "n1", "n2", "n3"])),
        groups=groups if ranks else [],
        attempt=draw(st.integers(1, 3)),
        state=draw(st.sampled_from(["running", "finished", "failed", "gone", "unwatched"])),
        heartbeat_s=draw(st.sampled_from([0, START_UNIX_S, START_UNIX_S + 1000, 4e9])),
        revision=draw(st.integers(0, 1)),
    )


heartbeats = st.tuples(
    st.sampled_from(["n0", "n1", "n2", "n3", "unknown"]),
    st.integers(0, 1),
    st.lists(st.sampled_from([0, int(START_UNIX_S * S), int((START_UNIX_S + 500) * S), 2**62]), max_size=4),
)


class Reference:
    """Keeps all that every node announced and showed, and derives everything from it each time."""

    def __init__(self):
        self.announced = {}
        self.shown = {}
        self.owner = {}
        self.known = {}

    def apply_announcement(self, message, now_s):
        node, former = message.node, self.announced.get(message.node)
        self.announced[node] = message
        for info in message.ranks:
            seen_s, alive_unix_ns = self.shown.get((node, info.rank), (float("-inf"), None))
            self.shown[node, info.rank] = (max(seen_s, min(now_s, info.heartbeat_unix_ns * 1e-9)), alive_unix_ns)
            self.owner.setdefault(info.rank, node)
            self.settle(info.rank)
            if self.owner[info.rank] == node:
                self.known[info.rank] = info
        for rank in {info.rank for info in former.ranks} - self.ranks_of(node) if former else ():
            if self.owner[rank] != node:
                del self.shown[node, rank]
            self.settle(rank)

    def apply_heartbeat(self, node, heartbeat, now_s):
        message = self.announced.get(node)
        if message is None or message.revision != heartbeat.revision:
            return
        if len(message.ranks) != len(heartbeat.alive_unix_ns):
            return
        for info, alive_unix_ns in zip(message.ranks, heartbeat.alive_unix_ns, strict=True):
            seen_s, before = self.shown[node, info.rank]
            if alive_unix_ns != before:
                new_s = min(now_s, alive_unix_ns * 1e-9) if before is None else now_s
                self.shown[node, info.rank] = (max(seen_s, new_s), alive_unix_ns)
            if self.owner[info.rank] != node:
                self.settle(info.rank)

    def ranks_of(self, node):
        return {info.rank for info in self.announced[node].ranks}

    def settle(self, rank):
        owner = self.owner[rank]
        others = [node for node in self.announced if node != owner and rank in self.ranks_of(node)]
        if not others:
            return
        last = max(others, key=lambda node: (self.shown[node, rank][0], node))
        is_held = rank in self.ranks_of(owner)
        if self.shown[last, rank][0] - self.shown[owner, rank][0] >= (OWNER_SILENT_SECONDS if is_held else 0):
            self.owner[rank] = last
            self.known[rank] = next(info for info in self.announced[last].ranks if info.rank == rank)
            if not is_held:
                del self.shown[owner, rank]

    @property
    def world_size(self):
        worlds = {info.world_size for info in self.known.values()}
        if len(worlds) < 2:
            return worlds.pop() if worlds else 0
        seen_s = {rank: self.shown[node, rank][0] for rank, node in self.owner.items()}
        young_s = max(seen_s.values()) - 60
        votes = Counter(info.world_size for rank, info in self.known.items() if seen_s[rank] >= young_s)
        return max(votes, key=lambda world: (votes[world], -world))

    def topology(self):
        groups = [
            Domain(group.kind, group.name, unpack_ranks(group.ranks, where="reference"))
            for message in self.announced.values()
            for group in message.groups
            if group.kind != "later"
        ]
        return from_groups(sorted(groups, key=lambda group: group.name), self.world_size)


def agrees(membership, reference):
    """Assert that a membership and the reference agree on a run."""
    world = reference.world_size
    ranks = sorted(rank for rank, info in reference.known.items() if info.world_size == world)
    assert membership.nodes == reference.owner
    assert membership.infos == reference.known
    assert (membership.world_size, membership.ranks) == (world, ranks)
    assert membership.is_complete == (len(ranks) == world > 0)
    assert membership.is_finished == (bool(ranks) and all(reference.known[rank].state == "finished" for rank in ranks))
    assert membership.topology() == reference.topology()


@settings(max_examples=150, deadline=None)
@given(stream=st.lists(st.tuples(st.sampled_from([0, 1, 10, 40, 100]), announced((2, 4, 8)) | heartbeats), max_size=12))
def test_a_stream_gives_what_one_gets_who_keeps_everything(stream):
    """Nodes that lie, restart and exchange ranks: owner, world, completeness and topology are those of a plain model."""
    membership, reference, now_s = Membership(), Reference(), START_UNIX_S
    for seconds, message in stream:
        now_s += seconds
        if isinstance(message, NodeAnnouncement):
            for each in (membership, reference):
                each.apply_announcement(message, now_s)
        else:
            node, revision, alive_unix_ns = message
            heartbeat = RunHeartbeat(run="job", revision=revision, alive_unix_ns=alive_unix_ns)
            for each in (membership, reference):
                each.apply_heartbeat(node, heartbeat, now_s)
        agrees(membership, reference)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), nodes=st.integers(1, 5), world=st.integers(10, 12))
def test_the_order_of_nodes_does_not_matter(data, nodes, world):
    """Nodes of other ranks and any groups, in any order: the same ranks, the same topology, the same owners."""
    messages = []
    for node in range(nodes):
        drawn = data.draw(announced())
        infos = [replace(i, rank=2 * node + n, world_size=world) for n, i in enumerate(drawn.ranks[:2])]
        messages.append(replace(drawn, node=f"n{node}", ranks=infos, groups=drawn.groups if infos else []))
    memberships = []
    for order in (messages, data.draw(st.permutations(messages))):
        membership = Membership()
        for message in order:
            membership.apply_announcement(message, START_UNIX_S)
        memberships.append(membership)
    one, other = memberships
    assert (one.infos, one.nodes, one.world_size, one.ranks) == (
        other.infos,
        other.nodes,
        other.world_size,
        other.ranks,
    )
    assert one.topology() == other.topology()


any_int = st.integers(-1, 9) | st.sampled_from([2**20 - 1, 2**20, 2**31, 2**62, 2**63 - 1])


@st.composite
def hostile(draw):
    """Draw whatever form an announcement can have; most are refused by the codec or by the membership."""
    ranks = [
        RankInfo(
            rank=draw(any_int),
            local_rank=draw(any_int),
            world_size=draw(any_int),
            hostname=draw(st.text(max_size=3)),
            attempt=draw(st.integers(0, 2**62)),
            state=draw(st.sampled_from(["running", "finished", "nonsense"])),
            heartbeat_unix_ns=draw(st.integers(0, 2**62)),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    span = st.lists(any_int, min_size=2, max_size=4)
    groups = [
        GroupInfo(
            kind=draw(st.sampled_from(KINDS)), name=draw(st.text(max_size=3)), ranks=draw(st.lists(span, max_size=3))
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    return NodeAnnouncement(
        run="job", node=draw(st.sampled_from("ab")), ranks=ranks, groups=groups, revision=draw(st.integers(0, 3))
    )


@settings(max_examples=150, deadline=None)
@given(stream=st.lists(hostile(), max_size=8), now_s=st.sampled_from([0.0, 1.0, START_UNIX_S]))
def test_hostile_streams_are_refused_or_cost_little(stream, now_s):
    """Whatever passes the codec raises nothing but MalformedError, and gives a topology of what its ranks vouch for."""
    membership = Membership()
    for message in stream:
        try:
            passed = decode_as(NodeAnnouncement, run_topic("job", ANNOUNCE, message.node), encode(message))
            membership.apply_announcement(passed, now_s)
        except MalformedError:
            continue
        heartbeat = RunHeartbeat(run="job", revision=passed.revision, alive_unix_ns=[2**62] * len(passed.ranks))
        membership.apply_heartbeat(passed.node, heartbeat, now_s)
    topology = membership.topology()
    assert topology.world_size <= 1024 * max(1, len(membership.infos))
    assert all(domain.ranks[-1] < topology.world_size for domain in topology.domains)
    assert set(membership.nodes) == set(membership.infos)
