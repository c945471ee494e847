"""Who has not arrived: small jobs that stand still, each found by what its ranks have issued."""

from dataclasses import replace

import numpy as np
import pytest

from coordinator.detect.hangs.hang import who_is_late
from coordinator.detect.hangs.waiting_ranks import ISSUE_FIELDS, Progress
from lockstep.contracts.domains import Domain, Topology, from_degrees, from_groups
from lockstep.contracts.messages import COLLECTIVE, OPERATIONS, RECEIVE, SEND
from lockstep.contracts.records import Flag

T = 1_790_000_000_000_000_000
S = 1_000_000_000
NOBODY = np.full(64, -1)


class Job:
    """Ranks that issue operations at times of their own; the last one is their last sign of life unless given."""

    def __init__(self, topology: Topology, *, known=None):
        self.topology = topology
        self.known = range(topology.world_size) if known is None else known
        self.counts: dict[tuple[int, int, str, int], list[int]] = {}
        self.signs = dict.fromkeys(self.known, T)
        self.flags = dict.fromkeys(self.known, 0)
        self.ended = dict.fromkeys(self.known, False)
        self.gone = dict.fromkeys(self.known, False)

    def domain(self, kind, rank):
        return next(i for i, d in enumerate(self.topology.domains) if d.kind == kind and rank in d.ranks)

    def issue(self, kind, *ranks, count=1, at=0.0, operation=COLLECTIVE, peer=-1):
        for rank in ranks:
            cell = self.counts.setdefault((rank, self.domain(kind, rank), operation, peer), [0, 0])
            cell[0] += count
            cell[1] = T + round(at * S)
            self.signs[rank] = max(self.signs[rank], cell[1])

    def send(self, kind, source, target, at=0.0):
        self.issue(kind, source, at=at, operation=SEND, peer=target)

    def receive(self, kind, source, target, at=0.0):
        self.issue(kind, target, at=at, operation=RECEIVE, peer=source)

    def goes_on(self, *ranks, at):
        for rank in ranks:
            self.signs[rank] = T + round(at * S)

    def progress(self):
        rows = [
            (rank, domain, OPERATIONS.index(operation), peer, *cell)
            for (rank, domain, operation, peer), cell in self.counts.items()
            if rank in self.known
        ]
        return Progress(
            domains=self.topology.domains,
            rank=np.array(list(self.known), dtype=np.int64),
            step=np.full(len(self.known), 40),
            sign_unix_ns=np.array([self.signs[rank] for rank in self.known], dtype=np.int64),
            flags=np.array([self.flags[rank] for rank in self.known], dtype=np.int64),
            ended=np.array([self.ended[rank] for rank in self.known], dtype=bool),
            gone=np.array([self.gone[rank] for rank in self.known], dtype=bool),
            issues=np.array(rows, dtype=np.int64).reshape(-1, len(ISSUE_FIELDS)),
        )

    def verdict(self):
        return who_is_late(self.progress(), self.topology, NOBODY[: self.topology.world_size])


def grid(degrees, world):
    return Job(from_degrees(degrees, world))


def found(hang):
    return hang.cause, hang.scope, hang.ranks, hang.domain


def test_the_rank_that_did_not_issue_what_others_did_is_late():
    """Three of four wait in their 42nd collective; the fourth has issued 41."""
    job = grid({"dp": 4}, 4)
    job.issue("dp", 0, 1, 2, 3, count=41)
    job.issue("dp", 0, 1, 3, at=2.0)
    job.goes_on(2, at=1.0)
    hang = job.verdict()
    assert found(hang) == ("unknown", "rank", (2,), ("dp", "dp0"))
    assert hang.numbers == {"late_ranks": 1.0, "waiting_ranks": 3.0}
    assert hang.evidence == (
        "3 ranks wait for rank 2, the first of them since 14:13:22 UTC",
        "rank 2 has issued 41 operations in dp domain dp0, others 42",
        "its last sign of life was at 14:13:21 UTC, its last step 40",
    )


def test_a_rank_blocked_in_one_domain_is_not_blamed_in_another():
    """Rank 0 waits in its tensor group and is behind in its data-parallel group: the tensor peer is late, there."""
    job = grid({"tp": 2, "dp": 4}, 8)
    job.issue("tp", *range(8), count=10)
    job.issue("dp", *range(8), count=5)
    for rank in (0, 2, 3, 4, 5, 6, 7):
        job.issue("tp", rank, at=1.0 + rank / 10)
    job.issue("dp", 2, 3, 4, 5, 6, 7, at=3.0)
    assert found(job.verdict()) == ("unknown", "rank", (1,), ("tp", "tp0"))


def test_a_chain_over_three_kinds_ends_at_its_root():
    """Pipelines wait for a stage, its data-parallel group for it, and all because of one tensor peer."""
    job = grid({"tp": 2, "pp": 2, "dp": 2}, 8)  # rank = tp + 2 dp + 4 pp
    job.issue("tp", *range(8), count=3)
    for rank in (1, 2, 3, 6, 7):  # rank 0 does not come to the fourth one, so rank 1 stays in it
        job.issue("tp", rank, at=1.0)
    job.receive("pp", 0, 4, at=2.0)  # the next stage of that pipeline waits for its input
    job.receive("pp", 1, 5, at=2.0)
    for source in (2, 3):
        job.send("pp", source, source + 4, at=2.0)
        job.receive("pp", source, source + 4, at=2.1)
    job.issue("dp", 2, 3, 6, 7, at=3.0)
    assert found(job.verdict()) == ("unknown", "rank", (0,), ("tp", "tp0"))


def test_all_ranks_of_a_replica_are_late_together():
    """Both tensor ranks of a replica that still reads its data: two ranks, no other one."""
    job = grid({"tp": 2, "dp": 4}, 8)
    job.issue("dp", *range(8), count=5)
    job.issue("dp", 0, 1, 4, 5, 6, 7, at=1.0)
    hang = job.verdict()
    assert (hang.scope, hang.ranks) == ("rank", (2, 3))
    assert hang.domain in (("dp", "dp0"), ("dp", "dp1"))


def test_a_whole_group_that_arrived_and_never_ends_is_the_link():
    """All four members have issued the same, and reported nothing after: the group's network."""
    job = grid({"tp": 2, "dp": 4}, 8)
    job.issue("dp", *range(8), count=5)
    job.goes_on(*range(8), at=0.5)
    job.issue("dp", 1, 3, 5, 7, at=1.0)
    hang = job.verdict()
    assert found(hang) == ("link", "group", (1, 3, 5, 7), ("dp", "dp1"))
    job.issue("dp", 0, 2, 4, 6, at=1.0)
    assert found(job.verdict()) == ("link", "job", (), None)


def test_ranks_that_stand_still_outside_of_collectives_are_no_link():
    """All wait for a file system: counts are equal, and every rank has reported something after the last one."""
    job = grid({"dp": 4}, 4)
    job.issue("dp", *range(4), count=5)
    job.goes_on(*range(4), at=1.0)
    assert found(job.verdict()) == ("unknown", "job", (), None)


def test_stages_may_send_and_receive_different_numbers():
    """A healthy pipeline of unequal counts blames no one; a stage that does not send is late for the next one only."""
    job = grid({"pp": 4}, 4)
    for source, target in ((0, 1), (1, 2), (2, 3)):
        for _ in range(3):
            job.send("pp", source, target)
            job.receive("pp", source, target)
    job.goes_on(*range(4), at=0.5)
    assert job.verdict().ranks == ()
    for source, target in ((1, 2), (2, 3), (0, 1)):
        job.receive("pp", source, target, at=1.0)
    job.send("pp", 0, 1, at=0.9)
    job.goes_on(1, at=1.5)
    assert found(job.verdict()) == ("unknown", "rank", (1,), ("pp", "pp0"))


def test_a_buffered_send_is_no_waiting_and_a_blocked_one_is():
    """A sender that went on waits for no one; one that has reported nothing since waits for its receiver."""
    job = grid({"pp": 2}, 2)
    job.send("pp", 0, 1, at=1.0)
    job.goes_on(0, 1, at=2.0)
    assert job.verdict().ranks == ()
    job.send("pp", 0, 1, at=3.0)
    assert found(job.verdict()) == ("unknown", "rank", (1,), ("pp", "pp0"))


def test_receives_posted_ahead_make_no_cycle():
    """A stage that posted its receive of a gradient and then hangs in its forward is late, not its victim."""
    job = grid({"pp": 2}, 2)
    job.receive("pp", 1, 0, at=1.0)
    job.goes_on(0, at=1.5)
    job.receive("pp", 0, 1, at=2.0)
    assert found(job.verdict()) == ("unknown", "rank", (0,), ("pp", "pp0"))


def test_collectives_in_different_orders_are_reported_as_a_cycle():
    """Two ranks of two common groups wait in another one each: both are named, neither is blamed alone."""
    groups = [Domain("tp", "a", (0, 1)), Domain("dp", "b", (0, 1))]
    job = Job(Topology(2, tuple(groups), (0, 0)))
    job.issue("tp", 0, at=1.0)
    job.issue("dp", 1, at=1.0)
    hang = job.verdict()
    assert found(hang) == ("unknown", "group", (0, 1), ("tp", "a"))
    assert "cycle" in hang.evidence[0]


def test_a_rank_of_which_nothing_is_known_is_named_when_all_others_arrived():
    """A node that is gone shows nothing: the others wait in a group that it is a member of."""
    job = Job(from_degrees({"dp": 4}, 4), known=(0, 1, 2))
    job.issue("dp", 0, 1, 2, count=6, at=1.0)
    hang = job.verdict()
    assert found(hang) == ("unknown", "rank", (3,), ("dp", "dp0"))
    assert "nothing is known of rank 3" in hang.evidence[1]


def test_a_rank_without_an_agent_does_not_excuse_the_late_one():
    """The late rank works outside of collectives, so that it does not wait for the unknown one."""
    job = Job(from_degrees({"dp": 4}, 4), known=(0, 1, 2))
    job.issue("dp", 0, 1, 2, count=6)
    job.issue("dp", 0, 1, at=1.0)
    job.goes_on(2, at=0.5)
    assert job.verdict().ranks == (2,)


def test_saving_and_ended_ranks_are_told():
    """What the late rank reports itself is evidence: it saves a checkpoint, or its training is over."""
    job = grid({"dp": 2}, 2)
    job.issue("dp", 1, at=1.0)
    job.flags[0] = int(Flag.CHECKPOINT)
    hang = job.verdict()
    assert hang.is_pause
    assert "it is in a step with checkpoint" in hang.evidence
    job.ended[0] = True
    assert "rank 0 has reported the end of its training" in job.verdict().evidence


def test_announced_groups_have_the_names_of_the_topology():
    """The only group of a job is called dp everywhere else, so it is here."""
    announced = (Domain("world", "default_pg-0", (0, 1)),)
    job = Job(Topology(2, announced, (0, 0)))
    job.issue("world", 1, at=1.0)
    hang = who_is_late(job.progress(), from_groups(announced, 2), NOBODY[:2])
    assert hang.domain == ("dp", "default_pg-0")


@pytest.mark.parametrize(
    ("steps", "ranks", "domain"),
    [
        ([7, 7, 6, 7], (2,), ("dp", "dp0")),
        ([7, -1, 7, 6], (3,), ("dp", "dp0")),  # rank 1 never recorded, as one without an agent
    ],
)
def test_without_progress_the_last_steps_tell_who_is_behind(steps, ranks, domain):
    """Ranks one step behind have not arrived."""
    hang = who_is_late(None, from_degrees({"dp": 4}, 4), np.array(steps))
    assert (hang.cause, hang.ranks, hang.domain, hang.is_measured) == ("unknown", ranks, domain, False)


@pytest.mark.parametrize("steps", [[7, 7, 7, 7], [-1, -1, -1, -1], [70, 7, 70, 70]])
def test_without_progress_nothing_is_said_of_equal_steps(steps):
    """A job that was killed looks the same; a rank that fell silent long before explains nothing."""
    assert who_is_late(None, from_degrees({"dp": 4}, 4), np.array(steps)) is None


def test_a_process_that_is_gone_is_the_answer():
    """Whatever was issued: who does not exist any more never arrives. A job that is gone altogether hangs nowhere."""
    job = grid({"dp": 4}, 4)
    job.issue("dp", 0, 2, 3, at=1.0)
    job.gone[2] = True
    hang = job.verdict()
    assert found(hang) == ("unknown", "rank", (2,), None)
    assert "the process of rank 2 is gone" in hang.evidence[0]
    job.gone = dict.fromkeys(job.known, True)
    assert job.verdict() is None


def test_steps_name_no_domain_where_two_could_be_meant():
    """A rank that is a step behind may be awaited in its tensor or in its data-parallel group."""
    hang = who_is_late(None, from_degrees({"tp": 2, "dp": 4}, 8), np.array([5, 5, 5, 4, 5, 5, 5, 5]))
    assert (hang.ranks, hang.domain) == ((3,), None)


@pytest.mark.parametrize("column", range(6))
def test_a_lying_rank_cannot_break_the_verdict(column):
    """Ranks, peers and counts that cannot be: the verdict on the others stands, or is another one, but no error."""
    job = grid({"dp": 4}, 4)
    job.issue("dp", 0, 1, 3, at=1.0)
    job.issue("dp", 2, at=0.5)
    progress = job.progress()
    lie = progress.issues[-1].copy()
    lie[column] = {0: 63, 1: 0, 2: 1, 3: 63, 4: 2**63 - 1, 5: 2**63 - 1}[column]
    told = replace(progress, issues=np.concatenate((progress.issues, lie[None])))
    assert who_is_late(told, job.topology, NOBODY[:4]).scope in ("rank", "group", "job")


@pytest.mark.parametrize("seed", range(20))
def test_one_late_rank_is_found_in_any_grid(seed):
    """Ranks run one program until they meet one that waits: a rank that stops by itself is named, no one else."""
    rng = np.random.default_rng(seed)
    degrees = {"tp": int(rng.integers(1, 4)), "cp": int(rng.integers(1, 3)), "dp": int(rng.integers(2, 5))}
    world = degrees["tp"] * degrees["cp"] * degrees["dp"]
    job = grid(degrees, world)
    kinds = [kind for kind, size in degrees.items() if size > 1]
    program = [str(kind) for kind in rng.choice(kinds, 40)]
    culprit, stop = int(rng.integers(world)), int(rng.integers(39))
    place = [0] * world
    issued: dict[tuple[int, int], set[int]] = {}
    moved = True
    while moved:  # a rank issues its next collective once all members of its last one have
        moved = False
        for rank in rng.permutation(world).tolist():
            at = place[rank]
            if at == len(program) or (rank == culprit and at == stop):
                continue
            if at and issued[job.domain(program[at - 1], rank), at - 1] != set(
                job.topology.domains[job.domain(program[at - 1], rank)].ranks
            ):
                continue
            issued.setdefault((job.domain(program[at], rank), at), set()).add(rank)
            job.issue(program[at], rank, at=at + rank / world)
            place[rank] += 1
            moved = True
    if max(place) > stop:
        assert job.verdict().ranks == (culprit,)


def test_many_ranks_are_evaluated_in_one_pass():
    """16,384 ranks of a real grid: the one that is late in 32 of its groups' collectives is found."""
    topology = from_degrees({"tp": 8, "pp": 8, "dp": 256}, 16_384)
    members = [(rank, index) for index, d in enumerate(topology.domains) if d.kind != "pp" for rank in d.ranks]
    rank, domain = np.array(members, dtype=np.int64).T
    issued = np.where(rank == 77, 9, 10)
    blank = np.zeros_like(rank)
    rows = np.stack((rank, domain, blank, blank - 1, issued, T + blank), axis=1)
    everyone = np.arange(16_384)
    progress = Progress(
        domains=topology.domains,
        rank=everyone,
        step=everyone * 0,
        sign_unix_ns=everyone * 0 + T,
        flags=everyone * 0,
        ended=everyone < 0,
        gone=everyone < 0,
        issues=rows,
    )
    assert who_is_late(progress, topology, everyone * 0 - 1).ranks == (77,)
