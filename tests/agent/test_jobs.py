"""Real jobs of two ranks over gloo: what the records show of who holds whom back."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.agent.bootstrap import loader_environment
from lockstep.agent.mark_block import POLL_INTERVAL_NS
from lockstep.contracts.records import MISSING
from lockstep.contracts.ring import STATE_FINISHED
from tests.agent import group_job
from tests.agent.rings import read_ring, self_ns, unaccounted_ns, wait_ns

pytestmark = [pytest.mark.alone, pytest.mark.torch]

HERE = Path(__file__).parent
STEPS = 25


def start(command, **variables):
    environ = {
        "PATH": os.environ["PATH"],
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",  # torchrun's own, about itself
        **variables,
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def rings(tmp_path_factory):
    """Run torchrun and return the rings of its job whose rank 1 sleeps 40 ms in each forward."""
    root = tmp_path_factory.mktemp("shm")
    environ = loader_environment({"LOCKSTEP_DIR": str(root), "LOCKSTEP_RUN": "ddp", "SLOW": "1", "STEPS": str(STEPS)})
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = start([*torchrun, str(HERE / "ddp_job.py")], **environ)
    assert "lockstep: " not in done.stderr
    assert sorted(path.name for path in (root / "ddp").iterdir()) == ["0.ring", "1.ring"]
    return [read_ring(root / "ddp" / f"{rank}.ring") for rank in (0, 1)]


@pytest.mark.smoke
def test_every_step_of_every_rank_is_there(rings):
    """Both ranks recorded all steps, lost nothing and ended well, without a change to the script."""
    for rank, ring in enumerate(rings):
        assert (ring.header.rank, ring.header.local_rank, ring.header.world_size) == (rank, rank, 2)
        assert (ring.step_count, ring.torn, ring.failures, ring.state) == (STEPS, 0, 0, STATE_FINISHED)
        assert [record["step"] for record in ring.records] == list(range(STEPS))


def test_records_are_exact(rings):
    """The parts sum to the step, in integers, in every record of a real job."""
    for ring in rings:
        assert [unaccounted_ns(record) for record in ring.records] == [0] * STEPS
        for record in ring.records:
            assert min(record[name] for name in ("data_ns", "compute_ns", "host_ns", "gc_ns", "world_wait_ns")) >= 0


def test_slow_rank_waits_least_and_works_longest(rings):
    """Both ranks step alike; the slow one's own time is long and its waits are short."""
    steady = [ring.records[5:] for ring in rings]
    wait = [statistics.median(wait_ns(record) for record in records) for records in steady]
    own = [statistics.median(self_ns(record) for record in records) for records in steady]
    assert wait[0] - wait[1] > 20_000_000
    assert own[1] - own[0] > 20_000_000
    compute = [statistics.median(record["compute_ns"] for record in records) for records in steady]
    assert compute[1] - compute[0] > 20_000_000


def test_traffic_is_the_same_on_both_ranks(rings):
    """Counts and bytes of the world's collectives agree between ranks; other kinds are MISSING."""
    traffic = [[(record["world_count"], record["world_bytes"]) for record in ring.records[5:]] for ring in rings]
    assert traffic[0] == traffic[1]
    assert all(count >= 2 and size > 60_000 for count, size in traffic[0])
    assert all(record["tp_count"] == MISSING for record in rings[0].records)
    assert all(record["world_shortest_ns"] > 0 for record in rings[0].records)


def test_world_is_announced(rings):
    """Both ranks announce the group that they use, in range form."""
    for ring in rings:
        assert ring.groups == [{"kind": "world", "name": "default_pg-0", "ranks": [[0, 2, 1]], "slot": 0}]


def test_both_ranks_count_the_same_issues(rings):
    """Of a job that ended well, each rank has issued the same in the group: as many as in its records, and more."""
    counts = [ring.issues[0] for ring in rings]
    assert counts[0][0] == counts[1][0] >= sum(record["world_count"] for record in rings[0].records)
    for ring in rings:
        assert ring.records[-1]["start_ns"] < ring.issues[0][1] < ring.heartbeat_ns + POLL_INTERVAL_NS


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    """Per scene of group_job, the records of both ranks."""
    root = tmp_path_factory.mktemp("talks")
    start([sys.executable, str(HERE / "group_job.py"), str(root / "store"), str(root)])
    rings = [read_ring(root / "job" / f"{rank}.ring") for rank in (0, 1)]
    assert all(ring.failures == 0 for ring in rings)
    assert all(unaccounted_ns(record) == 0 for ring in rings for record in ring.records)
    scenes = {}
    for index, scene in enumerate(group_job.SCENES):
        part = slice(index * group_job.STEPS + 1, (index + 1) * group_job.STEPS)
        scenes[scene.__name__] = [ring.records[part] for ring in rings]
    return rings, scenes


@pytest.mark.parametrize(
    ("scene", "kind", "payload_bytes"),
    [
        ("synchronous", "tp", 4000),
        ("asynchronous_waited", "tp", 4000),
        ("point_to_point", "pp", 4000),
        ("scattered", "dp", 4000),
        ("functional", "tp", 4000),
        ("barrier", "world", 0),
    ],
)
def test_waiting_for_a_late_rank_is_seen(talks, scene, kind, payload_bytes):
    """However two ranks meet, the punctual one waits for about as long as the other is late, which need not wait."""
    _, scenes = talks
    late_ns = int(group_job.LATE_SECONDS * 1e9)
    punctual, late = scenes[scene]
    for record in punctual:
        assert (record[f"{kind}_count"], record[f"{kind}_bytes"]) == (1, payload_bytes)
        assert record[f"{kind}_wait_ns"] > late_ns // 2
        assert wait_ns(record) == record[f"{kind}_wait_ns"]
    assert all(record["host_ns"] > late_ns * 9 // 10 for record in late)
    assert min(map(wait_ns, late)) < late_ns // 2  # in one of them nothing else held the other rank up


def test_groups_are_announced_once_each(talks):
    """Every group that was used is announced with its kind, and only once."""
    rings, _ = talks
    for ring in rings:
        assert sorted((group["kind"], group["ranks"]) for group in ring.groups) == [
            ("dp", [[0, 2, 1]]),
            ("pp", [[0, 2, 1]]),
            ("tp", [[0, 2, 1]]),
            ("world", [[0, 2, 1]]),
        ]


def test_sends_and_receives_are_counted_by_peer(talks):
    """What one rank sent to the other is what that one received from it, in slots that both report."""
    rings, _ = talks
    pipelines = [next(group for group in ring.groups if group["kind"] == "pp") for ring in rings]
    ((to, sent),), ((source, received),) = pipelines[1]["sends"], pipelines[0]["receives"]
    assert (to, source) == (0, 1)
    assert rings[1].issues[sent][0] == rings[0].issues[received][0] == group_job.STEPS
