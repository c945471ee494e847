"""One soak, from the first connection to the store of a coordinator that has ended."""

import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.services import Service, read_store, shipped_broker, total, usage
from benchmarks.soak.fleets import Fleets
from benchmarks.soak.job import RUN, Job, JobPlan
from benchmarks.soak.nodes import CONNECTS_PER_SECOND, FleetCounts, FleetPlan, shares
from benchmarks.soak.verdict import ScrapeSample, Second, Soaked
from tests.support.servers import Mosquitto, get_json

_SCRAPE_S = 5.0
_LOOK_S = 0.25
_LOOK_STEPS = 60
"""After the fault the API is asked four times a second for so many steps, then no more."""
_TURN_S = 0.25
_SECOND_S = 1.0
_DRAIN_S = 120.0
_FINISH_S = 3.0
_CONNECT_SPARE_S = 6.0
_REFERENCE_SUM = 500_000
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One soak."""

    nodes: int
    steps: int
    fault_step: int
    flapping: int
    seed: int
    processes: int
    outage_s: float = 0.0


class Soak:
    """Drives fleets against one broker and one coordinator, and takes notes."""

    def __init__(self, options: Options, broker: Mosquitto, coordinator: Service) -> None:
        self._broker, self._coordinator = broker, coordinator
        parts = shares(options.nodes, options.processes)
        connect_s = max(last - first for first, last in parts) / CONNECTS_PER_SECOND + _CONNECT_SPARE_S
        plan = JobPlan(
            nodes=options.nodes,
            steps=options.steps,
            fault_step=options.fault_step,
            slow_rank=options.nodes * 5 + 3,
            seed=options.seed,
            start_unix_ns=time.time_ns() + round(connect_s * _NS),
        )
        self.seen = Soaked(plan=plan, outage_s=options.outage_s)
        self._job = Job(plan)
        stride = max(1, options.nodes // max(1, options.flapping))
        flapping = frozenset(range(0, stride * options.flapping, stride))
        self._fleets = Fleets(
            [
                FleetPlan(job=plan, first_node=first, last_node=last, flapping=flapping, broker_port=broker.port)
                for first, last in parts
            ]
        )
        self._ended_steps = 0
        self._back_s = 0.0
        self._is_broker_up = not options.outage_s
        self._due_s = {"second": 0.0, "scrape": 0.0, "look": 0.0}

    def run(self) -> None:
        """Play the job to its end, and wait until every record is committed."""
        try:
            self._play()
            self._drain()
        finally:
            self._fleets.end()

    def _play(self) -> None:
        plan, seen = self.seen.plan, self.seen
        begin: FleetCounts | None = None
        begin_s = 0.0
        while self._ended_steps < plan.steps:
            time.sleep(_TURN_S)
            now_s, fleet = time.monotonic(), self._fleets.read()
            while self._ended_steps < plan.steps and self._job.end_unix_ns(self._ended_steps) <= time.time_ns():
                self._ended_steps += 1
            if self._ended_steps > plan.steps // 6:
                begin, begin_s = begin or fleet, begin_s or now_s
                self._take_notes(now_s)
                seen.fleet_cores = (fleet.cpu_s - begin.cpu_s) / max(now_s - begin_s, _TURN_S)
            self._look_for_incident(now_s)
            self._take_broker_away(now_s)

    def _take_broker_away(self, now_s: float) -> None:
        """Kill the broker after half of the steps, and start it again when its time is over."""
        if not self.seen.outage_s or self._ended_steps < self.seen.plan.steps // 2:
            return
        if not self._back_s:
            self._back_s = now_s + self.seen.outage_s
            self._broker.kill()
        elif not self._is_broker_up and now_s >= self._back_s:
            self._broker.start()
            self._is_broker_up = True

    def _is_due(self, what: str, now_s: float, every_s: float) -> bool:
        if now_s < self._due_s[what]:
            return False
        self._due_s[what] = now_s + every_s
        return True

    def _take_notes(self, now_s: float) -> None:
        if self._is_due("second", now_s, _SECOND_S):
            is_away = self._back_s and not self._is_broker_up
            broker = self.seen.seconds[-1].broker if is_away else usage(self._broker.pid)
            self.seen.seconds.append(Second(now_s, usage(self._coordinator.pid), broker))
        if self._is_due("scrape", now_s, _SCRAPE_S):
            samples = self._coordinator.scrape() or {}
            step = int(total(samples, "lockstep_run_step", f'"{RUN}"'))
            unsettled = int(total(samples, "lockstep_coordinator_unsettled_frames"))
            self.seen.scrapes.append(ScrapeSample(self._ended_steps - 1 - step, unsettled, _reference_cpu_s()))
            fleet = self._fleets.read()
            print(
                f"  step {self._ended_steps - 1}: evaluated {step}, frames unsettled {unsettled}; nodes: "
                f"{fleet.connected} connected, {fleet.uncommitted} uncommitted, {fleet.frames_resent} resent",
                file=sys.stderr,
                flush=True,
            )

    def _look_for_incident(self, now_s: float) -> None:
        seen, fault_step = self.seen, self.seen.plan.fault_step
        is_time = fault_step < self._ended_steps <= fault_step + _LOOK_STEPS
        if seen.found_s is not None or not is_time or not self._is_due("look", now_s, _LOOK_S):
            return
        answer = get_json(f"{self._coordinator.url}/api/v1/incidents?run={RUN}") or {"incidents": []}
        for incident in answer["incidents"]:
            seen.found_s = time.time() - self._job.end_unix_ns(fault_step) / _NS
            seen.found_step, seen.found_ranks = incident["detected_step"], tuple(incident["ranks"])

    def _drain(self) -> None:
        deadline_s = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline_s:
            time.sleep(_TURN_S)
            self.seen.fleet = fleet = self._fleets.read()
            if fleet.steps == self.seen.plan.steps and not fleet.uncommitted:
                self.seen.is_drained = True
                break
        self._fleets.command("finish")
        time.sleep(_FINISH_S)


def _reference_cpu_s() -> float:
    begin_s = time.process_time()
    sum(range(_REFERENCE_SUM))
    return time.process_time() - begin_s


def soak(options: Options) -> Soaked:
    """Soak a fresh broker and a fresh coordinator."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as cleanup:
        directory = Path(temporary)
        state = directory / "state"
        broker = shipped_broker(directory)
        broker.start()
        cleanup.callback(broker.stop)
        settings: dict[str, object] = {"broker_port": broker.port, "state_directory": str(state), "name": "soaked"}
        coordinator = Service("coordinator", "coordinator", directory, settings)
        coordinator.start()
        cleanup.callback(coordinator.stop)
        coordinator.wait_ready()
        soaking = Soak(options, broker, coordinator)
        soaking.run()
        seen = soaking.seen
        seen.samples = coordinator.scrape() or {}
        coordinator.stop()
        seen.stored = read_store(state)
        return seen
