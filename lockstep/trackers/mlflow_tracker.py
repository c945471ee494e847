"""MLflow: metrics by `log_batch`, and the incidents as a table in the artifact lockstep/incidents.json."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from lockstep.contracts.errors import ConfigError, PeerError
from lockstep.trackers.incident_notes import IncidentNote
from lockstep.trackers.points import StepPoint
from lockstep.trackers.tracker import PREFIX, TrackerOptions

_METRICS_MAX = 1000  # metrics of one call: MLflow's own limit
_TABLE = f"{PREFIX}/incidents.json"


def open_tracker(options: TrackerOptions) -> "MlflowTracker":
    """Open the tracker, in the named run or a new one.

    Raises
    ------
    ConfigError
        The run does not exist.
    PeerError
        MLflow is unreachable or refuses.
    """
    client = MlflowClient(tracking_uri=options.address or None)
    where = f"mlflow at {client.tracking_uri}"
    with _refusals(where, "a tracking server or store"):
        if not options.tracker_run:
            return MlflowTracker(client, where, _begin_run(client, options), is_attached=False)
    try:
        client.get_run(options.tracker_run)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise PeerError(f"{where}: got {error!s:.300}, expected run {options.tracker_run}") from error
        raise ConfigError(f"--id: got {options.tracker_run!r:.100}, expected the id of a run of {where}") from None
    return MlflowTracker(client, where, options.tracker_run, is_attached=options.is_attached)


def _begin_run(client: MlflowClient, options: TrackerOptions) -> str:
    name = options.project or PREFIX
    experiment = client.get_experiment_by_name(name)
    identity = client.create_experiment(name) if experiment is None else experiment.experiment_id
    run = client.create_run(identity, run_name=f"{PREFIX} {options.run}", tags={f"{PREFIX}.run": options.run})
    return str(run.info.run_id)


class MlflowTracker:
    """Sends to one run; its steps are those of the attempt, and `attempt` is a metric."""

    def __init__(self, client: MlflowClient, where: str, tracker_run: str, *, is_attached: bool) -> None:
        self.tracker_run = tracker_run
        self._client, self._where, self._is_attached = client, where, is_attached

    def log_points(self, points: Sequence[StepPoint]) -> None:
        """Send a metric for each figure, at the point's last step and end."""
        metrics = [
            Metric(f"{PREFIX}/{name}", value, int(point.end_unix_s * 1000), point.last_step)
            for point in points
            for name, value in {**point.values, "attempt": float(point.attempt)}.items()
        ]
        for first in range(0, len(metrics), _METRICS_MAX):
            with _refusals(self._where, f"metrics of run {self.tracker_run} taken"):
                self._client.log_batch(self.tracker_run, metrics=metrics[first : first + _METRICS_MAX])

    def log_incidents(self, changed: Sequence[IncidentNote], listed: Sequence[IncidentNote]) -> None:
        """Rewrite the table, and tag the run with the incident that changed last."""
        rows = [note.row() for note in listed]
        table = {"columns": list(rows[0]) if rows else [], "data": [list(row.values()) for row in rows]}
        with _refusals(self._where, f"{_TABLE} of run {self.tracker_run} taken"):
            self._client.log_dict(self.tracker_run, table, _TABLE)
            self._client.set_tag(self.tracker_run, f"{PREFIX}.incident", f"{changed[-1].title}: {changed[-1].link}")

    def close(self, *, is_over: bool) -> None:
        """End a run of our own when the job has ended; a run that training owns is ended by training."""
        if is_over and not self._is_attached:
            with _refusals(self._where, f"run {self.tracker_run} ended"):
                self._client.set_terminated(self.tracker_run)


@contextmanager
def _refusals(where: str, expected: str) -> Iterator[None]:
    try:
        yield
    except (MlflowException, OSError) as error:
        raise PeerError(f"{where}: got {error!s:.300}, expected {expected}") from error
