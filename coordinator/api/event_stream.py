"""Server-sent events: they report that something has changed, not what; the page then requests what it shows.

A listener gets at most one event a second, and only the newest one, so that a slow listener costs one line of memory.
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
"""At the same time; each is a connection. A page that is refused polls every few seconds instead."""
RUNS_MAX = 256  # in one event; 20 KB
_PERIOD_S = 1.0
_EVENTS = "events"
_KEEPALIVE_S = 15.0  # proxies close what is silent for a minute
_SEND_S = 10.0  # a listener that takes no byte for so long is gone
_RETRY_MS = 5000  # after which a browser comes back


@dataclass(eq=False, slots=True)
class Listener:
    """One connection. `run` is the only run it gets events of, empty for all.

    `offered` is the last event for it, `newest` the same until it is sent.
    """

    run: str = ""
    newest: bytes | None = None
    offered: bytes = b""
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Broadcast:
    """All listeners. `look` returns what is known of the runs now, cheaply; it is called on the event loop.

    `isolation` counts the looks that failed; the next one is a second later.
    """

    def __init__(self, look: Callable[[], list[dict[str, Any]]]) -> None:
        self._look = look
        self.listeners: set[Listener] = set()
        self.is_closing = False
        self.isolation = FaultIsolation((_EVENTS,), failures_max=sys.maxsize)
        self._changed = asyncio.Event()

    def add(self, run: str) -> Listener:
        """Return a new listener, whose first event is due at once.

        Raises
        ------
        ApiError
            There are too many, or the coordinator is ending.
        """
        if self.is_closing or len(self.listeners) >= LISTENERS_MAX:
            raise ApiError(web.HTTPServiceUnavailable.status_code, f"events: {LISTENERS_MAX} listen already")
        listener = Listener(run)
        self.listeners.add(listener)
        self._changed.set()
        self._offer(self._look(), (listener,))
        return listener

    def discard(self, listener: Listener) -> None:
        """Forget one that went away."""
        self.listeners.discard(listener)

    def publish(self) -> None:
        """Offer what is known now to every listener whose last event differs."""
        if self.listeners:
            self._offer(self._look(), self.listeners)

    def _offer(self, known: list[dict[str, Any]], listeners: Iterable[Listener]) -> None:
        text_of: dict[str, bytes] = {}
        for listener in listeners:
            if listener.run not in text_of:
                own = [each for each in known if listener.run in ("", each["run"])][:RUNS_MAX]
                text = json.dumps({"runs": own}, separators=(",", ":"))  # one line: JSON has its breaks escaped
                text_of[listener.run] = f"event: runs\ndata: {text}\n\n".encode()
            if text_of[listener.run] != listener.offered:
                listener.newest = listener.offered = text_of[listener.run]
                listener.woken.set()

    async def run(self) -> None:
        """Publish once a second while anyone listens; ends by cancellation."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(_PERIOD_S)
            with self.isolation.guard(_EVENTS, "", asyncio.get_running_loop().time()):
                self.publish()
            if not self.listeners:
                self._changed.clear()

    def close(self) -> None:
        """Let all connections end."""
        self.is_closing = True
        for listener in self.listeners:
            listener.woken.set()


BROADCAST: web.AppKey[Broadcast] = web.AppKey("broadcast", Broadcast)


def install(app: web.Application) -> None:
    """Add the listeners to an application; they end before its connections are closed."""
    app[BROADCAST] = Broadcast(lambda: [digest(run) for run in app[SERVICES].runs.by_name.values()])
    app.cleanup_ctx.append(_broadcasting)
    app.on_shutdown.append(_close)


async def listen(request: web.Request) -> web.StreamResponse:
    """Send events of all runs, or of the one that `run` names, until either side ends."""
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
    """Return what shows whether a page of this run is stale."""
    machine = run.machine
    step_result, desk = machine.step_result, machine.captures
    captures = [_stage_of(each) for each in (desk.current, *desk.past) if each is not None]
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
