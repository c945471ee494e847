"""What a scraper is answered."""

import pytest

from lockstep.serving.exposition import choose_form

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
