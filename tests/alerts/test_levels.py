"""The level minimal of exporters: what rules read and nothing else, so that no rule can lose its series."""

import re

import pytest

from alerts import rules
from alerts.policy import Site
from lockstep.cli import level_table
from lockstep.contracts.metrics import BY_NAME, CATALOGUE
from tests.alerts.promql import parse
from tests.alerts.test_rules import queries_of

DETAILS = {metric.name for metric in CATALOGUE if metric.detail}


def read_by_rules(site):
    """Return the families that the expressions of all rules, and the queries in texts of alerts, select."""
    asked = [rule.expr for rule in rules.recordings(site)]
    asked += [query for alert in rules.alerts(site) for query in (alert.expr, *queries_of(alert))]
    named = {selector.metric for expr in asked for selector in parse(expr).selectors}
    return {name if name in BY_NAME else re.sub(r"_(bucket|sum|count)\Z", "", name) for name in named}


@pytest.mark.parametrize("labels", ["run", "cluster, run"])
def test_minimal_leaves_out_what_no_rule_reads(labels):
    """Of all that an exporter says of runs and ranks; of itself and its node it says everything at every level."""
    of_runs = {metric.name for metric in CATALOGUE if metric.source == "exporter" and "run" in metric.labels}
    assert of_runs - read_by_rules(Site(run_labels=labels)) == DETAILS
    assert len(of_runs) > len(DETAILS) > 0


def test_the_page_names_who_misses_something():
    """Every family that is left out is a row, with the panels and runbooks that ask for it."""
    found = {name.strip("`"): (panels, runbooks) for name, panels, runbooks in level_table.rows()}
    assert set(found) == DETAILS
    panels, runbooks = found["lockstep_gc_collections_total"]
    assert panels == "Rank: Garbage collections"
    assert "(../alerts/runbooks/LockstepRunSlow.md)" in runbooks
    # Its own device is found by UUID there, and still by the number of its local rank here.
    assert "Rank: Clock (in part)" in found["lockstep_rank_device_info"][0]
    assert found["lockstep_collectives_total"] == ("none", "none")
