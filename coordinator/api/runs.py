"""The current state of runs, their ranks and domains."""

import asyncio
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aiohttp import web

from coordinator.api.services import SERVICES, ApiError, known_run
from coordinator.detect.ranks.components import medians
from coordinator.detect.scope import is_watched

if TYPE_CHECKING:
    from coordinator.runs import Run, Runs

_RANKS_MAX = 4096  # ranks listed in one response: 1 MB; the others are counted
_STEPS = 10  # last steps over which medians are taken: more would no longer show the present


async def list_runs(request: web.Request) -> web.Response:
    """List the runs."""
    runs = request.app[SERVICES].runs
    return web.json_response({"runs": [_head(runs, run) for run in runs.by_name.values()]})


async def show_run(request: web.Request) -> web.Response:
    """Show one run with its ranks, domains and the names of its devices."""
    run = known_run(request)
    runs = request.app[SERVICES].runs
    if run.machine.step_result is None:
        raise ApiError(web.HTTPNotFound.status_code, f"run {run.name}: no step has been completed yet")
    return web.json_response(_head(runs, run) | await asyncio.to_thread(_detail, run))


def _head(runs: "Runs", run: "Run") -> dict[str, Any]:
    snapshot = runs.snapshot_of(run)
    step_result = run.machine.step_result
    return {
        "run": run.name,
        "state": snapshot.state,
        "watched": is_watched(run.name, run.policy.scope.runs),
        "step": snapshot.step,
        "last_step_unix_seconds": snapshot.last_step_unix_s,
        "world_size": snapshot.world_size,
        "ranks_reporting": snapshot.ranks_reporting,
        "ranks_blind": snapshot.ranks_blind,
        "recent_step_seconds": snapshot.recent_step_seconds,
        "baseline_step_seconds": snapshot.baseline_step_seconds,
        "mean_over_best_ratio": step_result.mean_over_best_ratio if step_result else None,
        "fluctuating": snapshot.fluctuating,
        "slow_ranks": run.machine.tracker.slow_ranks,
        "earlier": asdict(snapshot.earlier) if snapshot.earlier else None,
        "expected": run.expectation.to_json(snapshot.recent_step_seconds),
        "incidents_open": [incident.id for incident in snapshot.incidents],
        "lost_device_seconds": snapshot.lost_device_seconds,
    }


def _detail(run: "Run") -> dict[str, Any]:
    """Return ranks, domains, devices; call it off the event loop, as there are thousands (rows are immutable)."""
    topology, detector = run.topology, run.detector
    ranks: list[dict[str, Any]] = []
    rows = list(detector.recent_rows)[-_STEPS:] if detector else []
    if rows:
        parts = medians(rows)
        for column, rank in enumerate(rows[-1].ranks[:_RANKS_MAX]):
            values = {f"{name}_seconds": _number(value[column]) for name, value in parts.items()}
            ranks.append({"rank": int(rank), "hostname": run.hostname(int(rank)), **values})
    domains = [{"kind": d.kind, "id": d.name, "ranks": list(d.ranks)} for d in topology.domains] if topology else []
    return {
        "ranks": ranks,
        "ranks_omitted": max(0, len(run.timeline.ranks) - _RANKS_MAX),
        "domains": domains[:_RANKS_MAX],
        "devices": run.workload.devices,
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
