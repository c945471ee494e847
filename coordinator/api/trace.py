"""The last steps of a run as a Perfetto trace, rendered once per step and shared by all clients."""

import json
from typing import TYPE_CHECKING

from aiohttp import web

from coordinator.api.response_cache import CachedWork, ResponseCache
from coordinator.api.services import ApiError, known_run
from coordinator.page.steps_trace import ranks_drawn, steps_trace

if TYPE_CHECKING:
    from coordinator.decide.explain import ExplanationContext
    from coordinator.decide.incidents import Incident

KEPT_MAX = 8
"""Cached traces, at most 2 MB each."""
TRACES: web.AppKey[ResponseCache] = web.AppKey("traces", ResponseCache)


async def show(request: web.Request) -> web.Response:
    """Show the recent steps of an open incident's ranks and peers with `incident`, else of the slowest ranks."""
    run, wanted = known_run(request), request.query.get("incident", "")
    found = run.machine.tracker.incidents
    if wanted and wanted not in found:
        raise ApiError(
            web.HTTPNotFound.status_code,
            f"incident: got {wanted!r:.200}, expected an open one of run {run.name}; steps of closed ones are gone",
        )

    def read_inputs() -> CachedWork:
        scene = run.scene if run.topology is not None else None
        one = found.get(wanted)
        shown = tuple(found.values()) if one is None else (one,)
        drawn = [(each.id, each.cause, each.onset_step, each.ranks) for each in shown]
        inputs = (run.generation, scene.rows[-1].step if scene and scene.rows else None, drawn)
        return CachedWork(inputs, lambda: _made(run.name, scene, shown, one))

    key = f"{wanted} {run.name}"
    answer = await request.app[TRACES].answer(request, key, read_inputs, content_type="application/json")
    answer.headers["Content-Disposition"] = 'attachment; filename="lockstep-steps.json"'
    return answer


def _made(
    name: str, scene: "ExplanationContext | None", shown: "tuple[Incident, ...]", one: "Incident | None"
) -> bytes:
    body: dict[str, object] = {"traceName": name, "traceEvents": []}
    if scene is not None and scene.rows:
        body = steps_trace(scene, shown, ranks_drawn(scene, one), name)
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(errors="replace")
