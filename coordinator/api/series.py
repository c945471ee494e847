"""Step time, parts, throughput and MFU of a run over time, rendered once per interval and shared by all clients."""

import json

from aiohttp import web

from coordinator.api.response_cache import CachedWork, ResponseCache
from coordinator.api.services import BAD, SERVICES, ApiError, known_run
from coordinator.decide.incidents import CLOSED
from coordinator.page.incident_timeline import TIMELINE_MAX, incident_timeline
from coordinator.record.step_series import INTERVALS_MAX, select_intervals, series_to_json

KEPT_MAX = 32
"""Cached responses, at most 400 KB each."""
SERIES: web.AppKey[ResponseCache] = web.AppKey("series", ResponseCache)
_STEP_MAX = (1 << 62) - 1


async def show_series(request: web.Request) -> web.Response:
    """Show step time, parts, throughput and MFU of a run by interval, and its incidents; older intervals are longer."""
    run = known_run(request)
    since_step = _whole(request, "since_step", default=0, low=0, high=_STEP_MAX)
    max_intervals = _whole(request, "points", default=INTERVALS_MAX, low=1, high=INTERVALS_MAX)

    store, machine = request.app[SERVICES].store, run.machine

    def read_inputs() -> CachedWork:
        found, complete = tuple(machine.tracker.incidents.values()), run.series.complete()
        ranks = len(run.timeline.ranks)
        step_result = machine.step_result
        baseline_s = step_result.baseline_step_seconds if step_result else None
        step_s = (step_result.recent_step_seconds or step_result.step_seconds) if step_result else 0.0
        head = {"run": run.name, "ranks": ranks, "baseline_step_seconds": baseline_s}

        def make() -> bytes:
            closed = store.incidents(run=run.name, state=CLOSED, limit=TIMELINE_MAX)
            listed = incident_timeline((*found, *closed), complete, step_s)
            chosen = select_intervals(complete, since_step=since_step, max_intervals=max_intervals)
            body = {**head, "points": series_to_json(chosen), "incidents": listed}
            return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(errors="replace")

        drawn = [(each.id, each.cause, each.onset_step, each.ranks) for each in found]
        return CachedWork((id(run), run.series.changes, ranks, drawn, machine.tracker.incidents_total), make)

    name = f"{since_step} {max_intervals} {run.name}"
    return await request.app[SERIES].answer(request, name, read_inputs, content_type="application/json")


def _whole(request: web.Request, name: str, *, default: int, low: int, high: int) -> int:
    """Return an integer parameter of the query.

    Raises
    ------
    ApiError
        It is not a whole number, or out of its range.
    """
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < len(str(_STEP_MAX)) + 1 and low <= int(text) <= high):
        raise ApiError(BAD, f"{name}: got {text!r:.50}, expected a whole number from {low} to {high}")
    return int(text)
