"""OpenTelemetry by OTLP over HTTP: figures as gauges with the time of their steps, incidents as log events.

The SDK's meters measure at the moment of a call, so the values that it would export are built here and passed to its
exporter, which encodes and sends them, and repeats a refused request until its timeout.
"""

from collections.abc import Sequence
from urllib.parse import urlsplit

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics.export import (
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from lockstep.contracts.errors import ConfigError, PeerError
from lockstep.contracts.version import VERSION
from lockstep.trackers.incident_notes import IncidentNote
from lockstep.trackers.points import StepPoint, with_values
from lockstep.trackers.tracker import PREFIX, TrackerOptions

_NS = 1_000_000_000
_UNITS = {"_seconds": "s", "tokens_per_second": "{token}/s", "samples_per_second": "{sample}/s"}
"""Units by the suffix of a figure's name, in UCUM as OpenTelemetry requires."""


def open_tracker(options: TrackerOptions) -> "OtlpTracker":
    """Open the tracker; without an address, at OTEL_EXPORTER_OTLP_ENDPOINT or this host's collector.

    Raises
    ------
    ConfigError
        The address is not a URL, or an option belongs to another tracker.
    """
    if options.project or options.tracker_run:
        raise ConfigError("--project and --id: expected only with wandb and mlflow, OTLP has the run as an attribute")
    base = options.address.rstrip("/")
    if base and (urlsplit(base).scheme not in ("http", "https") or not urlsplit(base).hostname):
        raise ConfigError(f"--address: got {base!r:.100}, expected a URL like http://collector:4318")
    return OtlpTracker(
        OTLPMetricExporter(endpoint=f"{base}/v1/metrics" if base else None),
        OTLPLogExporter(endpoint=f"{base}/v1/logs" if base else None),
        Resource.create({"service.name": PREFIX, f"{PREFIX}.run": options.run}),
    )


class OtlpTracker:
    """Sends to one collector, one request per call."""

    def __init__(self, metrics: OTLPMetricExporter, logs: OTLPLogExporter, resource: Resource) -> None:
        self.tracker_run = ""
        self._metrics, self._logs, self._resource = metrics, logs, resource
        self._scope = InstrumentationScope(PREFIX, VERSION)

    def log_points(self, points: Sequence[StepPoint]) -> None:
        """Send a gauge for each figure."""
        points = [with_values(point, step=point.last_step) for point in points]
        names = dict.fromkeys(name for point in points for name in point.values)
        metrics = [_gauge(name, points) for name in names]
        scope = ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        data = MetricsData([ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")])
        if metrics and self._metrics.export(data) is not MetricExportResult.SUCCESS:
            raise _refusal("figures")

    def log_incidents(self, changed: Sequence[IncidentNote], listed: Sequence[IncidentNote]) -> None:  # noqa: ARG002
        """Send an event for each."""
        records = [ReadableLogRecord(_event(note), self._resource, self._scope) for note in changed]
        if self._logs.export(records) is not LogRecordExportResult.SUCCESS:
            raise _refusal("incidents")

    def close(self, *, is_over: bool) -> None:  # noqa: ARG002  (a collector knows no end)
        """Close the connections."""
        self._metrics.shutdown()
        self._logs.shutdown()


def _gauge(name: str, points: Sequence[StepPoint]) -> Metric:
    data_points = [
        NumberDataPoint(
            attributes={f"{PREFIX}.attempt": point.attempt},
            start_time_unix_nano=int(point.begin_unix_s * _NS),
            time_unix_nano=int(point.end_unix_s * _NS),
            value=point.values[name],
        )
        for point in points
        if name in point.values
    ]
    unit = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "1")
    return Metric(name=f"{PREFIX}.{name}", description="", unit=unit, data=Gauge(data_points=data_points))


def _event(note: IncidentNote) -> LogRecord:
    unix_s = note.opened_unix_s if note.closed_unix_s is None else note.closed_unix_s
    severity = SeverityNumber.WARN if note.closed_unix_s is None else SeverityNumber.INFO
    return LogRecord(
        timestamp=int(unix_s * _NS),
        observed_timestamp=int(unix_s * _NS),
        severity_number=severity,
        severity_text=severity.name,
        body=note.title,
        attributes={f"{PREFIX}.incident.{name}": value for name, value in note.row().items() if value is not None},
        event_name=f"{PREFIX}.incident",
    )


def _refusal(what: str) -> PeerError:
    return PeerError(
        f"otlp collector: got no acknowledgement of {what}, expected 200; the lines before give its reason"
    )
