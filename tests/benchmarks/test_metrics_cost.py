"""The made run that dashboards are asked about: every panel finds its series in it."""

import re

from benchmarks.metrics_cost import SPAN_SECONDS, queries
from benchmarks.metrics_made import openmetrics
from dashboards import external_metrics
from lockstep.contracts.metrics import BY_NAME


def test_every_family_that_a_dashboard_reads_has_samples():
    """A metric with a new label, or a new recorded series, must neither end the benchmark nor be left out of it."""
    asked = {name for query in queries() for name in re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", query)}
    text = "".join(lines for lines, _ in openmetrics(asked, 16, 0, SPAN_SECONDS))
    made = set(re.findall(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)\{", text, re.MULTILINE))
    known = {name for name in asked if name in BY_NAME or name in external_metrics.LABELS or ":lockstep_" in name}
    assert len(known) > 100
    assert known <= made
