"""What the coordinator's page costs with 20 runs of 10,240 ranks: CPU per answer, bytes, and how long the loop stood.

The longest stand of the event loop is what other work waits: messages, scrapes. Judging one step of such a run takes
2 ms there, so stands of that length are the measure. Run with `python -m benchmarks.web_page_cost`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from coordinator.api.event_stream import BROADCAST, digest
from coordinator.api.heatmap import HEAT_MAPS
from coordinator.api.pages import PAGES
from coordinator.intake.timeline import StepRow
from coordinator.record.step_series import StepSeries
from lockstep.contracts.domains import pack_ranks
from lockstep.contracts.messages import GroupInfo
from tests.coordinator.conftest import announce
from tests.coordinator.scenarios import Scenario, generate
from tests.coordinator.test_runs import NOW
from tests.coordinator.web import Site

RUNS, STEPS, NODE_RANKS = 20, 26, 64
TICK_S = 0.001
LISTENERS = 64


def fill(site: Site) -> None:
    """Give the site 20 runs of 10,240 ranks with a slow one; all share the steps of the first."""
    recording = generate(
        Scenario(degrees="tp=8,dp=160,pp=8", steps=STEPS).with_fault("data", 7777, seconds=0.2, begin=9)
    )
    world = recording.topology.world_size
    for first in range(0, world, NODE_RANKS):
        own = [each for each in recording.topology.domains if first <= each.ranks[0] < first + NODE_RANKS]
        groups = [GroupInfo(kind=each.kind, name=each.name, ranks=pack_ranks(each.ranks)) for each in own]
        ranks = range(first, first + NODE_RANKS)
        site.runs.take(announce(*ranks, world=world, run="run-0", node=f"n{first}", groups=groups), NOW)
    for step in range(STEPS):
        batches = [
            recording.batch(step, step + 1, run="run-0", ranks=range(first, first + NODE_RANKS), node=f"n{first}")
            for first in range(0, world, NODE_RANKS)
        ]
        site.runs.take_batches(batches, NOW + step)
    run = site.runs.by_name["run-0"]
    assert run.detector is not None
    assert len(run.detector.recent_rows) >= STEPS - 1
    print_series_cost(run.detector.recent_rows[-1])
    site.runs.by_name = {f"run-{number}": replace(run, name=f"run-{number}") for number in range(RUNS)}


def print_series_cost(row: StepRow) -> None:
    """Print what a step adds to the series of its run, with steps of 0.01 s and of 1 s."""
    for step_s in (0.01, 1.0):
        series, steps = StepSeries(), round(3600 / step_s) if step_s == 1 else 20_000
        begin = time.thread_time()
        for step in range(steps):
            series.observe(replace(row, step=step, end_unix_s=NOW + step * step_s), step_s, lambda: None)
        cost_us = (time.thread_time() - begin) / steps * 1e6
        print(f"series, steps of {step_s} s: {cost_us:.1f} us each, {len(series.complete())} intervals")


async def stands(work: Callable[[], Awaitable[object]]) -> tuple[float, float, list[float]]:
    """Return wall seconds, CPU seconds and the stands of the loop while `work` is done, longest first."""
    gaps: list[float] = []

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(TICK_S)
            gaps.append(time.perf_counter() - before - TICK_S)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.05)
    gaps.clear()
    begin, cpu = time.perf_counter(), time.process_time()
    await work()
    wall, used = time.perf_counter() - begin, time.process_time() - cpu
    await asyncio.sleep(0)
    ticking.cancel()
    return wall, used, sorted(gaps, reverse=True) or [0.0]


async def answers(site: Site, paths: list[str]) -> int:
    """Ask for all paths at once; return the bytes."""

    async def one(path: str) -> int:
        async with site.client.get(path) as response:
            assert response.status == 200, await response.text()
            return len(await response.read())

    return sum(await asyncio.gather(*map(one, paths)))


async def main() -> None:
    """Measure and print."""
    async with Site() as site:
        fill(site)
        runs = [f"run-{number}" for number in range(RUNS)]
        asked = {
            "overview x 20": ["/"] * 20,
            "20 run pages": [f"/runs/{run}" for run in runs],
            "20 maps by node": [f"/api/v1/runs/{run}/heatmap" for run in runs],
            "20 maps by tp": [f"/api/v1/runs/{run}/heatmap?by=tp" for run in runs],
            "20 series": [f"/api/v1/runs/{run}/series" for run in runs],
            "the same map x 20": [f"/api/v1/runs/{runs[0]}/heatmap?by=dp"] * 20,
        }
        print(f"{'answers':20} {'wall s':>7} {'cpu ms each':>12} {'KB each':>8} {'loop stood, longest ms':>24}")
        for name, paths in asked.items():
            sizes: list[int] = []

            async def work(paths: list[str] = paths, sizes: list[int] = sizes) -> None:
                sizes.append(await answers(site, paths))

            wall, used, gaps = await stands(work)
            longest = ", ".join(f"{gap * 1e3:.1f}" for gap in gaps[:4])
            cost, size = used * 1e3 / len(paths), sizes[0] / len(paths) / 1e3
            print(f"{name:20} {wall:7.2f} {cost:12.1f} {size:8.1f} {longest:>24}")
        maps = site.app[HEAT_MAPS]
        print(f"maps kept: {maps.bytes_kept / 1e6:.1f} MB, pages: {site.app[PAGES].bytes_kept / 1e6:.1f} MB")
        begin = time.perf_counter()
        for _ in range(100):
            [digest(run) for run in site.runs.by_name.values()]
        print(f"one look for the events: {(time.perf_counter() - begin) * 10:.3f} ms")
        broadcast = site.app[BROADCAST]
        _ = [broadcast.add(runs[number % RUNS]) for number in range(LISTENERS)]
        begin = time.perf_counter()
        for _ in range(100):
            broadcast.publish()
        print(f"publishing to {LISTENERS} listeners: {(time.perf_counter() - begin) * 10:.3f} ms")


if __name__ == "__main__":
    asyncio.run(main())
