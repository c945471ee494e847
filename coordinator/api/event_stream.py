"""Server-sent events, which report that something has changed, not what; the page then reloads what it shows.

A listener gets at most one event a second, and only the newest one, so a slow listener costs the memory of one event.
Nothing is computed while no one listens.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

from aiohttp import web

from coordinator.api.services import SERVICES, ApiError
from lockstep.serving.fault_isolation import FaultIsolation

if TYPE_CHECKING:
    from coordinator.decide.capture import Capture
    from coordinator.decide.incidents import Incident
    from coordinator.run import Run

LISTENERS_MAX = 64
"""Concurrent listeners; each is a connection. A page that is refused polls every few seconds instead."""
RUNS_MAX = 256  # runs in one event; 20 KB
_PERIOD_S = 1.0
_EVENTS = "events"
_KEEPALIVE_S = 15.0  # proxies close connections that are silent for a minute
_SEND_S = 10.0  # a listener that accepts no byte for this long is gone
_RETRY_MS = 5000  # delay after which a browser reconnects


@dataclass(eq=False, slots=True)
class Listener:
    """One connection. `run` is the only run of which it gets events; empty for all runs.

    `offered` is the last event offered to it; `newest` is the same event until it is sent, then None.
    """

    run: str = ""
    newest: bytes | None = None
    offered: bytes = b""
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Broadcast:
    """All listeners. `digest_runs` returns digests of all runs; it is called on the event loop and must be cheap.

    `isolation` counts failed calls, which are repeated a second later.
    """

    def __init__(self, digest_runs: Callable[[], list[dict[str, Any]]]) -> None:
        self._digest_runs = digest_runs
        self.listeners: set[Listener] = set()
        self.is_closing = False
        self.isolation = FaultIsolation((_EVENTS,), failures_max=sys.maxsize)
        self._changed = asyncio.Event()

    def add(self, run: str) -> Listener:
        """Add a listener and return it; its first event is due at once.

        Raises
        ------
        ApiError
            There are too many listeners, or the coordinator is shutting down.
        """
        if self.is_closing or len(self.listeners) >= LISTENERS_MAX:
            raise ApiError(web.HTTPServiceUnavailable.status_code, f"events: {LISTENERS_MAX} listen already")
        listener = Listener(run)
        self.listeners.add(listener)
        self._changed.set()
        self._offer(self._digest_runs(), (listener,))
        return listener

    def discard(self, listener: Listener) -> None:
        """Remove a listener whose client has gone."""
        self.listeners.discard(listener)

    def publish(self) -> None:
        """Offer the current digests to every listener whose last event differs."""
        if self.listeners:
            self._offer(self._digest_runs(), self.listeners)

    def _offer(self, known: list[dict[str, Any]], listeners: Iterable[Listener]) -> None:
        text_of: dict[str, bytes] = {}
        for listener in listeners:
            if listener.run not in text_of:
                own = [each for each in known if listener.run in ("", each["run"])][:RUNS_MAX]
                text = json.dumps({"runs": own}, separators=(",", ":"))  # one line: JSON escapes line breaks
                text_of[listener.run] = f"event: runs\ndata: {text}\n\n".encode()
            if text_of[listener.run] != listener.offered:
                listener.newest = listener.offered = text_of[listener.run]
                listener.woken.set()

    async def run(self) -> None:
        """Publish once a second while there are listeners, until cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(_PERIOD_S)
            with self.isolation.guard(_EVENTS, "", asyncio.get_running_loop().time()):
                self.publish()
            if not self.listeners:
                self._changed.clear()

    def close(self) -> None:
        """End all connections."""
        self.is_closing = True
        for listener in self.listeners:
            listener.woken.set()


BROADCAST: web.AppKey[Broadcast] = web.AppKey("broadcast", Broadcast)


def install(app: web.Application) -> None:
    """Install the broadcast in an application; its listeners end before the application closes connections."""
    app[BROADCAST] = Broadcast(lambda: [digest(run) for run in app[SERVICES].runs.by_name.values()])
    app.cleanup_ctx.append(_broadcasting)
    app.on_shutdown.append(_close)


async def listen(request: web.Request) -> web.StreamResponse:
    """Stream events of all runs, or of the run named by `run`, until either side closes the connection."""
    broadcast = request.app[BROADCAST]
    listener = broadcast.add(request.query.get("run", ""))
    response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
    response.content_type = "text/event-stream"
    try:
        await response.prepare(request)
        await response.write(f"retry: {_RETRY_MS}\n\n".encode())
        while not broadcast.is_closing:
            await _send_next(response, listener)
    except (ConnectionError, TimeoutError):
        pass  # the client has gone, which is how every connection of this kind ends
    finally:
        broadcast.discard(listener)
    return response


async def _send_next(response: web.StreamResponse, listener: Listener) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_KEEPALIVE_S):
            await listener.woken.wait()
    listener.woken.clear()
    text, listener.newest = listener.newest, None
    async with asyncio.timeout(_SEND_S):
        await response.write(text or b": still here\n\n")


def digest(run: "Run") -> dict[str, Any]:
    """Return the values by which a page of this run detects that it is stale."""
    machine = run.machine
    step_result, manager = machine.step_result, machine.captures
    captures = [_stage_of(each) for each in (manager.current, *manager.past) if each is not None]
    return {
        "run": run.name,
        "state": str(machine.state),
        "step": step_result.step if step_result else None,
        "open": len(machine.tracker.incidents),
        "revision": _revision([_of(each) for each in machine.tracker.incidents.values()]),
        "captures": _revision(captures),
    }


def _of(incident: "Incident") -> tuple[object, ...]:
    summary = (incident.kind, incident.cause, incident.ranks[:8], len(incident.ranks), incident.function)
    return (incident.id, *summary, incident.diagnosed, bool(incident.explanation), incident.predicted_gain)


def _stage_of(capture: "Capture") -> tuple[object, ...]:
    delivered = sorted(capture.summaries), sorted(capture.refused)
    return (capture.request_id, *delivered, sorted(capture.states.items()), capture.ended_s, capture.diagnosis is None)


def _revision(summary: list[tuple[object, ...]]) -> int:
    return crc32(repr(summary).encode(errors="replace"))


async def _broadcasting(app: web.Application) -> AsyncIterator[None]:
    task = asyncio.create_task(app[BROADCAST].run(), name="events")
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _close(app: web.Application) -> None:
    app[BROADCAST].close()
