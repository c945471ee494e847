"""A node for attacks on it: a real exporter and real trainings, each a process of its own under a user of its own."""

import asyncio
import contextlib
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import lockstep
from exporter.config import ExporterConfig
from exporter.reading.ring_file import RingFile
from exporter.runtime import Exporter
from lockstep.agent import control, ring
from lockstep.contracts.errors import LockstepError
from lockstep.contracts.paths import ring_path
from tests.support.servers import free_port, get, wait_until
from tests.support.users import become

PATIENCE_S = 30.0
_STEP_S = 0.01


@dataclass
class Process:
    """A forked child; `log` holds what it wrote to stderr."""

    pid: int
    log: Path
    status: int | None = None

    def end(self, ending: signal.Signals = signal.SIGTERM) -> int:
        """Send `ending` if it still runs; return its exit status, negative for a signal."""
        if self.is_running():
            os.kill(self.pid, ending)
            _, status = os.waitpid(self.pid, 0)
            self.status = os.waitstatus_to_exitcode(status)
        assert self.status is not None
        return self.status

    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is None


def start(function: Callable[[], None], log: Path, *, uid: int, gid: int, groups: tuple[int, ...] = ()) -> Process:
    """Run `function` in a child as another user."""
    sys.stdout.flush()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    pid = os.fork()
    if pid:
        os.close(output)
        return Process(pid, log)
    code = 1
    try:
        os.dup2(output, 2)
        os.dup2(output, 1)
        become(uid, gid=gid, groups=groups)
        function()
        code = 0
    except LockstepError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        code = 2
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        raise
    finally:
        os._exit(code)


@dataclass
class Users:
    """Numbers of users and of the group that trainers, an unprivileged exporter and the attacker share."""

    exporter: int
    trainer: int = 61_001
    attacker: int = 61_002
    stranger: int = 65_534
    group: int = 61_000

    @property
    def exporter_gid(self) -> int:
        """Group of the exporter's process."""
        return self.group if self.exporter else 0


@dataclass
class Node:
    """A place for root directories, and what runs in it; all ends with `close`."""

    users: Users
    place: Path
    port: int = 0
    processes: list[Process] = field(default_factory=list)

    @property
    def root(self) -> Path:
        """The shared directory."""
        return self.place / "lockstep"

    @property
    def _modules(self) -> Path:
        return self.place / "modules"

    def preload(self) -> None:
        """Import what an exporter of root has imported until its end: other users may not read where Python lies."""
        for name in self._modules.read_text().split():
            with contextlib.suppress(Exception):  # made at run time, or none that an import finds
                importlib.import_module(name)

    def run_exporter(self, root: Path) -> Process:
        """Start an exporter for `root`; it may refuse."""
        self.port = free_port()
        config = ExporterConfig(
            root=str(root),
            node="node-1",
            http_host="127.0.0.1",
            http_port=self.port,
            broker_port=free_port(),  # no broker listens there
            tick_seconds=0.05,
            batch_seconds=0.05,
            scan_seconds=0.1,
            announce_seconds=0.5,
            drain_seconds=0.0,
            spool_directory=str(self.place / f"spool-{len(self.processes)}"),
        )

        def serve() -> None:
            async def until_terminated() -> None:
                stop = asyncio.Event()
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
                await Exporter(config).run(stop)

            asyncio.run(until_terminated())
            if os.geteuid() == 0:
                self._modules.write_text("\n".join(sys.modules))

        return self._start(serve, "exporter", self.users.exporter, self.users.exporter_gid)

    def train(self, run: str, *, root: Path | None = None) -> Process:
        """Start a training of one rank that takes a step each 10 ms until it gets SIGTERM, then ends with status 0.

        It looks at its files ten times as often as others do.
        """
        environment = {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "LOCKSTEP_RUN": run,
            "LOCKSTEP_DIR": str(root or self.root),
            "LOCKSTEP_EXPORTER_UID": str(self.users.exporter),
        }

        def work() -> None:
            os.environ.update(environment)
            over: list[int] = []
            signal.signal(signal.SIGTERM, lambda number, _frame: over.append(number))
            ring.INSPECT_INTERVAL_NS //= 10
            control.LOOK_INTERVAL_NS //= 10
            while not over:
                with lockstep.step():
                    time.sleep(_STEP_S)

        return self._start(work, f"training-{run}", self.users.trainer, self.users.trainer)

    def _start(self, function: Callable[[], None], name: str, uid: int, gid: int) -> Process:
        log = self.place / f"{name}-{len(self.processes)}.log"
        self.processes.append(start(function, log, uid=uid, gid=gid, groups=(self.users.group,)))
        return self.processes[-1]

    def metric(self, name: str) -> float:
        """Return a sample of the exporter's page, 0 where it has none."""
        page = get(f"http://127.0.0.1:{self.port}/metrics") or ""
        found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def steps(self, run: str) -> float:
        """Return how many steps of a run's rank 0 the exporter has read."""
        return self.metric(f'lockstep_steps_total{{rank="0",run="{run}"}}')

    def ring(self, run: str) -> RingFile:
        """Open the ring of a run's rank 0, which the caller closes."""
        return RingFile(ring_path(self.root / run, 0), 0)

    def close(self) -> None:
        """End every process that was started here, and remove the place."""
        for process in self.processes:
            process.end(signal.SIGKILL)
        shutil.rmtree(self.place)


@contextlib.contextmanager
def node(exporter_uid: int) -> Iterator[Node]:
    """Hand out a node without an exporter, in memory, for all users to reach."""
    made = Node(Users(exporter_uid), Path(tempfile.mkdtemp(prefix="lockstep-node-users-", dir="/dev/shm")))
    made.place.chmod(0o1777)
    try:
        yield made
    finally:
        made.close()


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until something has become true that another process brings about.

    Raises
    ------
    TimeoutError
        It has not within PATIENCE_S.
    """
    wait_until(condition, PATIENCE_S, what)
