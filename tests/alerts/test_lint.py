"""Every rule and every dashboard's query through the lint, and the lint against a mistake of each kind."""

import json
import re

import pytest
import yaml

from alerts import rules
from alerts.policy import Site
from dashboards import catalogue
from dashboards.builders import every_panel
from tests.alerts import lint

SITE = Site()
EXAMPLE = yaml.safe_load((rules.RENDERED.parent.parent / "prometheus.example.yml").read_text())
SCRAPE_S = int(EXAMPLE["global"]["scrape_interval"].removesuffix("s"))
ALERTS = {alert.name: alert for alert in rules.alerts()}
ALWAYS = {"LockstepWatchdog"}
"""Alerts without a condition: this one's purpose is to fire."""
BOARDS = {board.uid: board for board in catalogue.BOARDS.values()}


def rendered_boards():
    return [json.loads(text) for text in catalogue.render().values()]


def filled(expr):
    """Return a dashboard's expression with values for Grafana's variables; Grafana sees to four scrapes in a rate."""
    expr = expr.replace("$__rate_interval", f"{4 * SCRAPE_S}s").replace("$__range", "1h")
    return re.sub(r"\$\w+", "x", expr)


QUERIES = sorted(
    {filled(t["expr"]) for board in rendered_boards() for panel in every_panel(board) for t in panel.get("targets", [])}
)
EXPRESSIONS = {**{rule.record: rule.expr for rule in rules.recordings()}, **{a.name: a.expr for a in ALERTS.values()}}
EXPRESSIONS |= {query: query for query in QUERIES}


def test_labels_match_on_both_sides_and_rates_see_two_scrapes():
    """Of rules and dashboards alike: no match on a label that a side lacks, none with several series."""
    found = {
        name: complaint
        for name, expr in EXPRESSIONS.items()
        if (complaint := [*lint.vector_matching(expr), *lint.rate(expr, SCRAPE_S)])
    }
    assert found == {}
    assert len(QUERIES) > 50


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_a_condition_and_a_text_that_fits_its_result(name):
    """Condition, absence and every label of summary, description and links."""
    alert = ALERTS[name]
    notes = alert.to_yaml(SITE)["annotations"]
    assert bool(lint.comparison(alert.expr)) == (name in ALWAYS)
    assert lint.absent(alert.expr, alert.for_seconds, SCRAPE_S) == []
    assert {key: complaint for key, text in notes.items() if (complaint := lint.template(text, alert.expr))} == {}
    assert [complaint for text in notes.values() for complaint in lint.order(text)] == []


def test_links_lead_somewhere_and_no_rule_is_there_twice():
    """Runbook, dashboard and the variables that the link to it sets."""
    document = yaml.safe_load(rules.render())
    every = [rule for group in document["groups"] for rule in group["rules"]]
    boards = {board["uid"]: {item["name"] for item in board["templating"]["list"]} for board in rendered_boards()}
    runbooks = {path.name for path in rules.RUNBOOKS.glob("*.md")}
    assert lint.duplicates(every) == []
    assert [lint.links(rule["annotations"], runbooks, boards) for rule in every if "alert" in rule] == [[]] * len(
        ALERTS
    )


UP = 'up{job="x"}'


@pytest.mark.parametrize(
    ("check", "arguments", "expected_text"),
    [
        (lint.vector_matching, ("lockstep_run_ranks / on (pod) lockstep_run_step",), "left side never has it"),
        (lint.vector_matching, (f"max by (run) (lockstep_run_step) and on (run) {UP}",), "right side never has it"),
        (lint.vector_matching, ("lockstep_step / on (run) lockstep_run_step",), "several series of the left side"),
        (
            lint.vector_matching,
            ("lockstep_step * on (run) group_left lockstep_agent_up",),
            "several series of the right side",
        ),
        (lint.vector_matching, ("sum by (run) (lockstep_step) / sum by (rank) (lockstep_step)",), "only one side"),
        (lint.vector_matching, ("lockstep_step unless ignoring (rank) lockstep_rank_info",), "only one side"),
        (lint.rate, ("sum(rate(lockstep_steps_total[15s]))", 15), "not two scrapes"),
        (lint.rate, ("rate(sum(lockstep_steps_total)[5m:1m])", 15), "of a sum"),
        (lint.comparison, ("sum by (run) (lockstep_run_slow_ranks)",), "no condition"),
        (lint.comparison, (f"{UP} > bool 0",), "no condition"),
        (lint.comparison, (f"{UP} == 0 or lockstep_run_step",), "no condition"),
        (lint.comparison, (f"lockstep_run_step unless {UP} == 0",), "no condition"),
        (lint.absent, (f"absent({UP})", 15, 15), "one lost scrape"),
        (lint.absent, ('absent(up{job=~"x|y"})', 300, 15), "without an exact label"),
        (lint.absent, ('absent(lockstep_run_step{run="a"})', 300, 15), "a run that ended"),
        (lint.template, ("{{ $labels.rank }}", "max by (run) (lockstep_step) > 1"), "never has it"),
        (lint.template, ("{{ $labels.instance }}", f"{UP} == 0 or absent({UP})"), "does not ask"),
        (
            lint.template,
            ("{{ range query `max by (run) (lockstep_step)` }}{{ .Labels.rank }}{{ end }}", UP),
            "no query",
        ),
        (lint.template, ("{{ with query `up` }}{{ . | first | label `rank` }}{{ end }}", UP), "no query"),
        (lint.order, ("{{ range query `topk(5, up == 0)` }}{{ .Labels.instance }}{{ end }}",), "in no order"),
        (
            lint.order,
            ('{{ with printf `a{run="%s"}` $labels.run | query }}{{ . | first | label `rank` }}{{ end }}',),
            "in no order",
        ),
        (lint.duplicates, ([{"alert": "A", "expr": UP}, {"alert": "A", "expr": "vector(1)"}],), "A: 2 rules"),
        (lint.duplicates, ([{"record": "a", "expr": "sum (up)"}, {"record": "b", "expr": "sum(up)"}],), "recorded 2"),
        (lint.links, ({"runbook_url": "x/Gone.md", "dashboard_url": "x/d/run"}, set(), {"run": set()}), "no such file"),
        (lint.links, ({"runbook_url": "x/A.md", "dashboard_url": "x/d/old"}, {"A.md"}, {"run": set()}), "no such uid"),
        (
            lint.links,
            (
                {"runbook_url": "x/A.md", "dashboard_url": "x/d/run?var-job={{ $labels.run }}"},
                {"A.md"},
                {"run": {"run"}},
            ),
            "no variable job",
        ),
    ],
)
def test_each_mistake_is_named(check, arguments, expected_text):
    """A broken rule is found by the check that is there for it."""
    assert any(expected_text in each for each in check(*arguments)), check(*arguments)


@pytest.mark.parametrize("text", ["sum by (run (a)", "a[5m", "rate(lockstep_steps_total)"])
def test_what_is_no_promql_is_refused(text):
    """The parser has types: it refuses what Prometheus would."""
    with pytest.raises(ValueError):
        lint.parse(text)
