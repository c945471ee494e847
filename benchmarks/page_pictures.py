"""Pictures of the coordinator's pages at the width of a desk and of a telephone, in both schemes.

`python -m benchmarks.page_pictures --out DIR` plays three generated runs into a coordinator's application, one of them
with a closed and an open incident, and has Chromium draw overview, run, incidents, an incident's report with evidence
of its machine, and the fleet's history as PNG. It returns 1 where a page is wider than its screen.
`benchmarks.pictures` takes the README's from a real run.
"""

import argparse
import base64
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from coordinator.api.services import SERVICES
from coordinator.decide import events as ev
from coordinator.decide.machine_evidence import MachineDeviation, MachineEvidence
from coordinator.fleet.history import NODE, Subject, history_line
from coordinator.record.step_series import StepSeries
from lockstep.contracts.facts import RankFacts
from lockstep.contracts.messages import StepBatch
from tests.coordinator.fleet.test_history import BAD, thirty_runs
from tests.coordinator.scenarios import START_UNIX_S, Recording, Scenario, generate
from tests.coordinator.test_runs import changed, two_nodes
from tests.coordinator.web import TOKEN, Server, Site
from tests.support.browser import chromium
from tests.support.servers import wait_until

RUN = "gpt-small"
WIDTHS = (1440, 390)
SCHEMES = ("light", "dark")
HEIGHT_MAX = 4000
_STEPS = 700
_SEEN_UNIX_MS = round((START_UNIX_S + 420.0) * 1e3)  # the browser's clock: what was made is of minutes ago
_TOKENS = 8 * 4096  # of a rank's step
_FACTS = RankFacts(device="NVIDIA H100 80GB HBM3", device_kind="cuda", dtype="bf16", parameters=7_000_000_000)
_CHUNK_STEPS = 50  # of one call, so that none takes seconds
_DRAWN_SECONDS = 30
_EVIDENCE = MachineEvidence(
    read_unix_ns=round((START_UNIX_S + 320.0) * 1e9),
    note="112 signals of 1 rank with 3 peers compared",
    is_complete=True,
    deviations=(
        MachineDeviation(
            name="inspector_bandwidth",
            cause="collective_bandwidth",
            title="Lower bandwidth of collectives",
            ranks=(1,),
            unit="bytes/s",
            suspects_before=4.0e11,
            suspects_after=4.1e10,
            peers_before=4.0e11,
            peers_after=4.0e11,
            text="Bus bandwidth by the device's clock (dp AllReduce): rank 1 on host-n0: 400 GB/s before the onset, "
            "41 GB/s since; 3 peers: 400 GB/s and 400 GB/s",
            meaning="Bus bandwidth by the device's clock (dp AllReduce)",
            advice="Check the ports, cables and switches between the nodes of this communicator",
            source="Lockstep's exporters, from the NCCL Inspector",
            link="https://prometheus.example.org/graph?g0.expr=x",
        ),
    ),
)
_CHARTS = "document.getElementById('charts')?.dataset.last && document.getElementById('heat')?.dataset.last"


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, draw, and name each picture with its width; return whether a page is wider than its screen."""
    parser = argparse.ArgumentParser(description="Take pictures of the coordinator's pages.")
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder) / "token"
        token.write_text(TOKEN)
        with contextlib.closing(Server(str(token))) as server, chromium() as browser:
            incident = play_runs(server)
            browser.call("Page.addScriptToEvaluateOnNewDocument", source=f"Date.now = () => {_SEEN_UNIX_MS}")
            pages = {
                "overview": ("/", "true"),
                "run": (f"/runs/{RUN}", _CHARTS),
                "workload": ("/runs/speech", _CHARTS),
                "incidents": ("/incidents", "true"),
                "incident": (f"/incidents/{quote(incident, safe='')}", "true"),
                "fleet": ("/fleet", "true"),
            }
            overflows = [
                _take(browser, f"{server.url}{path}", out / f"{name}-{width}-{scheme}.png", (width, scheme), ready)
                for name, (path, ready) in pages.items()
                for width in WIDTHS
                for scheme in SCHEMES
            ]
    return int(any(overflows))


def play_runs(server: Server) -> str:
    """Play a run with two faults, the first of which ends, and two healthy ones; return the open incident's id.

    The first had a quicker attempt an hour before, the last is compared with the second: they have one workload.
    """
    faulty = Scenario(degrees="dp=4", steps=_STEPS).with_fault("data", 2, seconds=0.2, begin=200, end=350)
    faulty = faulty.with_fault("compute", 1, seconds=0.1, begin=_STEPS - 150)
    healthy = Scenario(degrees="dp=4", steps=100)
    slower = replace(healthy, compute=0.45)
    for name, scenario, begin_s in ((RUN, faulty, 0.0), ("vision", healthy, 0.0), ("speech", slower, 60.0)):
        recording = generate(scenario)
        server.do(partial(two_nodes, server.site.runs, run=name, facts=_FACTS))
        if name == RUN:
            server.do(_play_earlier, server.site.runs.by_name[name].series)
        for first in range(0, scenario.steps, _CHUNK_STEPS):
            last = min(first + _CHUNK_STEPS, scenario.steps)
            server.do(
                _play,
                server.site,
                [
                    (begin_s + _end_s(recording, step), _batches(recording, name, step, begin_s))
                    for step in range(first, last)
                ],
            )
    incident = next(iter(server.site.runs.by_name[RUN].machine.tracker.incidents))
    server.do(_remember, server.site, incident)
    return incident


def _play_earlier(series: StepSeries) -> None:
    """Give a run an attempt of 200 steps, an hour before, whose compute was quicker."""
    rows = generate(Scenario(degrees="dp=4", steps=200, compute=0.37, seed=2)).rows()
    for row in rows:
        tokens = np.full(len(row.ranks), float(_TOKENS))
        series.observe(
            replace(row, end_unix_s=row.end_unix_s - 3600.0, tokens=tokens), float(row.duration.max()), lambda: None
        )


def _remember(site: Site, incident: str) -> None:
    """Fill the fleet's history with thirty runs, and give the open incident its line of it and a machine's evidence."""
    sightings = thirty_runs()
    for each in sightings:
        site.app[SERVICES].fleet.add(each)
    earlier = [each for each in sightings if each.subject == BAD]
    known: dict[str, Any] = {"unix_s": START_UNIX_S, "cause_id": "pictures", "incident_id": incident}
    history = (history_line(Subject(NODE, "n0"), RUN, earlier[:3]),)
    for event in (
        ev.MachineEvidenceEvent(machine=_EVIDENCE, **known),
        ev.FleetHistoryEvent(history=history, **known),
    ):
        site.runs.feed(RUN, event)


def _batches(recording: Recording, run: str, step: int, begin_s: float) -> list[StepBatch]:
    nodes = (("n0", (0, 1)), ("n1", (2, 3)))
    batches = (
        recording.batch(step, step + 1, ranks=ranks, node=node, run=run, start_s=START_UNIX_S + begin_s)
        for node, ranks in nodes
    )
    return [changed(batch, tokens=_TOKENS) for batch in batches]


def _end_s(recording: Recording, step: int) -> float:
    """Return when a step ends, seconds from the run's begin."""
    return float(recording.duration[: step + 1].max(axis=1).sum())


def _play(site: Site, steps: list[tuple[float, list[StepBatch]]]) -> None:
    """Feed steps and store closed incidents, as the coordinator's effects do."""
    for end_s, batches in steps:
        for _, instructions in site.runs.take_batches(batches, START_UNIX_S + end_s):
            _keep(site, instructions)


def _keep(site: Site, instructions: Sequence[ev.Instruction]) -> None:
    for each in instructions:
        if isinstance(each, ev.CloseIncident):
            site.store.keep_incident(each.incident)


def _take(browser: Any, address: str, path: Path, look: tuple[int, str], ready: str) -> bool:
    """Write a picture at a width and in a scheme; return whether the page is wider than its screen."""
    width, scheme = look
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < min(WIDTHS) + 1}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.call("Page.navigate", url=address)
    browser.wait("Page.loadEventFired")
    wait_until(lambda: browser.ask(ready), _DRAWN_SECONDS, f"{address}: {ready}")
    height = min(browser.call("Page.getLayoutMetrics")["cssContentSize"]["height"], HEIGHT_MAX)
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    taken = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    path.write_bytes(base64.b64decode(taken["data"]))
    is_wider = bool(browser.ask("document.documentElement.scrollWidth > innerWidth"))
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KB{', wider than its screen' if is_wider else ''}")
    return is_wider


if __name__ == "__main__":
    sys.exit(main())
