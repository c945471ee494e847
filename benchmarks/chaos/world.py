"""All that runs in a chaos run, as real processes: a broker, two coordinators, and on each node exporter and ranks."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from benchmarks.chaos.ranks import FINISH_FILE, RanksPlan
from benchmarks.services import ROOT, Service, Stored, read_store, shipped_broker
from lockstep.contracts.paths import ring_path, run_directory
from tests.support.mark_ring import steps_written
from tests.support.servers import wait_until

RUN = "chaos"
RANKS = 8
COORDINATORS = ("a", "b")
TICK_S, BATCH_S = 0.05, 0.1
_OWN_NS = 38_000_000
_FAULT_RATIO = 0.3
_START_S = 3.0
_FINISH_STEPS = 60
_FINISH_S = 60.0
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (where rings lie in earnest)
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """Size and seed; `spool_max_bytes` is None for the exporter's default."""

    nodes: int
    seed: int
    slow_rank: int = 5
    fault_step: int = 120
    spool_max_bytes: int | None = None

    @property
    def ranks_per_node(self) -> int:
        """How many ranks a node has."""
        assert RANKS % self.nodes == 0
        return RANKS // self.nodes


class World:
    """A context: entering starts everything, leaving ends it and removes its files."""

    def __init__(self, plan: WorldPlan) -> None:
        self.plan = plan
        self.directory = Path(tempfile.mkdtemp(prefix="lockstep-chaos-"))
        self._shared = Path(tempfile.mkdtemp(prefix="lockstep-chaos-", dir=_SHARED_MEMORY))
        self.broker = shipped_broker(self.directory)
        self.is_broker_up = False
        self.coordinators = [self._coordinator(name) for name in COORDINATORS]
        self.exporters = [self._exporter(node) for node in range(plan.nodes)]
        self._ranks: list[subprocess.Popen[bytes]] = []

    @property
    def services(self) -> list[Service]:
        """Coordinators and exporters."""
        return [*self.coordinators, *self.exporters]

    def __enter__(self) -> Self:
        """Start everything and wait until every service serves."""
        try:
            self.start_broker()
            for service in self.services:
                service.start()
            for service in self.services:
                service.wait_ready()
            self._start_ranks()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs."""
        for process in self._ranks:
            process.kill()
            process.wait()
        for service in self.services:
            if service.process is not None:
                service.kill()
        self.broker.stop()
        shutil.rmtree(self._shared)
        shutil.rmtree(self.directory)

    def _coordinator(self, name: str) -> Service:
        settings: dict[str, object] = {
            "name": name,
            "broker_port": self.broker.port,
            "state_directory": str(self.directory / f"state-{name}"),
        }
        return Service("coordinator", f"coordinator-{name}", self.directory, settings)

    def _exporter(self, node: int) -> Service:
        settings: dict[str, object] = {
            "node": f"node{node}",
            "broker_port": self.broker.port,
            "root": str(self._root(node)),
            "spool_directory": str(self.directory / f"spool{node}"),
            "tick_seconds": TICK_S,
            "batch_seconds": BATCH_S,
        }
        if self.plan.spool_max_bytes is not None:
            settings["spool_max_bytes"] = self.plan.spool_max_bytes
        return Service("exporter", f"exporter-{node}", self.directory, settings)

    def _root(self, node: int) -> Path:
        return self._shared / f"node{node}"

    def _start_ranks(self) -> None:
        start_ns = time.monotonic_ns() + round(_START_S * _NS)
        for node in range(self.plan.nodes):
            plan = RanksPlan(
                root=str(self._root(node)),
                run=RUN,
                node=f"node{node}",
                directory=str(self.directory),
                first_rank=node * self.plan.ranks_per_node,
                ranks=self.plan.ranks_per_node,
                world=RANKS,
                own_ns=_OWN_NS,
                start_ns=start_ns,
                seed=self.plan.seed,
                slow_rank=self.plan.slow_rank,
                fault_step=self.plan.fault_step,
                fault_ratio=_FAULT_RATIO,
            )
            command = [sys.executable, "-m", "benchmarks.chaos.ranks", json.dumps(asdict(plan))]
            self._ranks.append(subprocess.Popen(command, cwd=ROOT))
        wait_until(lambda: len(self.heads()) == RANKS and min(self.heads().values()) > 0, 60, "first step")

    def start_broker(self) -> None:
        """Start the broker, which knows nothing of what was before."""
        self.broker.start()
        self.is_broker_up = True

    def kill_broker(self) -> None:
        """End the broker with SIGKILL."""
        self.broker.kill()
        self.is_broker_up = False

    def heads(self) -> dict[int, int]:
        """Return how many steps each rank has ended, from its ring; ranks without a ring yet are left out."""
        heads: dict[int, int] = {}
        for rank in range(RANKS):
            path = ring_path(run_directory(self._root(rank // self.plan.ranks_per_node), RUN), rank)
            try:
                heads[rank] = steps_written(path)
            except FileNotFoundError:
                continue
        return heads

    def job_step(self) -> int:
        """Return the last step that every rank has ended."""
        return min(self.heads().values()) - 1

    def finish_job(self) -> None:
        """Let the ranks end, all behind the same step."""
        (self.directory / FINISH_FILE).write_text(str(self.job_step() + _FINISH_STEPS))
        for process in self._ranks:
            process.wait(_FINISH_S)

    def orders(self) -> list[dict[str, object]]:
        """Return the capture orders that have reached ranks, one for each node and order."""
        lines = [line for path in self.directory.glob("orders-*.jsonl") for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines]

    def stored(self, coordinator: Service) -> Stored:
        """Return what a coordinator that has ended has stored."""
        return read_store(self.directory / f"state-{coordinator.name.rpartition('-')[2]}")


def evaluated_step(coordinator: Service) -> int:
    """Return the last step that a coordinator has evaluated, -1 where it does not answer or has evaluated none."""
    samples = coordinator.scrape() or {}
    return int(samples.get(f'lockstep_run_step{{run="{RUN}"}}', -1.0))
