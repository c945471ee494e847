"""The rank x step heat map of a run, rendered once per step and shared by all clients."""

import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

from coordinator.api.response_cache import CachedWork, ResponseCache
from coordinator.api.services import BAD, ApiError, known_run
from coordinator.page.heat import heat_map
from coordinator.page.lines import NODE, kinds_of

if TYPE_CHECKING:
    from coordinator.decide.explain import ExplanationContext
    from coordinator.decide.incidents import Incident
    from coordinator.run import Run

KEPT_MAX = 32
"""Cached maps, at most 400 KB each."""
HEAT_MAPS: web.AppKey[ResponseCache] = web.AppKey("heat_maps", ResponseCache)


async def show(request: web.Request) -> web.Response:
    """Show own work and waits of the last steps by rank; `by` groups the ranks by node or by a kind of domain."""
    run, by = known_run(request), request.query.get("by", NODE)
    maps = request.app[HEAT_MAPS]
    if run.topology is None:
        return web.json_response({"run": run.name, "steps": [], "ranks": 0})
    kinds = kinds_of(run.scene)
    if by not in kinds:
        raise ApiError(BAD, f"by: got {by!r:.50}, expected one of {', '.join(kinds)}")
    return await maps.answer(request, f"{by} {run.name}", lambda: _work(run, by), content_type="application/json")


def _work(run: "Run", by: str) -> CachedWork:
    scene, incidents = run.scene, tuple(run.machine.tracker.incidents.values())
    drawn = [(each.id, each.kind, each.cause, each.onset_step, each.ranks) for each in incidents]
    inputs = (run.generation, scene.rows[-1].step if scene.rows else None, len(scene.topology.stages), drawn)
    return CachedWork(inputs, lambda: _made(run.name, scene, incidents, by))


def _made(name: str, scene: "ExplanationContext", incidents: "tuple[Incident, ...]", by: str) -> bytes:
    body: dict[str, Any] = {"run": name, "group_kinds": kinds_of(scene), **heat_map(scene, incidents, by)}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(errors="replace")
