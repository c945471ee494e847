"""One demonstration: starts services and training, polls the API until there is a verdict, and ends everything."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from lockstep.agent.bootstrap import loader_environment
from lockstep.cli.demo.demo_verdict import (
    EXPECTED,
    DemoVerdict,
    agent_implementation,
    agent_seconds,
    agent_share,
    make_verdict,
)
from lockstep.cli.demo.view import DemoView, draw_verdict, print_verdict
from lockstep.cli.services_command import first_leaf
from lockstep.cli.up import LOOPBACK, LocalServices
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.paths import DEFAULT_ROOT, ROOT_VARIABLE, RUN_VARIABLE

RUN = "demo"
FAULT_STEP = 60
HEALTHY_STEPS = 220
"""Steps after which a run without a fault counts as healthy: three times what finding a fault takes."""
START_SECONDS = 180.0
"""Time limit to the first step: ranks that share two cores with other processes need two minutes to import torch."""
DEADLINE_SECONDS = 140.0
"""Time limit from the first step on; an otherwise idle machine with 2 cores needs a third of it."""
FUNCTION_WAIT_SECONDS = 75.0  # a capture is summarised in 5 s; on shared cores, 30 s were too few
"""How long an incident may wait for its function before the verdict is given without it."""
SPACE_BYTES = 512 << 20
"""The most that two ranks' captures may request (`messages.CaptureRequest.trace_max_bytes`)."""
_POLL_SECONDS = 0.25
_END_SECONDS = 10.0
_NO_ANSWER = (aiohttp.ClientError, TimeoutError)
"""A service without CPU time closes a connection that it cannot serve within its limits."""
_ENDED = ("finished", "cancelled", "crashed")


def run_demo(
    *, fault: str, rank: int, ranks: int, as_json: bool, picture: str | None, record: str | None = None
) -> int:
    """Run the demonstration and return its exit status.

    `picture` is a file for the verdict as SVG, `record` a directory for a recording of the coordinator's input.

    Raises
    ------
    ConfigError
        `record` cannot be written.
    """
    console = Console()
    try:
        verdict = asyncio.run(_Session(fault, rank, ranks, console, record).run())
    except* ConfigError as group:  # raised inside task groups: a directory that cannot be written
        raise first_leaf(group) from None
    print_verdict(console, verdict)
    if picture is not None:
        draw_verdict(Path(picture), verdict)
    if as_json:
        print(json.dumps(verdict.to_json()), flush=True)
    return 0 if verdict.correct else 1


def demo_services(root: str, record: str | None = None) -> LocalServices:
    """Return the services of a demonstration: those of `lockstep up`, with their own directory and ports."""
    return LocalServices(root=root, exporter_port=0, coordinator_port=0, record_directory=record)


class _Session:
    def __init__(self, fault: str, rank: int, ranks: int, console: Console, record: str | None) -> None:
        self.record = record
        self.fault = fault
        self.rank = rank
        self.ranks = ranks
        self.expected = EXPECTED[fault]
        goal, goal_step = ("nothing to be found", HEALTHY_STEPS) if fault == "none" else (f"{fault} fault", FAULT_STEP)
        self.view = DemoView(console, goal, goal_step)
        self.run_json: dict[str, Any] = {}
        self.incidents: list[dict[str, Any]] = []
        self.agent_share: float | None = None
        self.capture_seconds: float | None = None
        self._metrics_url = self._first_metrics = self._healthy_metrics = ""
        self._is_interrupted = self._is_agent_shown = False

    async def run(self) -> DemoVerdict:
        root = Path(tempfile.mkdtemp(prefix="lockstep-demo-", dir=_roomy_directory(Path(DEFAULT_ROOT).parent)))
        stop = asyncio.Event()
        up = demo_services(str(root), self.record)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(up.run(stop), name="up")
                await up.started.wait()
                address = f"http://{LOOPBACK}:{up.coordinator_port}"
                self._metrics_url = f"http://{LOOPBACK}:{up.exporter_port}/metrics"
                self.view.show(f"coordinator {address}  exporter {self._metrics_url}")
                training = await self._start_training(root)
                relay = tasks.create_task(self._relay(training), name="training output")
                try:
                    await self._watch(address, training)
                    self._reckon(await _fetch_text(self._metrics_url))
                finally:
                    await _end(training)
                    await relay
                    self.view.close()
                    stop.set()
        finally:
            shutil.rmtree(root, ignore_errors=True)
        return make_verdict(
            self.incidents,
            run=RUN,
            fault=self.fault,
            rank=self.rank,
            fault_step=FAULT_STEP,
            steps=self.run_json.get("step", 0),
            healthy=self.run_json.get("baseline_step_seconds"),
            state=self.run_json.get("state"),
            agent_share=self.agent_share,
            capture_seconds=self.capture_seconds,
        )

    def _reckon(self, last_metrics: str) -> None:
        """Compute the agent's cost: per step before the incident, and the additional one-off cost after it."""
        healthy = self._healthy_metrics if self.incidents else last_metrics
        self.agent_share = agent_share(self._first_metrics, healthy, RUN)
        if self.incidents and self.agent_share is not None and last_metrics:
            self.capture_seconds = agent_seconds(healthy, last_metrics, RUN) / self.ranks

    async def _start_training(self, root: Path) -> asyncio.subprocess.Process:
        job = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
        script = str(Path(__file__).with_name("training.py"))
        in_training = "none" if self.fault == "cancel" else self.fault
        fault = ["--steps", "100000"]
        if in_training != "none":
            fault += ["--fault", in_training, "--rank", str(self.rank), "--fault-step", str(FAULT_STEP)]
        environment = loader_environment(os.environ) | {
            RUN_VARIABLE: RUN,
            ROOT_VARIABLE: str(root),
            "OMP_NUM_THREADS": "1",  # more threads than cores only add noise
        }
        command = f"torchrun --nproc-per-node {self.ranks} training.py {' '.join(fault)}"
        self.view.show(f"training: lockstep run --run {RUN} -- {command}")
        self.view.start(f"{self.ranks} ranks import torch and set up their process group")
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *job,
            script,
            *fault,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # its own process group, which an interrupt can be sent to
        )

    async def _relay(self, training: asyncio.subprocess.Process) -> None:
        """Show the job's output except its loss lines, which the view replaces."""
        assert training.stdout is not None
        async for line in training.stdout:
            text = line.decode(errors="replace").rstrip()
            if text.startswith(("fault:", "lockstep:")) or "Error" in text:
                self.view.show(text)

    async def _watch(self, address: str, training: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        first_step_s = found_at = None
        async with aiohttp.ClientSession(address) as api:
            while not _is_late(loop.time(), begin_s, first_step_s) and (
                training.returncode is None or self.expected.ends_run
            ):
                await asyncio.sleep(_POLL_SECONDS)  # a screen's refresh, not a wait for an event
                with contextlib.suppress(*_NO_ANSWER):
                    await self._poll(api)
                self._interrupt(training)
                if self.run_json and first_step_s is None:
                    first_step_s = loop.time()
                if self.incidents and found_at is None:
                    found_at = loop.time()
                if self._answered() or (found_at is not None and loop.time() > found_at + FUNCTION_WAIT_SECONDS):
                    return

    async def _poll(self, api: aiohttp.ClientSession) -> None:
        async with api.get(f"/api/v1/runs/{RUN}") as response:
            if response.status != 200:  # noqa: PLR2004  (the run has not reported yet)
                return
            self.run_json = await response.json()
        metrics = "" if self.incidents else await _fetch_text(self._metrics_url)
        self._first_metrics = self._first_metrics or metrics
        self._show_agent(metrics)
        async with api.get("/api/v1/incidents", params={"run": RUN}) as response:
            self.incidents = (await response.json())["incidents"]
        if not self.incidents:
            self._healthy_metrics = metrics
        self.view.update(self.run_json)

    def _show_agent(self, metrics: str) -> None:
        """Show once what the agents are written in: it decides what they cost."""
        implementation = None if self._is_agent_shown else agent_implementation(metrics, RUN)
        if implementation is not None:
            self._is_agent_shown = True
            self.view.show(f"agent: {implementation}")

    def _interrupt(self, training: asyncio.subprocess.Process) -> None:
        """Send the same signal as Ctrl-C in the job's terminal, once, when it is due and if that is the fault."""
        is_due = self.fault == "cancel" and self.run_json.get("step", 0) >= FAULT_STEP
        if is_due and not self._is_interrupted and training.returncode is None:
            self._is_interrupted = True
            self.view.show(f"fault: SIGINT to the process group of the job, at step {self.run_json['step']}")
            os.killpg(training.pid, signal.SIGINT)

    def _answered(self) -> bool:
        if self.fault == "none":
            return bool(self.run_json.get("step", 0) >= HEALTHY_STEPS)
        if self.expected.ends_run:
            return self.run_json.get("state") in _ENDED
        return any(incident["function"] for incident in self.incidents if incident["kind"] == self.expected.kind)


def _is_late(now_s: float, begin_s: float, first_step_s: float | None) -> bool:
    """Whether a session's time is up, with all times on one clock; `first_step_s` is None before that step."""
    if first_step_s is None:
        return now_s - begin_s > START_SECONDS
    return now_s - first_step_s > DEADLINE_SECONDS


def _roomy_directory(memory: Path) -> Path | None:
    """Return `memory` if captures fit there, otherwise None, which means the machine's temporary directory.

    The /dev/shm of a container often has only 64 MiB.
    """
    return memory if memory.is_dir() and shutil.disk_usage(memory).free >= SPACE_BYTES else None


async def _fetch_text(url: str) -> str:
    """Return a page, or an empty text if a busy machine's server does not answer: no verdict depends on it."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return await response.text()
    except (aiohttp.ClientError, TimeoutError):
        return ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the job, which was started here: first by a signal to its own pid."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
