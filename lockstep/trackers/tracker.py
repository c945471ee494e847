"""The interface between forwarder and trackers, and their list. A tracker's library is imported when it is opened."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from lockstep.contracts.errors import ConfigError
from lockstep.trackers.incident_notes import IncidentNote
from lockstep.trackers.points import StepPoint

PREFIX = "lockstep"
"""Prefix of every figure's name in a tracker."""
LIBRARIES = {
    "wandb": frozenset({"wandb"}),
    "mlflow": frozenset({"mlflow"}),
    "tensorboard": frozenset({"tensorboardX"}),
    "otlp": frozenset({"opentelemetry"}),
}
"""Libraries by tracker; the extra has the tracker's name."""
_UNASKED = {"wandb": {"WANDB_ERROR_REPORTING": "false"}, "mlflow": {"MLFLOW_DISABLE_TELEMETRY": "true"}}
"""Settings that stop libraries from reporting their own use to their makers; the environment can override them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerOptions:
    """The destination: `address` is a URI, folder or endpoint, empty for the library's own setting.

    `tracker_run` is the tracker's id of a run to continue, empty for a run of our own; `is_attached` if training writes
    to that run as well.
    """

    run: str
    address: str = ""
    project: str = ""
    tracker_run: str = ""
    is_attached: bool = False


class Tracker(Protocol):
    """One tracker's library. Once a call has returned, the library delivers its data, which is not sent again.

    Every call raises `PeerError` if the tracker refuses or is unreachable; the same data is then sent again later.
    `LocalError` means that the library cannot continue in this process.
    """

    tracker_run: str
    """The tracker's id of the run, with which a restart continues; empty if it has none."""

    def log_points(self, points: Sequence[StepPoint]) -> None:
        """Send figures in order."""

    def log_incidents(self, changed: Sequence[IncidentNote], listed: Sequence[IncidentNote]) -> None:
        """Send incidents that opened or changed; `listed` are the latest ones of all, oldest first."""

    def close(self, *, is_over: bool) -> None:
        """Close the library; `is_over` if the run has ended and nothing more will come."""


def open_tracker(name: str, options: TrackerOptions) -> Tracker:
    """Open a tracker by its name in `LIBRARIES`.

    Raises
    ------
    ConfigError
        Its library is not installed, or an option is wrong.
    PeerError
        The tracker is unreachable or refuses.
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
