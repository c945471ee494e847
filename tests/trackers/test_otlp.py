"""OTLP over HTTP by OpenTelemetry's exporter, against a receiver that decodes what it is sent."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from lockstep.contracts.errors import ConfigError, PeerError
from lockstep.trackers.tracker import TrackerOptions, open_tracker
from tests.trackers.samples import BEGIN, incident, interval, notes_of, points_of

FORMS = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/logs": ExportLogsServiceRequest}


class Collector(ThreadingHTTPServer):
    """Answers with `status`; `received` is what came, by path."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.received = {path: [] for path in FORMS}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.status == 200:
            self.server.received[self.path].append(FORMS[self.path].FromString(body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def tracker(collector):
    opened = open_tracker("otlp", TrackerOptions(run="job", address=collector.url))
    yield opened
    opened.close(is_over=True)


def attributes(values):
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in values}


def test_figures_are_gauges_with_the_time_of_their_steps(collector, tracker):
    """One request; the run is the resource's, the attempt the point's, and no attribute grows with the steps."""
    tracker.log_points(points_of(interval(0, tokens_per_second=5000.0), interval(10)))
    (request,) = collector.received["/v1/metrics"]
    (resource,) = request.resource_metrics
    assert attributes(resource.resource.attributes)["lockstep.run"] == "job"
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    assert {
        "lockstep.step_seconds",
        "lockstep.data_seconds",
        "lockstep.dp_wait_seconds",
        "lockstep.step",
    } <= metrics.keys()
    first, second = metrics["lockstep.step_seconds"].gauge.data_points
    assert first.time_unix_nano == int((BEGIN + 1) * 1e9)
    assert attributes(second.attributes) == {"lockstep.attempt": 0}
    assert metrics["lockstep.step_seconds"].unit == "s"
    assert metrics["lockstep.tokens_per_second"].unit == "{token}/s"
    assert [each.as_double for each in metrics["lockstep.tokens_per_second"].gauge.data_points] == [5000.0]


def test_incidents_are_events(collector, tracker):
    """A warning as it opens, information as it closes, with the columns of the table."""
    notes = notes_of(incident(), incident(2, state="closed"))
    tracker.log_incidents(notes, notes)
    (request,) = collector.received["/v1/logs"]
    opened, closed = request.resource_logs[0].scope_logs[0].log_records
    assert (opened.event_name, opened.severity_text, closed.severity_text) == ("lockstep.incident", "WARN", "INFO")
    assert opened.body.string_value == "slow rank of rank 2 on node-3: data, from step 40, open"
    known = attributes(opened.attributes)
    assert known["lockstep.incident.link"] == "http://c:9856/incidents/job-1"
    assert known["lockstep.incident.onset_step"] == 40
    assert known["lockstep.incident.lost_device_seconds"] == 12.5
    assert closed.time_unix_nano == int((BEGIN + 60) * 1e9)


def test_a_collector_that_refuses_is_a_refusal(collector, tracker):
    """The forwarder sends the same again later."""
    collector.status = 400
    with pytest.raises(PeerError, match="otlp collector: got no acknowledgement of figures, expected 200"):
        tracker.log_points(points_of(interval(0)))
    with pytest.raises(PeerError, match="of incidents"):
        tracker.log_incidents(notes_of(incident()), [])


@pytest.mark.parametrize("values", [{"address": "collector:4318"}, {"project": "p"}, {"tracker_run": "x"}])
def test_options_of_another_tracker_are_refused(values):
    """By name."""
    with pytest.raises(ConfigError, match=r"--address: got 'collector:4318'|--project and --id"):
        open_tracker("otlp", TrackerOptions(run="job", **values))
