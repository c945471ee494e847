"""What handlers reach, and how a request is refused. Every answer to a bad request names what, got and expected."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from coordinator.settings.control import Control, Reloaded
from coordinator.settings.specs import Specs

if TYPE_CHECKING:
    from coordinator.runs import Orders, Run, Runs
    from coordinator.snapshot import Snapshot
    from coordinator.store import Store

BAD = web.HTTPBadRequest.status_code


@dataclass(frozen=True, kw_only=True)
class Services:
    """What the handlers reach. `snapshot` makes a fresh one, on the event loop only.

    `reload` reads the configuration again, or raises ConfigError and changes nothing. `changing` is held while the
    policy or the configuration changes: planning, keeping and committing are one act.
    """

    control: Control
    runs: "Runs"
    store: "Store"
    snapshot: "Callable[[], Snapshot]"
    perform: "Callable[[Orders], None]"
    now_s: Callable[[], float]
    is_ready: Callable[[], bool]
    reload: Callable[[str], Awaitable[Reloaded]]
    changing: asyncio.Lock
    specs: Specs = field(default_factory=Specs)

    def is_token(self, given: str) -> bool:
        """Whether a bearer token is the configured one; none is where none is configured."""
        token = self.control.token
        return bool(token) and hmac.compare_digest(given.encode(errors="replace"), token.encode())


SERVICES: web.AppKey[Services] = web.AppKey("services", Services)


class ApiError(Exception):
    """A request that cannot be answered; becomes a JSON object with `error`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def authorise(request: web.Request) -> None:
    """Refuse a request that does not carry the token.

    Raises
    ------
    ApiError
        No token is configured, or the request has another one.
    """
    services = request.app[SERVICES]
    if not services.control.token:
        raise ApiError(web.HTTPForbidden.status_code, "api_token_file is not set: nothing can be changed over HTTP")
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    if kind != "Bearer" or not services.is_token(given):
        raise ApiError(web.HTTPUnauthorized.status_code, "Authorization: expected Bearer and the configured token")


def asker(request: web.Request) -> str:
    """Return who asks, for the log: all holders of the token look alike, so the address has to tell."""
    return f"api client {request.remote}"


async def json_object(request: web.Request, expected: str) -> dict[str, Any]:
    """Return the body, a JSON object.

    Raises
    ------
    ApiError
        It is none; `expected` says of what.
    """
    try:
        body = await request.json()
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, a number of thousands of digits
        raise ApiError(BAD, f"body: expected JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(BAD, f"body: got {type(body).__name__}, expected an object with {expected}")
    return body


def known_run(request: web.Request) -> "Run":
    """Return the run that the path names.

    Raises
    ------
    ApiError
        There is none.
    """
    name = request.match_info["run"]
    run = request.app[SERVICES].runs.by_name.get(name)
    if run is None:
        raise ApiError(web.HTTPNotFound.status_code, f"run: got {name!r:.200}, expected one of /api/v1/runs")
    return run
