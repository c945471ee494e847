"""What another user of a node tries against a training and the exporter there, and what refuses and counts it.

    python -m benchmarks.security.node_users

As root. Twice, for an exporter that runs as root and for one that shares a group with the trainers; the attacker is in
that group too, the stranger is not. Exporter and trainings are real processes under users of their own, in a root
directory of their own below /dev/shm. Prints a table `attempt | refused | counted by`; exit code 1 when an attempt
succeeds, when a training stops, or when a refusal is not counted where it should be. Half a minute.
"""

import argparse
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.security.node import Node, eventually, node
from exporter.capturing.control import write_control
from lockstep.contracts import ring as layout
from lockstep.contracts.blob import read_blob, write_blob
from lockstep.contracts.capture import (
    NEXT_STEP,
    STEP,
    CaptureRequest,
    CaptureResult,
    StepBoundary,
    request_to_json,
    result_to_json,
)
from lockstep.contracts.control_block import CONTROL_BYTES, ORDER_BYTES, ORDER_OFFSET, pack_control_header
from lockstep.contracts.limits import RUNS_PER_NODE_MAX
from lockstep.contracts.paths import control_path, exporter_directory, incoming_directory, ring_path, trace_name
from tests.support.mark_ring import MarkRing, make_header
from tests.support.users import OtherUserError, run_as

RUN = "pretrain"
UNPRIVILEGED_UID = 61_003
OWN_REQUEST, FORGED_REQUEST = 7, 666
MANY_RUNS, MANY_LIVE_RUNS = 300, RUNS_PER_NODE_MAX + 2
ATTEMPTS_OF_OWNER = 3
_NONE = "-"


class Refusal(NamedTuple):
    """What refused an attempt, and where that can be seen; `by` is empty where nothing refused it."""

    by: str
    counted: str = _NONE


@dataclass(frozen=True)
class Attempt:
    """A row of the table."""

    what: str
    outcome: Callable[["Scene"], Refusal]


class Scene:
    """A node where a training runs under an exporter, and another user who attacks them."""

    def __init__(self, made: Node) -> None:
        self.node = made
        self.users = made.users
        self.run = made.root / RUN
        self.exporter = made.run_exporter(made.root)
        eventually(lambda: made.metric("lockstep_exporter_mqtt_connected") == 0.0 and self._is_up(), "exporter")
        self.training = made.train(RUN)
        self.check_goes_on()
        eventually(control_path(self.run).exists, "control block")

    def _is_up(self) -> bool:
        return exporter_directory(self.run).parent.is_dir() and self.exporter.is_running()

    def attack(self, action: Callable[[], object], *, stranger: bool = False) -> str:
        """Let the attacker act; return the error that he got, nothing if it was done."""
        groups = () if stranger else (self.users.group,)
        try:
            run_as(self.users.stranger if stranger else self.users.attacker, lambda: action() and None, groups=groups)
        except OtherUserError as error:
            return str(error)
        return ""

    def by_kernel(self, action: Callable[[], object], *, stranger: bool = False) -> Refusal:
        """Return whether the kernel refused an action of the attacker."""
        error = self.attack(action, stranger=stranger)
        return Refusal("kernel: " + error.partition("] ")[2].partition(":")[0] if "PermissionError" in error else "")

    def rejected(self, kind: str) -> float:
        """Return what the exporter has refused of one kind."""
        return self.node.metric(f'lockstep_exporter_inputs_rejected_total{{input="{kind}"}}')

    def by_exporter(self, kind: str, action: Callable[[], object]) -> Refusal:
        """Return whether the exporter counted what the attacker did."""
        before = self.rejected(kind)
        if error := self.attack(action):
            raise RuntimeError(f"the attack itself failed: {error}")
        try:
            eventually(lambda: self.rejected(kind) > before, "refusal")
        except TimeoutError:
            return Refusal("")
        return Refusal("exporter", f'lockstep_exporter_inputs_rejected_total{{input="{kind}"}}')

    def check_goes_on(self) -> None:
        """See that the training takes steps, and that the exporter reads them."""
        before = self.node.steps(RUN)
        eventually(lambda: self.node.steps(RUN) > before + 5, "steps of the training")
        if not self.training.is_running():
            raise TimeoutError(f"the training ended with {self.training.status}")

    def failures(self) -> int:
        """Return the failure count in the training's ring, -1 while there is none."""
        try:
            data = ring_path(self.run, 0).read_bytes()
        except FileNotFoundError:
            return -1
        return memoryview(data).cast("Q")[layout.WORD_FAILURES] if len(data) >= layout.ANSWER_OFFSET else -1

    def answer(self, run: Path) -> dict[str, object]:
        """Return the answer that rank 0 of a run gave last."""
        data = memoryview(ring_path(run, 0).read_bytes())
        found = read_blob(data, layout.ANSWER_OFFSET, layout.ANSWER_BYTES)
        return found[1] if found else {}


def forged_block() -> bytes:
    """Return a control block that orders a capture."""
    block = bytearray(CONTROL_BYTES)
    header = pack_control_header()
    block[: len(header)] = header
    write_blob(memoryview(block), ORDER_OFFSET, ORDER_BYTES, 99, request_to_json(order(FORGED_REQUEST)))
    return bytes(block)


def order(request_id: int) -> CaptureRequest:
    """Return an order for rank 0."""
    return CaptureRequest(
        request_id=request_id,
        ranks=[0],
        first_step=NEXT_STEP,
        steps=1,
        stacks=False,
        shapes=False,
        memory=False,
        trace_max_bytes=1 << 20,
        boundaries=[StepBoundary(STEP, 1, 0, 0)],
    )


def write_ring(directory: Path, rank: int = 0, *, answer: CaptureResult | None = None) -> None:
    """Write a live ring as a rank does; `directory` is made if it is missing."""
    header = make_header(rank, world_size=64, hostname="node-1")
    writer = MarkRing(directory, header, now_ns=time.monotonic_ns())
    if answer is not None:
        writer.answer(result_to_json(answer))
    writer.close()


# Orders.


def own_order(scene: Scene) -> Refusal:
    """Order a capture as the exporter's user does: if this did not arrive, the attempts below would show nothing."""
    users = scene.users
    run_as(users.exporter, lambda: write_control(scene.run, order(OWN_REQUEST)), gid=users.exporter_gid)
    eventually(lambda: scene.answer(scene.run).get("request_id") == OWN_REQUEST, "answer to an order of the exporter")
    return Refusal(_NONE, "the training answers it")


def write_order(scene: Scene) -> Refusal:
    """Write into the training's control block."""
    return scene.by_kernel(lambda: control_path(scene.run).open("r+b").write(forged_block()))


def replace_order(scene: Scene) -> Refusal:
    """Put a control block in the place of the training's."""

    def replace() -> None:
        forged = scene.node.root / f"{scene.users.attacker}.forged"
        forged.write_bytes(forged_block())
        forged.rename(control_path(scene.run))

    return scene.by_kernel(replace)


def order_before_the_exporter(scene: Scene) -> Refusal:
    """Make the exporter's directory before there is an exporter, with an order in it."""
    root = scene.node.place / "early"
    root.mkdir()
    root.chmod(0o1777)
    control = control_path(root / RUN)

    def squat() -> None:
        incoming_directory(root / RUN).mkdir(parents=True)
        control.write_bytes(forged_block())
        control.chmod(0o644)

    if scene.attack(squat):
        raise RuntimeError("the attack itself failed")
    training = scene.node.train(RUN, root=root)
    eventually(lambda: ring_path(root / RUN, 0).exists() and scene.answer(root / RUN), "answer of the training")
    answer = scene.answer(root / RUN)
    refused = answer["request_id"] != FORGED_REQUEST and "owner of the exporter's directory" in str(answer["reason"])
    if training.end() != 0 or not refused or not refuses_root(scene, root / ".exporter"):
        return Refusal("")
    return Refusal(
        "agent; exporter does not start", 'answer "refused" (profiles_total{state="refused"}); error at start'
    )


def refuses_root(scene: Scene, squatted: Path) -> bool:
    """Whether an exporter refuses a root directory because of who owns `squatted`."""
    root = squatted.parent if squatted.name.startswith(".") else squatted
    port = scene.node.port
    exporter = scene.node.run_exporter(root)
    eventually(lambda: not exporter.is_running(), "refusal of the exporter")
    scene.node.port = port
    return exporter.status == 2 and f"got {squatted} of uid {scene.users.attacker}" in exporter.log.read_text()


# Rings.


def truncate_ring(scene: Scene) -> Refusal:
    """Truncate the training's ring."""
    return scene.by_kernel(lambda: os.truncate(ring_path(scene.run, 0), 0))


def write_into_ring(scene: Scene) -> Refusal:
    """Write into the training's ring."""
    return scene.by_kernel(lambda: ring_path(scene.run, 0).open("r+b"))


def replace_ring(scene: Scene) -> Refusal:
    """Put a file in the place of the training's ring."""

    def replace() -> None:
        mine = scene.node.root / f"{scene.users.attacker}.ring"
        mine.touch()
        mine.rename(ring_path(scene.run, 0))

    return scene.by_kernel(replace)


def remove_ring(scene: Scene) -> Refusal:
    """Remove the training's ring."""
    return scene.by_kernel(ring_path(scene.run, 0).unlink)


def damage_as(uid_of: Callable[[Scene], int], action: Callable[[Path], object]) -> Callable[[Scene], Refusal]:
    """Return an attempt of somebody who may: nothing refuses it, and it must not stop the training."""

    def damage(scene: Scene) -> Refusal:
        for _ in range(ATTEMPTS_OF_OWNER):
            before = scene.failures()
            run_as(uid_of(scene), lambda: action(ring_path(scene.run, 0)) and None, groups=(scene.users.group,))
            eventually(lambda before=before: scene.failures() == before + 1, "ring that is written again")  # type: ignore[misc]
            scene.check_goes_on()
        return Refusal(f"training goes on, {ATTEMPTS_OF_OWNER} of {ATTEMPTS_OF_OWNER}", "failures in the ring; stderr")

    return damage


def trainer(scene: Scene) -> int:
    """Return the user who trains."""
    return scene.users.trainer


def root_user(_scene: Scene) -> int:
    """Return root."""
    return 0


def place_pipe(scene: Scene) -> Refusal:
    """Let the training's own user put a pipe in the place of its ring, on which opening to write blocks."""
    training = scene.node.train("piped")
    run = scene.node.root / "piped"
    eventually(ring_path(run, 0).exists, "ring")
    ring_path(run, 0).unlink()
    os.mkfifo(ring_path(run, 0))
    eventually(lambda: "agent stopped" in training.log.read_text(), "end of the agent")
    status = training.end()
    shutil.rmtree(run)
    return Refusal("training goes on without agent" if status == 0 else "", "stderr of the training")


# Runs.


def remove_run(scene: Scene) -> Refusal:
    """Remove the training's run directory."""
    return scene.by_kernel(scene.run.rmdir)


def rename_run(scene: Scene) -> Refusal:
    """Rename the training's run directory."""
    return scene.by_kernel(lambda: scene.run.rename(scene.node.root / "mine"))


def squat_run(scene: Scene, kind: str) -> Refusal:
    """Take the name of a run before its training starts."""
    name = f"job-{kind}"
    path = scene.node.root / name
    actions: dict[str, Callable[[], object]] = {
        "directory": lambda: path.mkdir(mode=0o777) or path.chmod(0o777),
        "link": lambda: path.symlink_to(scene.run),
        "pipe": lambda: os.mkfifo(path),
    }
    refusal = scene.by_exporter("run", actions[kind])
    training = scene.node.train(name)
    eventually(lambda: "agent not installed" in training.log.read_text(), "refusal of the agent")
    if training.end() != 0 or (kind == "directory" and list(path.iterdir())):
        return Refusal("")
    scene.attack(path.rmdir if kind == "directory" else path.unlink)
    return (
        Refusal("agent does not write there", f"stderr of the training; {refusal.counted}") if refusal.by else refusal
    )


def flood_runs(scene: Scene) -> Refusal:
    """Make more runs than an exporter looks at and follows."""
    paths = [scene.node.root / f"a-{number:03}" for number in range(MANY_RUNS)]

    def flood() -> None:
        for path in paths[MANY_LIVE_RUNS:]:
            path.mkdir()
        for path in paths[:MANY_LIVE_RUNS]:
            write_ring(path)

    if error := scene.attack(flood):
        raise RuntimeError(f"the attack itself failed: {error}")
    eventually(lambda: scene.node.metric("lockstep_exporter_ranks_omitted") > 0, "runs that are left out")
    scene.check_goes_on()
    counted = "lockstep_exporter_ranks_omitted"
    scene.attack(lambda: [shutil.rmtree(path) for path in paths])
    eventually(lambda: scene.node.metric(counted) == 0, "runs that are gone")
    return Refusal("exporter: users take turns", counted)


# False data.


def feed_ring(scene: Scene) -> Refusal:
    """Add a ring of another rank to the training's run."""
    return scene.by_kernel(lambda: write_file(ring_path(scene.run, 7)))


def write_file(path: Path) -> None:
    """Write a ring's first bytes, as another writer would."""
    path.write_bytes(b"LKSTRING")


def feed_ring_where_open(scene: Scene) -> Refusal:
    """Add one where the run's owner has opened it to the group."""
    scene.run.chmod(stat.S_IMODE(scene.run.stat().st_mode) | 0o077)
    path = ring_path(scene.run, 7)

    def feed() -> None:
        made = scene.node.root / "fed"
        write_ring(made, 7)
        ring_path(made, 7).rename(path)
        made.rmdir()

    refusal = scene.by_exporter("ring", feed)
    scene.run.chmod(stat.S_IMODE(scene.run.stat().st_mode) & ~0o077 | 0o050)
    path.unlink()
    return refusal


def link_run(scene: Scene) -> Refusal:
    """Let an own run become a link to the training's, to have its data under another name."""
    mine = scene.node.root / "mine"

    def swap() -> None:
        write_ring(mine)
        mine.rename(scene.node.root / "kept")
        mine.symlink_to(scene.run)

    refusal = scene.by_exporter("run", swap)
    if scene.node.steps("mine"):
        return Refusal("")
    scene.attack(lambda: mine.unlink() or shutil.rmtree(scene.node.root / "kept"))
    return refusal


def link_ring(scene: Scene, kind: str) -> Refusal:
    """Give an own run a ring that is a link to the training's, or a pipe."""
    mine = scene.node.root / f"mine-{kind}"

    def place() -> None:
        mine.mkdir(mode=0o755)
        if kind == "link":
            ring_path(mine, 0).symlink_to(ring_path(scene.run, 0))
        else:
            os.mkfifo(ring_path(mine, 0))

    refusal = scene.by_exporter("ring", place)
    if scene.node.steps(mine.name):
        return Refusal("")
    scene.check_goes_on()
    scene.attack(lambda: shutil.rmtree(mine))
    return refusal


# Traces.


def link_trace(scene: Scene) -> Refusal:
    """Hand over a trace that is a link to a file that only the exporter may read."""
    mine = scene.node.root / "mine-trace"
    secret = scene.node.place / "secret"
    secret.write_text("only the exporter may read this")
    secret.chmod(0o600)
    os.chown(secret, scene.users.exporter, -1)
    answer = CaptureResult(request_id=9, state="done", steps=1)

    if error := scene.attack(lambda: write_ring(mine)):
        raise RuntimeError(f"the attack itself failed: {error}")
    eventually(incoming_directory(mine).is_dir, "directory for traces")

    def hand_over() -> None:
        (incoming_directory(mine) / trace_name(9, 0)).symlink_to(secret)
        write_ring(mine, answer=answer)

    refusal = scene.by_exporter("trace", hand_over)
    if "got lrwxrwxrwx, expected a regular file" not in scene.exporter.log.read_text():  # it was read, and was no trace
        return Refusal("")
    scene.attack(lambda: shutil.rmtree(mine))
    return refusal


def replace_trace(scene: Scene) -> Refusal:
    """Replace a trace that a rank of the training has handed over."""
    path = incoming_directory(scene.run) / trace_name(3, 0)
    eventually(path.parent.is_dir, "directory for traces")
    run_as(scene.users.trainer, path.touch, groups=(scene.users.group,), gid=scene.users.trainer)

    def replace() -> None:
        mine = scene.node.root / f"{scene.users.attacker}.trace"
        mine.touch()
        mine.rename(path)

    refusal = scene.by_kernel(replace)
    path.unlink()
    return refusal


def link_where_traces_are_written(scene: Scene) -> Refusal:
    """Put a link where the profiler will write, to have the training overwrite a file of its own."""
    return scene.by_kernel(lambda: (scene.run / f".{trace_name(8, 0)}.part").symlink_to("/etc/hostname"))


# The root directory.


def own_root(scene: Scene, kind: str) -> Refusal:
    """Make the root directory before anybody else, or a link in its place."""
    root = scene.node.place / f"root-{kind}"
    target = scene.node.place / f"target-{kind}"
    target.mkdir()
    target.chmod(0o777)
    if scene.attack(lambda: root.mkdir() if kind == "directory" else root.symlink_to(target)):
        raise RuntimeError("the attack itself failed")
    training = scene.node.train(RUN, root=root)
    eventually(lambda: "agent not installed" in training.log.read_text(), "refusal of the agent")
    if training.end() != 0 or list(target.iterdir()) or not refuses_root(scene, root):
        return Refusal("")
    return Refusal("agent; exporter does not start", "stderr of the training; error at start")


def replace_exporters_directory(scene: Scene) -> Refusal:
    """Rename the exporter's directory away."""
    own = exporter_directory(scene.run).parent
    return scene.by_kernel(lambda: own.rename(own.with_name(".mine")))


# Who is not in the group.


def read_as_stranger(scene: Scene) -> Refusal:
    """Read the training's ring without being in the group."""
    return scene.by_kernel(ring_path(scene.run, 0).read_bytes, stranger=True)


def read_order_as_stranger(scene: Scene) -> Refusal:
    """Read its control block."""
    return scene.by_kernel(control_path(scene.run).read_bytes, stranger=True)


ATTEMPTS = (
    Attempt("(order a capture, as the exporter)", own_order),
    Attempt("order a capture: write the control block", write_order),
    Attempt("order a capture: replace the control block", replace_order),
    Attempt("order a capture: come before the exporter", order_before_the_exporter),
    Attempt("truncate a ring", truncate_ring),
    Attempt("write into a ring", write_into_ring),
    Attempt("replace a ring", replace_ring),
    Attempt("remove a ring", remove_ring),
    Attempt("truncate a ring, as the training's user", damage_as(trainer, lambda path: os.truncate(path, 0))),
    Attempt("truncate a ring, as root", damage_as(root_user, lambda path: os.truncate(path, 100))),
    Attempt("remove a ring, as root", damage_as(root_user, Path.unlink)),
    Attempt("remove a run directory, as root", damage_as(root_user, lambda path: shutil.rmtree(path.parent))),
    Attempt("put a pipe in a ring's place, as root", place_pipe),
    Attempt("remove a run directory", remove_run),
    Attempt("rename a run directory", rename_run),
    Attempt("squat a run name: directory", lambda scene: squat_run(scene, "directory")),
    Attempt("squat a run name: link to another run", lambda scene: squat_run(scene, "link")),
    Attempt("squat a run name: pipe", lambda scene: squat_run(scene, "pipe")),
    Attempt(f"push a run out with {MANY_RUNS} others", flood_runs),
    Attempt("feed a ring of another rank", feed_ring),
    Attempt("feed one where the owner opened the run", feed_ring_where_open),
    Attempt("link an own run to another one", link_run),
    Attempt("link an own ring to another one", lambda scene: link_ring(scene, "link")),
    Attempt("put a pipe in an own ring's place", lambda scene: link_ring(scene, "pipe")),
    Attempt("hand over a link as a trace", link_trace),
    Attempt("replace a trace", replace_trace),
    Attempt("put a link where traces are written", link_where_traces_are_written),
    Attempt("own the root directory", lambda scene: own_root(scene, "directory")),
    Attempt("link the root directory elsewhere", lambda scene: own_root(scene, "link")),
    Attempt("replace the exporter's directory", replace_exporters_directory),
    Attempt("read a ring, outside the group", read_as_stranger),
    Attempt("read a control block, outside the group", read_order_as_stranger),
)


def run_attempts(made: Node) -> int:
    """Print a row for each attempt; return how many were not refused.

    One that leaves the training or the exporter damaged is the last: the rows after it would show nothing.
    """
    scene = Scene(made)
    succeeded = 0
    for attempt in ATTEMPTS:
        try:
            refusal = attempt.outcome(scene)
            scene.check_goes_on()
        except TimeoutError as error:
            print(f"{attempt.what:42} | {'NOT REFUSED':32} | {error}")
            return succeeded + 1
        succeeded += not refusal.by
        print(f"{attempt.what:42} | {refusal.by or 'NOT REFUSED':32} | {refusal.counted}", flush=True)
    answered = scene.answer(scene.run).get("request_id")
    if answered != OWN_REQUEST:
        print(f"the training answered request {answered}, expected none but {OWN_REQUEST}")
        succeeded += 1
    if (status := scene.training.end()) != 0 or scene.exporter.end() != 0:
        print(f"the training ended with {status}, the exporter with {scene.exporter.status}, expected 0")
        succeeded += 1
    return succeeded


def main() -> int:
    """Attack both kinds of node; return 1 if anything was let through, without the second node if at the first one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if os.geteuid() != 0:
        print(f"user: got uid {os.geteuid()}, expected root: this acts as several users of the node", file=sys.stderr)
        return 2
    for uid, exporter in ((0, "exporter of root"), (UNPRIVILEGED_UID, "exporter in the trainers' group")):
        print(f"\n{'attempt, ' + exporter:42} | {'refused':32} | counted by")
        with node(uid) as made:
            if succeeded := run_attempts(made):
                print(f"\n{succeeded} succeeded")
                return 1
            if uid == 0:
                made.preload()
    print(f"\n{len(ATTEMPTS) - 1} attempts at each of two nodes, none succeeded")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
