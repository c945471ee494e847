"""What a tracker does for the forwarder, and which there are. Its library is imported when it is opened, not before."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from lockstep.contracts.errors import ConfigError
from lockstep.trackers.incident_notes import IncidentNote
from lockstep.trackers.points import StepPoint

PREFIX = "lockstep"
"""Of every figure's name in a tracker."""
LIBRARIES = {
    "wandb": frozenset({"wandb"}),
    "mlflow": frozenset({"mlflow"}),
    "tensorboard": frozenset({"tensorboardX"}),
    "otlp": frozenset({"opentelemetry"}),
}
"""By tracker, which is the extra's name as well."""
_UNASKED = {"wandb": {"WANDB_ERROR_REPORTING": "false"}, "mlflow": {"MLFLOW_DISABLE_TELEMETRY": "true"}}
"""What keeps libraries from reporting their own use to their makers, unless the environment has it otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerOptions:
    """Where to: `address` is a URI, folder or endpoint, empty for the library's own setting.

    `tracker_run` is the tracker's id of a run to go on with, empty for a run of our own; `is_attached` where training
    writes to that run as well.
    """

    run: str
    address: str = ""
    project: str = ""
    tracker_run: str = ""
    is_attached: bool = False


class Tracker(Protocol):
    """One tracker's library. What a call has returned from is the library's to deliver, and is not sent again.

    Every call raises `PeerError` where the tracker refuses or is away; the same is then sent again later. `LocalError`
    is of a library that cannot go on in this process.
    """

    tracker_run: str
    """The tracker's id of the run, with which a restart goes on; empty where it has none."""

    def log_points(self, points: Sequence[StepPoint]) -> None:
        """Send figures, in their order."""

    def log_incidents(self, changed: Sequence[IncidentNote], listed: Sequence[IncidentNote]) -> None:
        """Send incidents that opened or changed; `listed` are the youngest of all, the oldest first."""

    def close(self, *, is_over: bool) -> None:
        """Let the library end; `is_over` where the run has ended and nothing more will come."""


def open_tracker(name: str, options: TrackerOptions) -> Tracker:
    """Return a tracker by its name in `LIBRARIES`.

    Raises
    ------
    ConfigError
        Its library is not installed, or an option is wrong.
    PeerError
        The tracker is away or refuses.
    """
    for variable, value in _UNASKED.get(name, {}).items():
        os.environ.setdefault(variable, value)
    try:
        opened: Tracker = import_module(f"lockstep.trackers.{name}_tracker").open_tracker(options)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in LIBRARIES[name]:
            raise
        needed = f"pip install 'lockstep-monitor[{name}]' ('.[{name}]' in a checkout)"
        raise ConfigError(f"--to {name}: got no module {package}, expected {needed}") from None
    return opened
