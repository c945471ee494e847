"""Reads one run's data from a coordinator's HTTP API."""

from urllib.parse import quote

from lockstep.contracts.errors import MalformedError, PeerError
from lockstep.serving.coordinator_client import NOT_FOUND, CoordinatorRefusalError, api_address, get_object
from lockstep.trackers.forwarder import RunReport
from lockstep.trackers.incident_notes import parse_incidents
from lockstep.trackers.points import parse_points

_ENDED = frozenset({"finished", "cancelled"})
"""States after which nothing more comes; a crashed run may be restarted, as by torchrun."""
_NAMES_SHOWN = 8


class CoordinatorReader:
    """Reads one run. Links begin with `link_url`, in case browsers reach the coordinator at another address."""

    def __init__(self, url: str, run: str, *, token: str = "", link_url: str = "") -> None:
        path = f"runs/{quote(run, safe='')}/series"
        self._runs, self._series = api_address(url, "runs"), api_address(url, path)
        self._incidents = api_address(url, "incidents", {"run": run})
        self._run, self._token, self._link_url = run, token, link_url or url
        self._was_known = False

    def read(self) -> RunReport:
        """Return the current data. A run that was known and no longer is counts as over.

        Raises
        ------
        PeerError
            The coordinator is unreachable, refuses, or does not know the run.
        MalformedError
            Its response has an unexpected form.
        """
        states = self._states()
        found = get_object(self._incidents, self._token, expected="incidents")
        incidents = parse_incidents(found, base_url=self._link_url, where=self._incidents)
        if self._run not in states:
            if self._was_known:
                return RunReport(points=(), incidents=incidents, is_over=True)
            known = ", ".join(sorted(states)[:_NAMES_SHOWN]) or "none"
            raise PeerError(f"run at {self._runs}: got {self._run!r:.100}, expected a run that it knows: {known}")
        points, refused = parse_points(self._points(), where=self._series)
        self._was_known = True
        return RunReport(
            points=points, incidents=incidents, is_over=states[self._run] in _ENDED, refused=frozenset(refused)
        )

    def _states(self) -> dict[str, str]:
        answer = get_object(self._runs, self._token, expected="runs")
        try:
            return {str(each["run"]): str(each["state"]) for each in answer["runs"]}
        except (KeyError, TypeError) as error:
            raise MalformedError("runs", where=self._runs, got=repr(error), expected="runs with states") from error

    def _points(self) -> dict[str, object]:
        try:
            return get_object(self._series, self._token, expected="a series")
        except CoordinatorRefusalError as error:
            if error.status != NOT_FOUND:
                raise
            raise PeerError(f"{error}; a coordinator of an earlier version has no series") from error
