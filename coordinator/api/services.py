"""What handlers have access to, and how they reject requests.

Each error names the parameter, the value got and expected.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

from aiohttp import web

from coordinator.fleet.history import FleetHistory
from coordinator.settings.control import Control, ReloadResult
from coordinator.settings.specs import Specs

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from coordinator.intake.streams import Streams
    from coordinator.runs import Orders, Run, Runs
    from coordinator.snapshot import Snapshot
    from coordinator.store import Store

BAD = web.HTTPBadRequest.status_code
_PLACED = frozenset({"rank", "node"})  # scopes whose host is known
_RUNS_NAMED = 5  # runs that the error for an unknown run names
_RANKS_PLACED, _HOSTS_SHOWN, _HOST_MAX = 64, 4, 64  # ranks looked up, hosts shown, characters of a host


@dataclass(frozen=True, kw_only=True)
class Services:
    """What handlers have access to. `snapshot` creates a new snapshot; call it on the event loop only.

    `reload` loads the configuration again, or raises ConfigError and changes nothing. Hold `changing` while changing
    the policy or the configuration, so that planning, storing and committing are atomic.
    """

    control: Control
    runs: "Runs"
    store: "Store"
    streams: "Streams"
    snapshot: "Callable[[], Snapshot]"
    perform: "Callable[[Orders], None]"
    now_s: Callable[[], float]
    is_ready: Callable[[], bool]
    reload: Callable[[str], Awaitable[ReloadResult]]
    changing: asyncio.Lock
    specs: Specs = field(default_factory=Specs)
    fleet: FleetHistory = field(default_factory=FleetHistory)

    def is_token(self, given: str) -> bool:
        """Return whether a bearer token is the configured one; always false if none is configured."""
        token = self.control.token
        return bool(token) and hmac.compare_digest(given.encode(errors="replace"), token.encode())


SERVICES: web.AppKey[Services] = web.AppKey("services", Services)


class ApiError(Exception):
    """A request that cannot be answered; the response is a JSON object with `error`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def hosts_of(runs: "Iterable[Run]") -> dict[str, str]:
    """Return the hosts of the ranks of open incidents, by incident id; incidents of groups are omitted."""
    hosts = ((incident.id, host_of(run, incident)) for run in runs for incident in _open(run))
    return {name: host for name, host in hosts if host}


def nodes_of(runs: "Iterable[Run]", incident_id: str) -> tuple[str, ...]:
    """Return the nodes of the ranks of an open incident, as named by their exporters."""
    for run in runs:
        incident = run.machine.tracker.incidents.get(incident_id)
        if incident is not None and incident.scope in _PLACED:
            found = (run.membership.nodes.get(rank, "") for rank in incident.ranks[:_RANKS_PLACED])
            return tuple(dict.fromkeys(filter(None, found)))
    return ()


def _open(run: "Run") -> "Iterable[Incident]":
    return run.machine.tracker.incidents.values()


def host_of(run: "Run", incident: "Incident") -> str:
    """Return the hosts of the ranks of an incident as text; empty if it names no ranks or their hosts are unknown."""
    if incident.scope not in _PLACED:
        return ""
    found = (run.hostname(rank)[:_HOST_MAX] for rank in incident.ranks[:_RANKS_PLACED])
    names = list(dict.fromkeys(filter(None, found)))
    more = len(names) > _HOSTS_SHOWN or len(incident.ranks) > _RANKS_PLACED
    return ", ".join(names[:_HOSTS_SHOWN]) + (" and others" if names and more else "")


def authorise(request: web.Request) -> None:
    """Reject a request that does not carry the token.

    Raises
    ------
    ApiError
        No token is configured, or the request has another one.
    """
    services = request.app[SERVICES]
    if not services.control.token:
        got = "got no token, expected api_token_file (lockstep up --token-file FILE) for changes over HTTP"
        raise ApiError(web.HTTPForbidden.status_code, f"configuration: {got}")
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    if kind != "Bearer" or not services.is_token(given):
        raise ApiError(web.HTTPUnauthorized.status_code, "Authorization: expected Bearer and the configured token")


def asker(request: web.Request) -> str:
    """Return the client's name for the log: its address, because all clients share one token."""
    return f"api client {request.remote}"


async def json_object(request: web.Request, expected: str) -> dict[str, Any]:
    """Return the body, a JSON object.

    Raises
    ------
    ApiError
        The body is not a JSON object; `expected` describes the keys for the message.
    """
    try:
        body = await request.json()
    except (ValueError, LookupError, RecursionError) as error:  # not JSON, an unknown charset, thousands of digits
        raise ApiError(BAD, f"body: expected JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(BAD, f"body: got {type(body).__name__}, expected an object with {expected}")
    return body


def known_run(request: web.Request) -> "Run":
    """Return the run that the path names.

    Raises
    ------
    ApiError
        There is no such run.
    """
    name, runs = request.match_info["run"], request.app[SERVICES].runs.by_name
    run = runs.get(name)
    if run is None:
        raise ApiError(web.HTTPNotFound.status_code, f"run: got {name!r:.200}, {_expected_run(name, runs)}")
    return run


def _expected_run(name: str, known: Iterable[str]) -> str:
    """List some of the known runs, those with the longest common prefix first."""
    names = sorted(known, key=lambda each: (-len(commonprefix((each, name))), each))  # noqa: RUF071  (of characters)
    if not names:
        return "but no run has reported yet"
    left = len(names) - _RUNS_NAMED
    shown = ", ".join(map(repr, names[:_RUNS_NAMED]))
    return f"expected one of {shown}{f' or {left} more of /api/v1/runs' if left > 0 else ''}"
