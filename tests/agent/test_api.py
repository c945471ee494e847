"""What a training reports of itself, in a process without torch: the only account it has."""

import subprocess
import sys
import textwrap

import pytest

from lockstep.contracts.records import MISSING, Flag
from tests.agent.rings import read_ring, unaccounted_ns

MS = 1_000_000
# The clock moves by what the training does and by nothing else, so each time is exact on any machine.
LOOP = """
import sys
import time

sys.modules["lockstep.agent._marks"] = None  # the C extension reads the system's clock

now_ns = time.monotonic_ns()
time.monotonic_ns = lambda: now_ns

def spend(ms):
    global now_ns
    now_ns += ms * 1_000_000

import lockstep

for index in range(4):
    with lockstep.step():
        with lockstep.phase("data"):
            spend(10)
        with lockstep.phase("backward"):
            spend(30)
            with lockstep.communication("tp", 1000, 1500):
                spend(20)
        with lockstep.phase("optimizer"):
            spend(5)
        lockstep.annotate(tokens=100, samples=2)
        lockstep.annotate(tokens=28, flops=6e9, work=7)
    spend(7)
lockstep.step_end()
assert "torch" not in sys.modules
"""


def run(code, tmp_path, **variables):
    environ = {"LOCKSTEP_DIR": str(tmp_path), "LOCKSTEP_RUN": "job", **variables}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    root = tmp_path_factory.mktemp("shm")
    done = run(LOOP, root, RANK="0", LOCAL_RANK="0", WORLD_SIZE="2")
    assert (done.returncode, done.stderr) == (0, "")
    return read_ring(root / "job" / "0.ring")


def test_each_block_is_a_step(ring):
    """Four blocks and a last explicit end are five exact steps; the rank ended well."""
    assert [record["step"] for record in ring.records] == list(range(5))
    assert [record["flags"] for record in ring.records] == [Flag.WARM_UP, 0, 0, 0, 0]
    assert all(unaccounted_ns(record) == 0 for record in ring.records)
    assert (ring.state, ring.failures) == (2, 0)


def test_phases_and_communication_are_distinguished(ring):
    """Data, compute, wait and the time between steps each find their field."""
    expected = {
        "data_ns": 10 * MS,
        "compute_ns": (30 + 5) * MS,
        "host_ns": 7 * MS,
        "backward_ns": 30 * MS,
        "optimizer_ns": 5 * MS,
        "tp_wait_ns": 20 * MS,
        "tp_comm_ns": 20 * MS,
        "tp_shortest_ns": 20 * MS,
        "tp_bytes": 1000,
        "tp_bus_bytes": 1500,
        "tp_count": 1,
        "dp_count": MISSING,
    }
    for record in ring.records[1:4]:
        assert {name: record[name] for name in expected} == expected


def test_annotations_are_recorded(ring):
    """What was annotated adds up in its step; a step without annotations knows none."""
    for record in ring.records[:4]:
        assert (record["tokens"], record["samples"], record["model_flops"], record["work"]) == (128, 2, 6 * 10**9, 7)
    assert ring.records[4]["tokens"] == MISSING


def test_without_a_rank_every_call_is_nothing(tmp_path):
    """A script run by hand, outside a job, leaves no file and no word."""
    done = run(LOOP, tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_what_makes_no_sense_is_named_once_and_left_out(tmp_path):
    """Wrong names and values cost a line each, however often they come, and no exception."""
    code = """
    import lockstep
    for index in range(3):
        lockstep.annotate(tokens="many", samples=-1, wheels=3)
        with lockstep.phase("lunch"), lockstep.communication("telepathy"):
            pass
        lockstep.step_end()
    """
    done = run(code, tmp_path, RANK="0", WORLD_SIZE="1")
    assert done.returncode == 0
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == [
        "annotate",
        "annotate",
        "annotate",
        "phase",
        "communication",
    ]
    ring = read_ring(tmp_path / "job" / "0.ring")
    assert (ring.step_count, ring.failures) == (3, 0)
    assert ring.records[0]["tokens"] == MISSING


def test_values_that_are_no_numbers_are_never_printed(tmp_path):
    """A tensor that counts on a device is not read, and one line names the place however the values change."""
    code = """
    from fractions import Fraction
    import lockstep

    class Tensor:
        def __repr__(self):
            raise RuntimeError("waits for the device")

    for index in range(3):
        lockstep.annotate(tokens=Tensor(), samples=-1 - index, work=10**5000, flops=Fraction(5, 2))
        with lockstep.phase([index]), lockstep.communication({}):
            pass
        for payload, moved in ((1.5, None), (Tensor(), -1), (64, Tensor())):
            with lockstep.communication("dp", payload, moved):
                pass
        lockstep.step_end()
    """
    done = run(code, tmp_path, RANK="0", WORLD_SIZE="1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        f"lockstep: {line}"
        for line in (
            "annotate: tokens: got Tensor, expected a number of at least 0",
            "annotate: samples: got -1, expected a number of at least 0",
            "annotate: work: got int, expected a number of at least 0",
            "phase: got list, expected one of data, forward, backward, optimizer",
            "communication: got dict, expected one of tp, cp, ep, dp, pp, world",
            "communication: payload_bytes: got Tensor, expected a number of at least 0",
            "communication: bus_bytes: got -1, expected a number of at least 0",
        )
    ]
    ring = read_ring(tmp_path / "job" / "0.ring")
    assert (ring.step_count, ring.failures) == (3, 0)
    for record in ring.records:
        assert (record["tokens"], record["samples"], record["model_flops"]) == (MISSING, MISSING, 2)
        assert (record["dp_count"], record["dp_bytes"]) == (3, 65)


def test_users_exception_passes_and_ends_no_step(tmp_path):
    """A block that raises was no whole step; its phases are closed and the next step goes on."""
    code = """
    import lockstep
    for index in range(3):
        try:
            with lockstep.step(), lockstep.phase("forward"):
                if index == 1:
                    raise ValueError("mine")
        except ValueError as error:
            print(error)
    """
    done = run(code, tmp_path, RANK="0", WORLD_SIZE="1")
    assert (done.stdout, done.stderr) == ("mine\n", "")
    assert read_ring(tmp_path / "job" / "0.ring").step_count == 2


def test_agent_that_cannot_be_installed_reports_it_once(tmp_path):
    """A directory that cannot be made costs one line, not one per step."""
    (tmp_path / "file").write_text("")
    done = run(
        "import lockstep\nfor _ in range(5): lockstep.step_end()",
        tmp_path,
        RANK="0",
        LOCKSTEP_DIR=str(tmp_path / "file"),
    )
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "agent not installed" in line
