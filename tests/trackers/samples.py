"""Intervals and incidents as a coordinator answers with them, and trackers that note what they get."""

from lockstep.contracts.errors import PeerError
from lockstep.trackers.incident_notes import parse_incidents
from lockstep.trackers.points import parse_points

BEGIN = 1_700_000_000.0
NAN = float("nan")


def interval(first_step, *, steps=10, step_seconds=0.1, begin=None, attempt=0, parts=None, **figures):
    """Return a point of `/api/v1/runs/RUN/series`; steps follow each other from `BEGIN` on."""
    begin = BEGIN + first_step * step_seconds if begin is None else begin
    return {
        "begin_unix_seconds": begin,
        "end_unix_seconds": begin + steps * step_seconds,
        "attempt": attempt,
        "first_step": first_step,
        "last_step": first_step + steps - 1,
        "steps": steps,
        "step_seconds": step_seconds,
        "longest_step_seconds": step_seconds,
        "tokens_per_second": None,
        "samples_per_second": None,
        "mfu_ratio": None,
        "part_seconds": {"data": 0.01, "compute": 0.06, "host": 0.01, "gc": 0.0, "dp_wait": 0.02}
        if parts is None
        else parts,
        **figures,
    }


def incident(number=1, *, state="open", host="node-3", **changed):
    """Return an incident of `/api/v1/incidents`."""
    return {
        "id": f"job-{number}",
        "run": "job",
        "state": state,
        "kind": "slow_rank",
        "cause": "data",
        "ranks": [2],
        "host": host,
        "onset_step": 40,
        "opened_unix_ns": int(BEGIN * 1e9),
        "closed_unix_ns": int((BEGIN + 60) * 1e9) if state == "closed" else None,
        "slowdown_ratio": 1.5,
        "lost_device_seconds": 12.5,
        "function": "",
        **changed,
    }


def points_of(*intervals):
    return parse_points({"points": list(intervals)}, where="here")[0]


def notes_of(*incidents):
    return parse_incidents({"incidents": list(incidents)}, base_url="http://c:9856/", where="here")


class NotingTracker:
    """Notes what it is sent; `failures` counts the calls that it still refuses."""

    def __init__(self):
        self.tracker_run = "tracked"
        self.points = []
        self.changed = []
        self.listed = []
        self.failures = 0
        self.closed = []

    def log_points(self, points):
        self._refuse()
        self.points += points

    def log_incidents(self, changed, listed):
        self._refuse()
        self.changed += changed
        self.listed = list(listed)

    def close(self, *, is_over):
        self.closed.append(is_over)

    def _refuse(self):
        if self.failures:
            self.failures -= 1
            raise PeerError("tracker at there: got 503, expected 200")
