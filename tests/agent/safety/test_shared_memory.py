"""What the shared directory can do to a trainer, and trainers to each other and to their reader."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from exporter.reading.ring_file import RingFile
from lockstep.agent.identity import Identity, make_header
from lockstep.agent.ring import RingWriter
from lockstep.contracts import ring as layout
from lockstep.contracts.errors import ContractVersionError
from lockstep.contracts.marks import BLOCK_BYTES
from lockstep.contracts.ring import STATE_FINISHED
from tests.agent.rings import read_ring
from tests.agent.safety.processes import environment, run, watched_environment

NAMESPACE = ["unshare", "--mount", "--map-root-user"]
TRAINING = """
    import sys
    import torch
    import tests.support.loaded_torch
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=4):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    print("trained")
"""
KILLED = """
    import os, random, signal, sys
    from pathlib import Path
    from exporter.reading.ring_file import RingFile
    from lockstep.accounting.block_reader import BlockReader
    from lockstep.agent.ring import RingWriter
    from lockstep.contracts.marks import MARK_STRUCT, MarkKind
    from tests.agent.safety.test_shared_memory import header
    from tests.agent.test_ring import make_marks

    root, seen = Path(sys.argv[1]), 0
    chance = random.Random(5)

    def check(blocks):
        for block in blocks:
            steps = {argument for _, kind, _, _, argument in MARK_STRUCT.iter_unpack(block.marks) if kind != MarkKind.BEGIN}
            assert len(steps) <= 1, steps
        return len(blocks)

    for attempt in range(200):
        begun, begin = os.pipe()
        child = os.fork()
        if child == 0:
            ring, step = RingWriter(root, header(attempt=attempt, block_count=16)), 0
            marks = make_marks(ring, clock=lambda: 1)  # a block is stored when it is full, however late
            while True:
                for _ in range(40):
                    marks.spend(step)
                if step == 20:
                    os.write(begin, b"x")
                step += 1
        os.read(begun, 1)
        file = RingFile(root / "0.ring", 0)
        reader = BlockReader(16)
        try:
            for look in range(chance.randrange(4)):
                seen += check(reader.read(file.blocks).blocks)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        torn = 0
        for look in range(3):
            found = reader.read(file.blocks)
            torn += found.torn
            seen += check(found.blocks)
        assert torn <= 1, torn
        file.close()
        os.close(begun), os.close(begin)
    print(seen > 2000)
"""


def header(**changes):
    identity = Identity(0, 0, 1, "job", Path("unused"))
    return make_header(identity)._replace(**changes)


def code(text):
    return ["-W", "ignore", "-c", textwrap.dedent(text)]


def test_reader_never_takes_a_torn_block_for_a_good_one(tmp_path):
    """200 writers are killed in a tight loop, a reader looks meanwhile and after: every block is whole, one is lost at most."""
    done = run([*code(KILLED), tmp_path], environment(tmp_path), cwd=Path(__file__).parents[3])
    assert (done.stdout, done.stderr) == ("True\n", "")


def in_namespace(setup, root, *, training=TRAINING):
    """Run a training after `setup`, shell commands in a mount namespace of their own."""
    command = f"{setup}\nexec {sys.executable} -W ignore -c {_quoted(textwrap.dedent(training))}"
    return subprocess.run(
        [*NAMESPACE, "sh", "-ec", command],
        env=watched_environment(root),
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


def _quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def may_make_namespaces():
    return shutil.which("unshare") is not None and not subprocess.call([*NAMESPACE, "true"], stderr=subprocess.DEVNULL)


FULL = {
    # A tmpfs of 256 KiB cannot hold a ring of half a MiB; where no namespace may be made, a limit stands in for it.
    True: ("mount -t tmpfs -o size=256k none {root}", TRAINING),
    False: (
        "",
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))\n" + textwrap.dedent(TRAINING),
    ),
}
CLOSED = {
    True: ("mount -t tmpfs none {root} && mount -o remount,ro {root}", TRAINING),
    False: ("", "import os; os.environ['LOCKSTEP_DIR'] = '/proc/1/task'\n" + textwrap.dedent(TRAINING)),
}


@pytest.mark.torch
@pytest.mark.parametrize(("case", "reason"), [(FULL, "OSError"), (CLOSED, "Error")])
def test_full_or_read_only_memory_costs_the_agent_only(tmp_path, case, reason):
    """Training is not killed by SIGBUS nor by an error: one line states why there is no agent."""
    allowed = may_make_namespaces()
    setup, training = case[allowed]
    if allowed:
        done = in_namespace(setup.format(root=tmp_path), tmp_path, training=training)
    else:
        done = run(code(training), watched_environment(tmp_path))
    assert (done.stdout, done.returncode) == ("trained\n", 0), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("lockstep: agent not installed: ")
    assert reason in line


FILLED = """
    import os, sys
    from pathlib import Path
    import torch
    import tests.support.loaded_torch
    from lockstep.agent import bootstrap
    from tests.agent.orders import ControlBlock, look_for_requests
    torch.set_num_threads(1)
    root = Path(os.environ["LOCKSTEP_DIR"])
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def steps(count):
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.ones(4, 64)).sum().backward()
            optimizer.step()
    block = ControlBlock(root / "job")
    steps(2)
    block.order(1, steps=20, trace_max_bytes=1 << 20)
    look_for_requests(bootstrap._agent)
    steps(2)
    assert torch.autograd._profiler_enabled()
    with open(root / "ballast", "wb") as ballast:
        try:
            while os.environ["FILL"] == "yes":
                ballast.write(bytes(1 << 16))
                ballast.flush()
        except OSError:
            pass
    steps(1500)
    from tests.agent.rings import read_ring
    bootstrap._agent.marks.flush()
    ring = read_ring(root / "job" / "0.ring")
    print(ring.answer["state"], ring.state, ring.failures, ring.torn, ring.step_count)
    print(sorted(p.name for p in (root / "job").iterdir()), [p.name for p in (root / ".exporter/job/incoming").iterdir()])
"""


@pytest.mark.torch
@pytest.mark.parametrize("fill", ["yes", "no"])
def test_memory_that_fills_up_during_a_capture_costs_the_capture_only(tmp_path, fill):
    """The ring has its space, so marks go on being written; the trace is refused and removed."""
    allowed = may_make_namespaces()
    fill = fill if allowed else "no"
    setup = f"mount -t tmpfs -o size=24m none {tmp_path}\nexport FILL={fill}\ncd {Path(__file__).parents[3]}"
    if allowed:
        done = in_namespace(setup, tmp_path, training=FILLED)
    else:
        done = run(code(FILLED), watched_environment(tmp_path, FILL=fill), cwd=Path(__file__).parents[3])
    lines = [line for line in done.stdout.splitlines() if line]
    assert done.returncode == 0, done.stderr
    state, traces = ("refused", "[]") if fill == "yes" else ("done", "['1-0.json']")
    assert lines == [f"{state} 1 0 0 1504", f"['0.ring', '0.stacks'] {traces}"]


@pytest.mark.torch
def test_two_jobs_on_a_node(tmp_path):
    """Jobs of different names do not meet, be they first processes of PID namespaces of their own; one of the same name comes after the former."""
    prefix = ["unshare", "--pid", "--fork", "--mount-proc", "--map-root-user"] if may_make_namespaces() else []
    for name in ("a", "b"):
        done = run(code(TRAINING), watched_environment(tmp_path, LOCKSTEP_RUN=name), prefix=prefix)
        assert (done.stdout, done.stderr) == ("trained\n", "")
    readers = [RingFile(tmp_path / name / "0.ring", 0) for name in ("a", "b")]
    assert [read_ring(reader.path).step_count for reader in readers] == [3, 3]
    if prefix:
        assert readers[0].header.pid == readers[1].header.pid == 1
    done = run(code(TRAINING), watched_environment(tmp_path, LOCKSTEP_RUN="a"), prefix=prefix)
    assert (done.stdout, done.stderr) == ("trained\n", "")
    again = RingFile(tmp_path / "a" / "0.ring", 0)
    assert again.header.attempt > readers[0].header.attempt
    assert again.inode != readers[0].inode
    assert (read_ring(again.path).step_count, again.read().state) == (3, STATE_FINISHED)
    assert len(readers[0].blocks(0, 1)) == BLOCK_BYTES  # the former file, whose name the new one has
    for reader in (*readers, again):
        reader.close()


def test_ring_of_another_version_is_replaced_and_refused_by_name(tmp_path):
    """The reader names both versions; a rank that starts puts its own file in the place of the old one."""
    data = bytearray(layout.pack_header(header()).ljust(header().file_bytes, b"\0"))
    data[8] = layout.RING_VERSION - 1
    (tmp_path / "0.ring").write_bytes(data)
    with pytest.raises(ContractVersionError, match=f"got {layout.RING_VERSION - 1}|got \\({layout.RING_VERSION - 1}"):
        RingFile(tmp_path / "0.ring", 0)
    RingWriter(tmp_path, header())
    assert read_ring(tmp_path / "0.ring").blocks == []


STARVED = """
    import os, sys
    from pathlib import Path
    import torch
    import tests.support.loaded_torch
    from lockstep.agent import bootstrap, ring
    from tests.agent.orders import look_for_requests
    ring.INSPECT_INTERVAL_NS = 0
    torch.set_num_threads(1)
    root = Path(os.environ["LOCKSTEP_DIR"])
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    def steps(count):
        for _ in range(count):
            weight.sum().backward()
            optimizer.step()
            look_for_requests(bootstrap._agent)
    def fill():
        with open(root / "ballast", "ab") as ballast:
            try:
                while True:
                    ballast.write(bytes(1 << 16))
                    ballast.flush()
            except OSError:
                pass
    steps(20)
    fill()
    steps(20)
    from tests.agent.rings import read_ring
    path = root / "job" / "0.ring"
    print(read_ring(path).step_count, read_ring(path).failures)
    os.truncate(path, 0)
    fill()
    steps(20)
    print(bootstrap._agent.alive, bootstrap._agent.boundary.failures)
    print("trained")
"""


@pytest.mark.torch
@pytest.mark.parametrize("attempt", range(3))
def test_ring_that_is_cut_on_a_full_file_system_costs_the_agent_only(tmp_path, attempt):
    """Filled up, a ring has its space; cut, it has lost it, no store arrives, and the agent takes itself out."""
    if not may_make_namespaces():
        pytest.fail("this test fills a file system of its own, which takes a mount namespace")
    setup = f"mount -t tmpfs -o size=4m none {tmp_path}\ncd {Path(__file__).parents[3]}"
    done = in_namespace(setup, tmp_path, training=STARVED)
    assert (done.stdout, done.returncode) == ("40 0\nFalse 1\ntrained\n", 0), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("lockstep: agent stopped after a failure")
    assert "No space left on device; training goes on without it" in line


def test_directory_of_another_user_is_refused_in_one_line(tmp_path):
    """There is no agent, not even one of root, who could write there."""
    if os.geteuid() != 0:
        pytest.fail("this test makes a directory of another user, which takes root: run it as root, as CI does")
    (tmp_path / "job").mkdir(mode=0o777)
    os.chown(tmp_path / "job", 12345, 12345)
    wake = "import lockstep.agent.agent as a\nprint(a.Agent([]).wake())"
    done = run(code(wake), environment(tmp_path), cwd=Path(__file__).parents[3])
    assert done.stdout == "False\n", done.stderr
    assert done.stderr.startswith("lockstep: agent not installed: MalformedError: owner of the run directory in ")
    assert f"got uid 12345, expected uid {os.geteuid()}: another user has a run of this name" in done.stderr
