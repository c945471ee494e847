"""TensorBoard: event files in the folder RUN/attempt-N, one folder per attempt, because its steps count from 0.

tensorboardX writes them, which needs neither TensorFlow nor TensorBoard's own packages. Its `SummaryWriter` passes
events to a thread that a full disk ends silently; its `EventsWriter`, used here, writes at once and raises.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import scalar, text

from lockstep.contracts.errors import ConfigError, PeerError
from lockstep.trackers.incident_notes import IncidentNote
from lockstep.trackers.points import StepPoint
from lockstep.trackers.tracker import PREFIX, TrackerOptions


def open_tracker(options: TrackerOptions) -> "TensorboardTracker":
    """Open the tracker; it creates its folder with the first point.

    Raises
    ------
    ConfigError
        No folder is given.
    """
    if not options.address:
        raise ConfigError("--address: got nothing, expected the folder that TensorBoard is started on (--logdir)")
    if options.project or options.tracker_run:
        raise ConfigError("--project and --id: expected only with wandb and mlflow, TensorBoard has folders: --address")
    return TensorboardTracker(Path(options.address) / quote(options.run, safe=" @:+="))


class TensorboardTracker:
    """Writes event files. Invariant: at most one is open, that of `_attempt`."""

    def __init__(self, folder: Path) -> None:
        self.tracker_run = ""
        self._folder = folder
        self._attempt = 0
        self._writer: EventsWriter | None = None

    def log_points(self, points: Sequence[StepPoint]) -> None:
        """Write a scalar for each figure at the point's last step."""
        for point in points:
            if point.attempt != self._attempt:
                self.close(is_over=False)
                self._attempt = point.attempt
            for name, value in point.values.items():
                self._write(scalar(f"{PREFIX}/{name}", value), point.last_step, point.end_unix_s)
        self._flush()

    def log_incidents(self, changed: Sequence[IncidentNote], listed: Sequence[IncidentNote]) -> None:  # noqa: ARG002
        """Write a text for each, at the step at which it began, or the first if unknown: an event needs a step."""
        for note in changed:
            rows = "\n".join(f"- {name}: {value}" for name, value in note.row().items())
            summary = text(f"{PREFIX}/incidents/{note.id}", f"**{note.title}**\n\n{rows}")
            self._write(summary, note.onset_step or 0, note.closed_unix_s or note.opened_unix_s)
        self._flush()

    def close(self, *, is_over: bool) -> None:  # noqa: ARG002  (a file has no such state)
        """Close the event file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._guarded(writer.close)

    def _write(self, summary: Summary, step: int, unix_s: float) -> None:
        self._guarded(lambda: self._opened().write_event(Event(wall_time=unix_s, step=step, summary=summary)))

    def _opened(self) -> EventsWriter:
        if self._writer is None:
            folder = self._folder / f"attempt-{self._attempt}"
            folder.mkdir(parents=True, exist_ok=True)
            # The writer names files by second, so a second file of the same second would overwrite the first.
            self._writer = EventsWriter(str(folder / "events"), filename_suffix=f".lockstep-{time.time_ns()}")
        return self._writer

    def _flush(self) -> None:
        if self._writer is not None:
            self._guarded(self._writer.flush)

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError as error:
            self._writer = None  # the next event starts a new file: the end of this one may be half written
            raise PeerError(f"tensorboard folder {self._folder}: got {error}, expected a folder to write to") from error
