"""The HTML pages and their static files. Pages are rendered on a thread and shared by all clients."""

import asyncio
import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

from aiohttp import web

from coordinator.api.response_cache import CachedWork, ResponseCache
from coordinator.api.services import SERVICES, hosts_of
from coordinator.decide.incidents import CLOSED
from coordinator.page import CLOSED_MAX, assets, render_page
from coordinator.page.heat import slowest
from coordinator.page.incident_list import SHOWN_MAX as INCIDENTS_SHOWN
from coordinator.page.incident_list import render_incidents
from coordinator.page.lines import NODE, kinds_of, spans_text
from coordinator.page.run_page import CAPTURES_SHOWN, RunView, render_run, render_unknown
from coordinator.page.run_page import CLOSED_MAX as CLOSED_OF_RUN_MAX

if TYPE_CHECKING:
    from coordinator.api.services import Services
    from coordinator.decide.explain import ExplanationContext
    from coordinator.decide.incidents import Incident
    from coordinator.run import Run
    from coordinator.snapshot import Snapshot

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: only files and responses of this server. A second defence in addition to escaping."""
PAGES: web.AppKey[ResponseCache] = web.AppKey("pages", ResponseCache)
KEPT_MAX = 64
"""Cached pages, of 50 KB each, at most 300 KB."""
_NOT_FOUND = web.HTTPNotFound.status_code
_DOMAINS_MAX = 64  # domains of a kind that are listed on a page; 6 KB each


async def overview(request: web.Request) -> web.Response:
    """Show all runs."""
    services = request.app[SERVICES]
    closed = await asyncio.to_thread(services.store.incidents, state=CLOSED, limit=CLOSED_MAX)

    def read_inputs() -> CachedWork:
        snapshot, config = services.snapshot(), services.control.config
        hosts = hosts_of(services.runs.by_name.values())
        return CachedWork(
            (snapshot.runs, *_header_inputs(snapshot), closed, config, hosts),
            lambda: _encoded(render_page(snapshot, closed, config, hosts)),
        )

    return await request.app[PAGES].answer(request, "", read_inputs, content_type="text/html")


async def incidents(request: web.Request) -> web.Response:
    """Show the incidents of all runs."""
    services = request.app[SERVICES]
    closed = await asyncio.to_thread(services.store.incidents, state=CLOSED, limit=INCIDENTS_SHOWN)

    def read_inputs() -> CachedWork:
        snapshot, config = services.snapshot(), services.control.config
        found = [each for known in services.runs.by_name.values() for each in known.machine.tracker.incidents.values()]
        return CachedWork(
            (found, *_header_inputs(snapshot), closed, config),
            lambda: _encoded(render_incidents([*found, *closed], snapshot, config)),
        )

    return await request.app[PAGES].answer(request, "incidents", read_inputs, content_type="text/html")


async def run(request: web.Request) -> web.Response:
    """Show one run."""
    services, name = request.app[SERVICES], request.match_info["run"]
    found = services.runs.by_name.get(name)
    closed = await asyncio.to_thread(services.store.incidents, run=name, state=CLOSED, limit=CLOSED_OF_RUN_MAX)
    if found is None:
        text = render_unknown(name, closed, services.snapshot(), services.control.config)
        return web.Response(body=_encoded(text), content_type="text/html", charset="utf-8", status=_NOT_FOUND)
    read_inputs = functools.partial(_read_inputs, services, found, closed)
    return await request.app[PAGES].answer(request, f"run {name}", read_inputs, content_type="text/html")


def _read_inputs(services: "Services", found: "Run", closed: "list[Incident]") -> CachedWork:
    """Return the inputs of the page of a run; work that is linear in the ranks is left to the thread."""
    snapshot, config, manager = services.snapshot(), services.control.config, found.machine.captures
    known = [*([manager.current] if manager.current else []), *reversed(manager.past)][:CAPTURES_SHOWN]
    values: dict[str, Any] = {
        "run": services.runs.snapshot_of(found),
        "captures": [capture.progress() for capture in known],
        "closed": closed,
        "profile_steps": found.policy.profile.steps,
        "hosts": hosts_of((found,)),
    }
    scene = found.scene if found.topology is not None else None

    def make() -> bytes:
        return _encoded(render_run(RunView(**values, **_of_scene(scene)), snapshot, config))

    return CachedWork((values, found.generation, *_header_inputs(snapshot), config), make)


def _header_inputs(snapshot: "Snapshot") -> tuple[object, ...]:
    """Return the inputs of the header of every page."""
    return snapshot.is_connected, snapshot.nodes_alive, dict(snapshot.records_lost)


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")


async def static(request: web.Request) -> web.Response:
    """Return a file of the pages."""
    known = assets.found(request.match_info["digest"], request.match_info["name"])
    if known is None:
        raise web.HTTPNotFound
    body, kind = known
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)


def _of_scene(scene: "ExplanationContext | None") -> dict[str, Any]:
    """Return the inputs that depend on all ranks or domains: milliseconds for a large run, so off the event loop."""
    if scene is None:
        return {"slowest": [], "kinds": [NODE], "domains": {}, "domain_counts": {}}
    domains: dict[str, list[tuple[str, str]]] = {}
    counts = Counter(domain.kind for domain in scene.topology.domains)
    for domain in scene.topology.domains:
        shown = domains.setdefault(domain.kind, [])
        if len(shown) < _DOMAINS_MAX:
            shown.append((domain.name, spans_text(domain.ranks)))
    return {"slowest": slowest(scene), "kinds": kinds_of(scene), "domains": domains, "domain_counts": dict(counts)}
