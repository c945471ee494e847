"""Incidents of a running coordinator as a table: `incidents`."""

import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import pyarrow as pa

from lockstep.contracts.errors import ConfigError, MalformedError, PeerError
from lockstep.notebook.tables import Frame, made, required, shown

_TIMEOUT_S = 10.0
_ANSWER_MAX_BYTES = 64 << 20
_STATES = ("", "open", "closed")
_INT, _REAL, _TEXT = pa.int64(), pa.float64(), pa.string()
INCIDENTS = pa.schema(
    [
        *(required(name, _TEXT) for name in ("id", "run", "state", "kind", "cause", "scope")),
        required("ranks", pa.list_(_INT)),
        *(required("onset_step", _INT), required("detected_step", _INT), pa.field("closed_step", _INT)),
        *(required("opened_unix_ns", _INT), pa.field("closed_unix_ns", _INT)),
        *(required(name, _REAL) for name in ("slowdown_ratio", "excess_seconds", "lost_device_seconds")),
        *(required(name, _TEXT) for name in ("function", "root_cause", "confidence")),
        required("evidence", pa.list_(_TEXT)),
    ]
)


def incidents(url: str, *, run: str = "", state: str = "", token: str = "", arrow: bool = False) -> Frame:
    """Return the incidents of the coordinator at `url` (e.g. "http://coordinator:9856"), the oldest first.

    `run` and `state` ("open", "closed") choose some; `token` is the API's, where passwords are needed. Columns: id,
    run, state, kind, cause, scope string; ranks list of int64; onset_step, detected_step int64, closed_step Int64;
    opened_unix_ns int64, closed_unix_ns Int64; slowdown_ratio, excess_seconds (of a step), lost_device_seconds float64;
    function, root_cause, confidence string, empty before a capture named them; evidence list of string.

    Raises
    ------
    ConfigError
        An argument is wrong.
    PeerError
        No coordinator answers there, or it refuses.
    MalformedError
        It answers something else.
    """
    if state not in _STATES:
        raise ConfigError(f"state: got {state!r:.50}, expected 'open', 'closed' or ''")
    found = _get(_address(url, {"run": run, "state": state}), token)
    try:
        columns = {name: [each[name] for each in found["incidents"]] for name in INCIDENTS.names}
        return shown(made(INCIDENTS, columns), arrow=arrow)
    except (KeyError, TypeError, pa.ArrowException) as error:
        expected = "the incidents of a coordinator of this version"
        raise MalformedError("incidents", where=url, got=repr(error), expected=expected) from error


def _address(url: str, query: dict[str, str]) -> str:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # a bracket that is not closed
        is_url = False
    if not is_url:
        raise ConfigError(f"url: got {url!r:.100}, expected a URL like http://coordinator:9856")
    chosen = urlencode({name: value for name, value in query.items() if value})
    return f"{url.rstrip('/')}/api/v1/incidents?{chosen}"


def _get(address: str, token: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(address, headers=headers), timeout=_TIMEOUT_S) as response:  # noqa: S310  (http, https)
            body = response.read(_ANSWER_MAX_BYTES + 1)
    except HTTPError as error:
        raise PeerError(f"coordinator at {address}: got {error.code} {error.reason}, expected 200") from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise PeerError(f"coordinator at {address}: got no answer: {reason}, expected incidents") from error
    if len(body) > _ANSWER_MAX_BYTES:
        raise PeerError(f"coordinator at {address}: got over {_ANSWER_MAX_BYTES} bytes, expected fewer: choose a run")
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise MalformedError("answer", where=address, got=error, expected="JSON") from error
    if not isinstance(answer, dict):
        raise MalformedError("answer", where=address, got=type(answer).__name__, expected="a JSON object")
    return answer
