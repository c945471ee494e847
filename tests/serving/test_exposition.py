"""What a scraper is answered."""

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest as render_text
from prometheus_client.openmetrics.exposition import generate_latest as render_openmetrics

from lockstep.serving.exposition import choose_form, render

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROTOBUF_FIRST = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited," + PROMETHEUS
)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "text"),
        ("*/*", "text"),
        ("text/plain", "text"),
        ("text/plain;version=0.0.4", "text"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text"),
        ("application/openmetrics-text", "openmetrics"),
        ("application/openmetrics-text; version=1.0.0", "openmetrics"),
        ("Application/OpenMetrics-Text; Version=1.0.0; charset=utf-8", "openmetrics"),
        (PROMETHEUS, "openmetrics"),
        (PROTOBUF_FIRST, "openmetrics"),
        ("application/openmetrics-text;version=2.0.0", "text"),
        ("application/openmetrics-text;version=2.0.0,application/openmetrics-text;version=1.0.0;q=0.9", "openmetrics"),
        ("application/openmetrics-text;version=0.0.1", "text"),
        ("application/openmetrics-text;q=0.1,text/plain;q=0.9", "text"),
        ("application/openmetrics-text;q=0,text/plain", "text"),
        ("application/openmetrics-text;q=0", "text"),
        ("application/openmetrics-text;q=nonsense", "text"),
        ("application/openmetrics-text;q=9", "text"),
        (";;;,,,===", "text"),
        ("application/json", "text"),
        ("a" * 100_000, "text"),
    ],
)
def test_the_accept_header_chooses_the_form(accept: str, form: str):
    """OpenMetrics 1.0.0 when asked for, text otherwise; never a version that no specification defines."""
    assert choose_form(accept) == form


class Families:
    """One family of each type, with names, texts and numbers that need care."""

    def collect(self):
        counter = CounterMetricFamily("steps_total", 'Steps of "all" ranks.', labels=("run", "rank"))
        for rank, value in enumerate((0, 1, 3, 0.1, 1e-9, 123456.5, 1234567, 98765432.1, 1e15, 1e16, 6.02e23, 1e300)):
            counter.add_metric(["a", str(rank)], value)
        counter.add_metric(['we"ird\\name\n', "é"], True)
        gauge = GaugeMetricFamily("age_seconds", "A back\\slash and\na line.")
        for value in (float("inf"), float("-inf"), float("nan"), -2.5):
            gauge.add_metric([], value)
        histogram = HistogramMetricFamily("duration_seconds", "Durations.", labels=("run",))
        histogram.add_metric(["a"], [("0.5", 1), ("+Inf", 2)], 1.75)
        return [counter, gauge, histogram, GaugeMetricFamily("empty", "Nobody.", labels=("run",))]


@pytest.mark.parametrize(("form", "reference"), [("text", render_text), ("openmetrics", render_openmetrics)])
def test_the_text_is_the_librarys_byte_for_byte(form, reference):
    """Names, escapes, numbers and order are those of prometheus_client, which does it for any metric."""
    assert render(Families(), form) == reference(Families())
