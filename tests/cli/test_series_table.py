"""The promise of docs/metrics.md; what a real scrape has is counted in `tests/end_to_end/test_metrics_live.py`."""

import pytest

from alerts import rules
from lockstep.cli import series_table
from lockstep.contracts.metric import LEVELS
from lockstep.contracts.metrics import BY_NAME, CATALOGUE


def test_every_family_is_counted_once():
    """Each family of the catalogue belongs to one thing, of which there is one set of series; a process to either."""
    of_each = {
        (source, scope): series_table.count(source, scope)
        for source in ("exporter", "coordinator")
        for scope in ("communicator", "kind", "rank", "run", "incident", "optional", "service")
    }
    twice = [metric for metric in CATALOGUE if metric.source == "both"]
    assert sum(of_each.values()) == sum(map(series_table.series_of, [*CATALOGUE, *twice]))
    assert of_each["exporter", "incident"] == of_each["coordinator", "kind"] == of_each["coordinator", "rank"] == 0


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


def test_a_higher_level_has_no_less():
    """Each level has more of ranks than the one before; a coordinator has the same at all of them."""
    for scope in ("rank", "kind", "service"):
        counts = [series_table.count("exporter", scope, level) for level in LEVELS]
        assert counts == sorted(counts)
    assert len({series_table.count("coordinator", "run", level) for level in LEVELS}) == 1
    assert all(len(row) == 1 + len(LEVELS) for row in series_table.rows())


@pytest.mark.parametrize(("level", "most"), series_table.BUDGETS.items())
def test_ten_thousand_ranks_stay_within_their_budget(level, most):
    """Exporters, a coordinator with all its suspects, recorded series and what Prometheus adds to each scrape."""
    found = series_table.of_cluster(nodes=1_250, ranks=8, kinds=1, level=level)
    assert 0.9 * most < found <= most


def test_every_recorded_series_is_counted():
    """The level in front of each rule's name is one of those that `recorded` knows, at the size of one node."""
    per_run = [rule for rule in rules.recordings() if rule.record.startswith("run:")]
    found = series_table.recorded(nodes=1, ranks=1, kinds=1)
    assert found > len(rules.recordings()) > len(per_run) > 0
    per_rank = series_table.recorded(nodes=1, ranks=2, kinds=1) - found
    by_rank = [rule.record for rule in rules.recordings() if rule.record.startswith("run_rank_hostname:")]
    assert per_rank == len([record for record in by_rank if ":lockstep_nccl_" not in record]) > 0
