"""W&B: rows by `run.log` over the axis lockstep/step, and the incidents as a table.

W&B's own step only grows, and that of an attempt begins at 0 again, so ours is an axis of its own. A row is
handed to W&B's own process, which writes it to a file and sends that when the server is there.
"""

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import wandb
from wandb.errors import Error as WandbError

from lockstep.contracts.errors import ConfigError, LocalError, PeerError
from lockstep.trackers.incident_notes import IncidentNote
from lockstep.trackers.points import StepPoint
from lockstep.trackers.tracker import PREFIX, TrackerOptions

_QUIET = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "save_code": False,
    "silent": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""What W&B records of a training process is no use of the forwarder's."""


def open_tracker(options: TrackerOptions) -> "WandbTracker":
    """Return the tracker, in the run that is named or in a new one; server, entity, key and mode are W&B's settings.

    Raises
    ------
    ConfigError
        An option is W&B's to set.
    PeerError
        W&B is away or refuses.
    """
    if options.address:
        raise ConfigError("--address: got one, expected WANDB_BASE_URL, WANDB_MODE and WANDB_DIR, which W&B reads")
    values: dict[str, Any] = dict(_QUIET)
    if options.is_attached and os.environ.get("WANDB_MODE", "online") == "online":
        values |= {"mode": "shared", "x_primary": False, "x_label": PREFIX}  # several writers of one run
    own: dict[str, Any] = (
        {} if options.is_attached else {"name": f"{PREFIX} {options.run}", "group": options.run, "job_type": PREFIX}
    )
    try:
        run = wandb.init(
            project=options.project or PREFIX,
            id=options.tracker_run or None,
            resume="allow",
            settings=wandb.Settings(**values),
            **own,
        )
    except WandbError as error:
        raise PeerError(f"wandb: got {error!s:.300}, expected a run to write to") from error
    run.define_metric(f"{PREFIX}/step")
    run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")
    return WandbTracker(run)


class WandbTracker:
    """Writes to one run of W&B."""

    def __init__(self, run: "wandb.Run") -> None:
        self.tracker_run = str(run.id)
        self._run = run

    def log_points(self, points: Sequence[StepPoint]) -> None:
        """Log a row for each point, dated with its end."""
        for point in points:
            figures = {**point.values, "step": point.last_step, "attempt": point.attempt}
            self._log({f"{PREFIX}/{name}": value for name, value in figures.items()}, point.end_unix_s)

    def log_incidents(self, changed: Sequence[IncidentNote], listed: Sequence[IncidentNote]) -> None:
        """Log the table again; the newest is the one that W&B shows."""
        rows = [note.row() for note in listed]
        table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        last = changed[-1]
        self._log({f"{PREFIX}/incidents": table}, last.closed_unix_s or last.opened_unix_s)

    def close(self, *, is_over: bool) -> None:  # noqa: ARG002  (W&B shows a run as ended once no one writes to it)
        """Let W&B's process write what it has and end; `finish` alone returns before its file is written."""
        with contextlib.suppress(ConnectionError):  # that process has ended, as the last row's error reported
            self._run.finish()
            wandb.teardown()

    def _log(self, row: dict[str, Any], unix_s: float) -> None:
        try:
            self._run.log({**row, "_timestamp": unix_s})
        except ConnectionError as error:
            expected = "W&B's own process, which has ended: start again, which continues the run"
            raise LocalError(f"wandb run {self.tracker_run}: got {error!s:.300}, expected {expected}") from error
        except (WandbError, OSError) as error:
            raise PeerError(f"wandb run {self.tracker_run}: got {error!s:.300}, expected a row taken") from error
