"""The metric catalogue keeps to Prometheus's conventions."""

import re

import pytest

from lockstep.contracts.metrics import BY_NAME, CATALOGUE

RESERVED = {
    "job",
    "instance",
    "namespace",
    "pod",
    "container",
    "node",
    "service",
    "endpoint",
    "cluster",
    "region",
    "zone",
    "stage",
    "le",
    "quantile",
    "type",
}
# A gauge ends in its unit, or is a plain count or state of what the name states.
UNITLESS = re.compile(
    r"_(info|up|step|fds|frames|incidents|messages|leader|peers|coordinators|series|ranks|processes|cores|load|blind|reporting|omitted|quarantined|on_disk|state|fluctuating|connected|successful|alive|open|seconds|bytes|ratio|slow_ranks|flops_per_second)$"
)


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda m: m.name)
def test_naming(metric):
    """Prefix, snake case, _total on counters only, base units, help as a sentence, no label that others own.

    What every service of Prometheus exports of its process has the name that it has everywhere.
    """
    prefix = "process" if metric.source == "both" else "lockstep"
    assert re.fullmatch(rf"{prefix}(_[a-z0-9]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.type == "counter")
    assert not re.search(r"_(ms|us|ns|mb|gb|kb|percent|milliseconds|minutes)(_|$)", metric.name)
    if metric.type == "gauge":
        assert UNITLESS.search(metric.name)
    assert metric.help.endswith(".")
    assert not RESERVED & set(metric.labels)
    assert len(metric.labels) <= 8


def test_names_are_unique():
    """One meaning per name."""
    assert len(BY_NAME) == len(CATALOGUE)


def test_the_coordinator_has_a_rank_label_only_where_it_is_capped():
    """What the coordinator exports does not grow with the job."""
    by_rank = {m.name for m in CATALOGUE if m.source == "coordinator" and "rank" in m.labels}
    assert by_rank == {
        "lockstep_suspect_slowdown_ratio",
        "lockstep_incident_info",
        "lockstep_incident_silence_seconds",
    }
