"""The promise of docs/metrics.md; what a real scrape has is counted in `tests/end_to_end/test_metrics_live.py`."""

from lockstep.cli import series_table
from lockstep.contracts.metrics import BY_NAME, CATALOGUE


def test_every_family_is_counted_once():
    """Each family of the catalogue belongs to one thing, of which there is one set of series; a process to either."""
    of_each = {
        (source, scope): series_table.count(source, scope)
        for source in ("exporter", "coordinator")
        for scope in ("communicator", "kind", "rank", "run", "finding", "service")
    }
    twice = [metric for metric in CATALOGUE if metric.source == "both"]
    assert sum(of_each.values()) == sum(map(series_table.series_of, [*CATALOGUE, *twice]))
    assert of_each["exporter", "finding"] == of_each["coordinator", "kind"] == of_each["coordinator", "rank"] == 0


def test_enumerated_values_and_buckets_are_series():
    """A phase is one, so is each bucket with +Inf, sum and count; kinds of domains are counted as those in use."""
    found = {
        name: series_table.series_of(BY_NAME[name])
        for name in (
            "lockstep_phase_time_seconds_total",
            "lockstep_step_duration_seconds",
            "lockstep_collectives_total",
            "lockstep_step",
        )
    }
    assert list(found.values()) == [4, 15, 1, 1]


def test_a_nodes_series_grow_with_ranks_kinds_and_runs():
    """And with nothing else."""
    few = series_table.of_node(ranks=8, kinds=1)
    assert series_table.of_node(ranks=16, kinds=1) - few == 8 * (
        series_table.count("exporter", "rank") + series_table.count("exporter", "kind")
    )
    assert series_table.of_node(ranks=8, kinds=2) - few == 8 * series_table.count("exporter", "kind")
    assert series_table.of_node(ranks=8, kinds=1, runs=2) - few == series_table.count("exporter", "run")
    growth = series_table.of_coordinator(runs=20) - series_table.of_coordinator(runs=0)
    assert growth == 20 * series_table.count("coordinator", "run")


def test_level_minimal_is_less_of_ranks_and_runs_only():
    """What a service says of itself does not depend on the level; the page shows both."""
    for source, scope in (("exporter", "service"), ("coordinator", "run"), ("coordinator", "service")):
        assert series_table.count(source, scope) == series_table.count(source, scope, details=False)
    details = [metric for metric in CATALOGUE if metric.detail and series_table.scope_of(metric) != "communicator"]
    left_out = sum(map(series_table.series_of, details))
    most, least = (series_table.of_node(ranks=1, kinds=1, details=details) for details in (True, False))
    assert most - least == left_out > 0
    assert all(len(row) == 3 for row in series_table.rows())
