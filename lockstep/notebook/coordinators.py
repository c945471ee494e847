"""Incidents of a running coordinator as a table: `incidents`."""

import pyarrow as pa

from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.notebook.tables import Frame, made, required, shown
from lockstep.serving.coordinator_client import api_address, get_object

_STATES = ("", "open", "closed")
_INT, _REAL, _TEXT = pa.int64(), pa.float64(), pa.string()
INCIDENTS = pa.schema(
    [
        *(required(name, _TEXT) for name in ("id", "run", "state", "kind", "cause", "scope")),
        required("ranks", pa.list_(_INT)),
        *(pa.field(name, _INT) for name in ("onset_step", "detected_step", "closed_step")),
        *(required("opened_unix_ns", _INT), pa.field("closed_unix_ns", _INT)),
        *(required(name, _REAL) for name in ("slowdown_ratio", "excess_seconds", "lost_device_seconds")),
        *(required(name, _TEXT) for name in ("function", "root_cause", "confidence")),
        required("evidence", pa.list_(_TEXT)),
    ]
)


def incidents(url: str, *, run: str = "", state: str = "", token: str = "", arrow: bool = False) -> Frame:
    """Return the incidents of the coordinator at `url` (e.g. "http://coordinator:9856"), the oldest first.

    `run` and `state` ("open", "closed") choose some; `token` is the API's, where passwords are needed. Columns: id,
    run, state, kind, cause, scope string; ranks list of int64; onset_step, detected_step, closed_step Int64;
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
    address = api_address(url, "incidents", {"run": run, "state": state})
    found = get_object(address, token, expected="incidents")
    try:
        columns = {name: [each[name] for each in found["incidents"]] for name in INCIDENTS.names}
        return shown(made(INCIDENTS, columns), arrow=arrow)
    except (KeyError, TypeError, pa.ArrowException) as error:
        expected = "the incidents of a coordinator of this version"
        raise MalformedError("incidents", where=url, got=repr(error), expected=expected) from error
