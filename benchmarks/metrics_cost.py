"""What a scrape costs, and what a dashboard asks of Prometheus: `python -m benchmarks.metrics_cost [--ranks 10240]`.

First the series of 10,000 ranks at each level of metrics, counted by the catalogue, with their budgets.

Then the pages: a made snapshot of 8 runs with 64 ranks each on an exporter, which is more than an exporter lets in,
and one of 20 runs of 10,240 ranks, half of them with slow ranks, on a coordinator. `render` is CPU ms of the text; the
scrapes go over HTTP, each of a new snapshot; `freeze` is the longest time for which the event loop did not get to a
task that asks every millisecond.

Last the panels: every query of every dashboard, over eight minutes of a run of 10,240 ranks in a Prometheus of its own,
filled by promtool with the series that these panels read, raw and recorded. Milliseconds of the slowest ones, the least
of three where the first was over the budget. Budget: no query over 1 s, and none without data, for it would not be
measured. Returns 1 where a budget is missed.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.metrics_made import (
    ASKED_RANK,
    RANKS_PER_NODE,
    RUN,
    SCRAPE_SECONDS,
    UNNAMED_RANK,
    coordinator_snapshot,
    exporter_snapshot,
    openmetrics,
)
from coordinator.api.response_cache import ResponseCache
from coordinator.api.services import SERVICES, Services
from coordinator.app import EXPOSITIONS, EXPOSITIONS_MAX, metrics
from coordinator.collector import SnapshotCollector as CoordinatorCollector
from coordinator.snapshot import Snapshot
from dashboards import catalogue
from dashboards.levels import OF_NODE
from exporter.exposing.app import make_app
from exporter.exposing.collector import NodeCollector as ExporterCollector
from exporter.exposing.snapshot import NodeSnapshot
from lockstep.cli import series_table
from lockstep.contracts.metric import LEVELS, Level
from lockstep.serving.exposition import render
from tests.support import servers

QUERY_BUDGET_S = 1.0
SCRAPES = 20
SPAN_SECONDS = 480
SLOWEST_SHOWN = 12
_TIMEOUT_S = 60
_MS = 1e3
_SCRAPER = {"Accept-Encoding": "gzip"}  # as Prometheus asks


def count_series() -> bool:
    """Print the series of 10,000 ranks at each level; return whether one exceeds its budget."""
    is_over = False
    for level in LEVELS:
        found = series_table.of_cluster(nodes=1_250, ranks=RANKS_PER_NODE, kinds=1, level=level)
        budget = series_table.BUDGETS.get(level)
        is_over |= budget is not None and found > budget
        print(f"10,000 ranks, level {level}: {found:,} series" + (f", budget {budget:,}" if budget else ""))
    return is_over


def measure_pages() -> Iterator[dict[str, Any]]:
    """Yield the costs of each service's page."""
    runs, ranks = 8, 64
    node = [exporter_snapshot(runs, ranks, seed) for seed in range(SCRAPES)]
    latest = [0]
    app = make_app(lambda: node[latest[0]])
    yield {"page": f"exporter, {runs} x {ranks} ranks"} | _page(lambda at: ExporterCollector(node[at]), app, latest)
    small = [exporter_snapshot(1, RANKS_PER_NODE, seed) for seed in range(SCRAPES)]
    for level in LEVELS:
        app = make_app(lambda: small[latest[0]], level=level)
        collector = partial(_collector, small, level)
        yield {"page": f"exporter, {RANKS_PER_NODE} ranks, level {level}"} | _page(collector, app, latest)
    runs, ranks = 20, 10_240
    head = [coordinator_snapshot(runs, ranks, seed) for seed in range(SCRAPES)]
    latest = [0]
    app = _coordinator_app(lambda: head[latest[0]])
    yield {"page": f"coordinator, {runs} runs of {ranks} ranks"} | _page(
        lambda at: CoordinatorCollector(head[at]), app, latest
    )


def _collector(node: list[NodeSnapshot], level: Level, at: int) -> ExporterCollector:
    return ExporterCollector(node[at], level=level)


def _page(collector: Callable[[int], Any], app: web.Application, latest: list[int]) -> dict[str, Any]:
    """Return what the texts of all snapshots cost; `latest` is the index of the newest for the application."""
    rendered_ms = []
    for at in range(SCRAPES):
        begin_s = time.process_time()
        page = render(collector(at), "text")
        rendered_ms.append((time.process_time() - begin_s) * _MS)
    series = sum(1 for line in page.splitlines() if not line.startswith(b"#"))
    return {"series": series, "bytes": len(page), "render_ms": statistics.median(rendered_ms)} | asyncio.run(
        _scrapes(app, latest)
    )


def _coordinator_app(snapshot: Callable[[], Snapshot]) -> web.Application:
    """Return the coordinator's answer to scrapes without the rest of it."""
    app = web.Application()
    app[SERVICES] = cast("Services", SimpleNamespace(snapshot=snapshot))
    app[EXPOSITIONS] = ResponseCache(EXPOSITIONS_MAX)
    app.add_routes([web.get("/metrics", metrics)])
    return app


async def _scrapes(app: web.Application, latest: list[int]) -> dict[str, float]:
    longest_s, wall_ms, cpu_ms = [0.0], [], []

    async def ask() -> None:
        before_s = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now_s = time.perf_counter()
            longest_s[0] = max(longest_s[0], now_s - before_s - 0.001)
            before_s = now_s

    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        asking = asyncio.create_task(ask())
        for at in range(SCRAPES):
            latest[0] = at
            begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
            async with session.get(server.make_url("/metrics"), headers=_SCRAPER, auto_decompress=False) as answer:
                sent_bytes = len(await answer.read())
            wall_ms.append((time.perf_counter() - begin_s) * _MS)
            cpu_ms.append((time.process_time() - begin_cpu_s) * _MS)
        asking.cancel()
    return {
        "scrape_ms": statistics.median(wall_ms),
        "scrape_max_ms": max(wall_ms),
        "scrape_cpu_ms": statistics.median(cpu_ms),
        "freeze_ms": longest_s[0] * _MS,
        "sent_bytes": sent_bytes,
    }


def queries() -> dict[str, bool]:
    """Return each distinct query of the dashboards, and whether it asks for one moment only.

    All but those for exporters below level full: the run's exporters have every series by rank, which costs more.
    """
    boards = [json.loads(text) for text in catalogue.render().values()]
    targets = [t for board in boards for panel in board["panels"] for t in panel.get("targets", [])]
    return {_filled(target): target["instant"] for target in targets if OF_NODE not in target["expr"]}


def _filled(target: dict[str, Any]) -> str:
    expr: str = target["expr"]
    # Where a device is found by its place, it is because the rank knows no UUID.
    rank = UNNAMED_RANK if target["legendFormat"].startswith("its local rank's") else ASKED_RANK
    values = {"$__rate_interval": f"{4 * SCRAPE_SECONDS}s", "$__range": "8m", "$hostname": ".+", "$cluster": ".*"}
    values["$rank"] = str(rank)
    for name, value in values.items():
        expr = expr.replace(name, value)
    return expr.replace("$run", RUN)


def measure_queries(folder: Path, ranks: int) -> dict[str, Any]:
    """Return what filling took, and (seconds, series, query) of each query, the slowest first."""
    asked = queries()
    names = {name for query in asked for name in re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", query)}
    start_unix_s = int(time.time()) - SPAN_SECONDS - SCRAPE_SECONDS
    text = folder / "run.txt"
    begin_s = time.perf_counter()
    with text.open("w") as file:
        samples = 0
        for lines, count in openmetrics(names, ranks, start_unix_s, SPAN_SECONDS):
            file.write(lines)
            samples += count
    command = ["promtool", "tsdb", "create-blocks-from", "--quiet", "openmetrics", str(text), str(folder / "tsdb")]
    subprocess.run(command, check=True, capture_output=True)
    text.unlink()
    filled_s = time.perf_counter() - begin_s
    end_unix_s = start_unix_s + SPAN_SECONDS
    with servers.prometheus(folder, "global: {scrape_interval: 15s}") as url:
        timed = sorted((_least(url, query, instant, end_unix_s) for query, instant in asked.items()), reverse=True)
    return {"ranks": ranks, "samples": samples, "filled_s": filled_s, "queries": timed}


def _least(url: str, query: str, instant: bool, end_unix_s: int) -> tuple[float, int, str]:  # noqa: FBT001
    """Ask; what is over the budget twice more, for it may be other work of this machine that took the time."""
    first = _ask(url, query, instant, end_unix_s)
    again = 2 if first[0] > QUERY_BUDGET_S else 0
    return min([first, *(_ask(url, query, instant, end_unix_s) for _ in range(again))])


def _ask(url: str, query: str, instant: bool, end_unix_s: int) -> tuple[float, int, str]:  # noqa: FBT001
    window = (
        f"time={end_unix_s}" if instant else f"start={end_unix_s - SPAN_SECONDS}&end={end_unix_s}&step={SCRAPE_SECONDS}"
    )
    path = "query" if instant else "query_range"
    begin_s = time.perf_counter()
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{window}&query={quote(query)}", timeout=_TIMEOUT_S) as reply:  # noqa: S310  (loopback)
        answer = json.load(reply)
    seconds = time.perf_counter() - begin_s
    return seconds, len(answer["data"]["result"]), query


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metrics_cost", description=__doc__)
    parser.add_argument(
        "--ranks", type=int, default=10_240, help="ranks of the run that the dashboards are asked about"
    )
    arguments = parser.parse_args()
    is_over = count_series()
    for page in measure_pages():
        print(
            f"{page['page']}: {page['series']} series, {page['bytes'] / 1e3:.0f} kB, "
            f"{page['sent_bytes'] / 1e3:.0f} kB sent; render {page['render_ms']:.1f} "
            f"CPU ms; scrape {page['scrape_ms']:.1f} ms (longest {page['scrape_max_ms']:.1f}), "
            f"{page['scrape_cpu_ms']:.1f} CPU ms with the client's; loop frozen {page['freeze_ms']:.1f} ms at most"
        )
    with tempfile.TemporaryDirectory() as folder:
        found = measure_queries(Path(folder), arguments.ranks)
    timed = found["queries"]
    print(
        f"\n{found['ranks']} ranks, {found['samples'] / 1e6:.1f} million samples, filled in {found['filled_s']:.0f} s"
    )
    over = sum(seconds > QUERY_BUDGET_S for seconds, _, _ in timed)
    empty = [query for _, series, query in timed if series == 0]
    print(f"{len(timed)} queries, {len(empty)} without data, {over} over {QUERY_BUDGET_S:g} s; the slowest:")
    for seconds, series, query in timed[:SLOWEST_SHOWN]:
        print(f"{seconds * _MS:8.0f} ms {series:6} series  {' '.join(query.split())[:150]}")
    for query in empty:
        print(f"without data: {' '.join(query.split())}")
    return int(is_over or over > 0 or bool(empty))


if __name__ == "__main__":
    sys.exit(main())
