"""W&B: rows by `run.log` over the axis lockstep/step, and the incidents as a table.

W&B's own step only grows, whereas each attempt counts from 0, so ours is a separate axis. A row is passed to W&B's own
process, which writes it to a file and sends it once the server is reachable.
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
"""What W&B records of a training process, which is useless for the forwarder's."""


def open_tracker(options: TrackerOptions) -> "WandbTracker":
    """Open the tracker, in the named run or a new one; server, entity, key and mode are W&B's settings.

    Raises
    ------
    ConfigError
        An option must be set through W&B instead.
    PeerError
        W&B is unreachable or refuses.
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
        """Log the whole table again; W&B shows the latest one."""
        rows = [note.row() for note in listed]
        table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        last = changed[-1]
        self._log({f"{PREFIX}/incidents": table}, last.closed_unix_s or last.opened_unix_s)

    def close(self, *, is_over: bool) -> None:  # noqa: ARG002  (W&B shows a run as ended once no one writes to it)
        """Let W&B's process write everything and end; `finish` alone returns before its file is written."""
        with contextlib.suppress(ConnectionError):  # that process has ended, and the last row's error reported it
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
