"""GET requests to a coordinator's JSON API with the standard library: bounded time and size, clear errors."""

import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from lockstep.contracts.errors import ConfigError, PeerError
from lockstep.contracts.json_text import answered_object

_TIMEOUT_S = 10.0
_ANSWER_MAX_BYTES = 64 << 20
_REFUSAL_MAX_BYTES = 4096
NOT_FOUND = 404


class CoordinatorRefusalError(PeerError):
    """The coordinator answered with a `status` other than 200."""

    def __init__(self, address: str, status: int, reason: str) -> None:
        super().__init__(f"coordinator at {address}: got {status} {reason}, expected 200")
        self.status = status


def api_address(url: str, path: str, query: dict[str, str] | None = None) -> str:
    """Return the address of `path` below the API of the coordinator at `url`, without empty values of `query`.

    Raises
    ------
    ConfigError
        `url` is not an HTTP address.
    """
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # an unclosed bracket
        is_url = False
    if not is_url:
        raise ConfigError(f"url: got {url!r:.100}, expected a URL like http://coordinator:9856")
    chosen = urlencode({name: value for name, value in (query or {}).items() if value})
    return f"{url.rstrip('/')}/api/v1/{path}" + (f"?{chosen}" if chosen else "")


def get_object(address: str, token: str = "", *, expected: str) -> dict[str, Any]:
    """Return the JSON object at an address; `expected` describes it in errors.

    Raises
    ------
    CoordinatorRefusalError
        The response has a status other than 200.
    PeerError
        No coordinator answers there, or its response is too large.
    MalformedError
        The response is not a JSON object.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(address, headers=headers), timeout=_TIMEOUT_S) as response:  # noqa: S310  (http, https)
            body = response.read(_ANSWER_MAX_BYTES + 1)
    except HTTPError as error:
        raise CoordinatorRefusalError(address, error.code, _reason(error)) from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise PeerError(f"coordinator at {address}: got no answer: {reason}, expected {expected}") from error
    if len(body) > _ANSWER_MAX_BYTES:
        raise PeerError(f"coordinator at {address}: got over {_ANSWER_MAX_BYTES} bytes, expected fewer: choose a run")
    return answered_object(body, where=address, expected=f"a JSON object with {expected}")


def _reason(error: HTTPError) -> str:
    """Return the status line's reason, with the error in the body if the coordinator sent one."""
    try:
        given = json.loads(error.read(_REFUSAL_MAX_BYTES))["error"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return str(error.reason)
    return f"{error.reason} ({given!s:.200})"
