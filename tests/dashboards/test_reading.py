"""Rules by which a person reads every dashboard: zeros, counts, colours, words, headings, marks, and ways onward."""

import json
import re
from pathlib import Path

import pytest

from dashboards import catalogue
from dashboards.builders import every_panel
from dashboards.queries import CAUSE_COLOURS
from lockstep.contracts.metric import CAUSES
from lockstep.contracts.metrics import BY_NAME
from tests.alerts.promql import parse
from tests.dashboards import test_catalogue

BOARDS = {path.stem: json.loads(text) for path, text in catalogue.render().items()}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in every_panel(board) if panel["type"] != "row"]
DOCS = Path(__file__).parents[2] / "docs" / "dashboards.md"
NOT_COUNTED = {"Load of its node"}
"""Gauges in no unit that are no number of things: the load is an average."""

HELD = {
    "template-datasource-rule": "test_variables",
    "template-label-promql-rule": "test_variables",
    "template-on-time-change-reload-rule": "test_variables",
    "panel-datasource-rule": "test_a_panel_explains_itself",
    "panel-title-description-rule": "test_a_panel_explains_itself",
    "panel-no-targets-rule": "test_a_panel_explains_itself",
    "target-promql-rule": "test_a_query_uses_the_catalogue",
    "target-logql-rule": "test_a_query_states_its_interval",
    "target-logql-auto-rule": "test_a_query_states_its_interval",
    "target-rate-interval-rule": "test_a_rate_spans_what_grafana_chooses",
    "target-counter-agg-rule": "test_a_query_uses_the_catalogue",
    "uneditable-dashboard": "test_a_board_is_generated_shared_and_dated_alike",
}
"""Rule of the community's linter to the test in test_catalogue.py that holds it."""


def of_column(panel, heading):
    """Return the properties that overrides give to what has a heading or a name."""
    return {
        item["id"]: item["value"]
        for override in panel["fieldConfig"].get("overrides", [])
        if override["matcher"] == {"id": "byName", "options": heading}
        for item in override["properties"]
    }


def headings(panel):
    """Yield (field, heading) of the columns that a table shows."""
    options = panel["transformations"][-1]["options"]
    for name in options["indexByName"]:
        if name not in options["excludeByName"]:
            yield name, options["renameByName"].get(name, name)


def shown():
    """Yield (panel, expression, unit, decimals, colours by threshold) of every value that a panel shows."""
    for _, panel in PANELS:
        defaults = panel["fieldConfig"]["defaults"]
        if panel["type"] == "alertlist":
            continue
        if panel["type"] != "table":
            steps = defaults.get("thresholds", {}).get("steps", [])
            for target in panel["targets"]:
                yield panel, target["expr"], defaults["unit"], defaults.get("decimals"), steps
            continue
        for field, heading in headings(panel):
            if field.startswith("Value"):
                (target,) = [t for t in panel["targets"] if field in ("Value", f"Value #{t['refId']}")]
                own = {**defaults, **of_column(panel, heading)}
                steps = own.get("thresholds", {}).get("steps", [])
                yield panel, target["expr"], own["unit"], own.get("decimals"), steps


def test_what_is_counted_has_no_decimals():
    """Ranks, runs, incidents, exporters: whole numbers; a number without a unit that may be broken is a rate."""
    for panel, expr, unit, decimals, _ in shown():
        assert (decimals == 0) == (unit == "locale"), panel["title"]
        if unit == "short" and panel["title"] not in NOT_COUNTED:
            assert re.search(r"rate", expr), panel["title"]


def test_what_was_counted_in_a_time_is_rounded():
    """`increase` extrapolates to the ends of its window and gives 3.01 of three."""
    found = [expr for _, expr, unit, _, _ in shown() if unit == "locale" and "increase(" in expr]
    assert found
    assert all(expr.startswith("round(") for expr in found)


def test_a_stat_does_not_count_what_a_comparison_left():
    """`count(x == 0)` of none is no data: the same as where nothing is scraped."""
    for _, panel in PANELS:
        if panel["type"] == "stat":
            for target in panel["targets"]:
                assert not re.search(r"count\(.*[=<>] \d", target["expr"]), panel["title"]


def test_a_colour_means_the_same_in_every_cluster():
    """Colours begin at a share, at the first of what should not be, or show whether something works."""
    coloured = [(panel["title"], unit, steps[1:]) for panel, _, unit, _, steps in shown() if len(steps) > 1]
    for title, unit, steps in coloured:
        if unit != "percentunit":
            assert (unit in ("locale", "none"), [step["value"] for step in steps]) == (True, [1]), title
    assert len(coloured) > 10


def test_what_is_1_or_0_is_shown_in_words():
    """A stat of a gauge that is 1 while something works maps both values to words of their own."""
    asked = 0
    for _, panel in PANELS:
        if panel["type"] == "stat" and " bool " not in panel["targets"][0]["expr"]:
            (metric, *others) = [s.metric for s in parse(test_catalogue.expression(panel["targets"][0])).selectors]
            if not others and metric in BY_NAME and re.match(r"1 (while|if) ", BY_NAME[metric].help):
                (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
                words = {value: option["text"] for value, option in mapping["options"].items()}
                assert set(words) == {"0", "1"}
                assert words["0"] != words["1"]
                asked += 1
    assert asked == 3


def test_both_services_expose_their_version():
    """During an upgrade the coordinator goes first: the dashboard about Lockstep shows every version there is."""
    text = json.dumps(BOARDS["self-monitoring"])
    versions = [name for name in BY_NAME if name.endswith("_build_info")]
    assert len(versions) == 2
    assert all(name in text for name in versions)


def test_titles_and_units_agree():
    """A rate is not called an amount, and seconds per second are a share."""
    for panel, expr, unit, _, _ in shown():
        if unit == "Bps":
            assert re.search(r"andwidth|a second|Network", panel["title"])
        if unit == "s" and re.search(r"rate\([a-z_]+_seconds_total", expr):
            assert " / " in expr, panel["title"]


def test_headings_of_tables_are_words():
    """No column is headed by a label's name in the form of a program."""
    found = {heading for _, panel in PANELS if panel["type"] == "table" for _, heading in headings(panel)}
    assert {"host", "root cause", "domain", "local rank"} <= found
    assert not [heading for heading in found if re.search(r"_|hostname|Value|\A[A-Z][a-z]", heading)]


def test_a_cause_has_one_colour():
    """Wherever a cause is drawn as a line or a band, and every one of them."""
    assert set(CAUSE_COLOURS) == set(CAUSES)
    drawn = [
        panel
        for _, panel in PANELS
        if panel["type"] in ("timeseries", "state-timeline")
        and any(re.search(r"\A{{cause}}|: {{cause}}", target["legendFormat"]) for target in panel["targets"])
        and "topk" not in panel["targets"][0]["expr"]
    ]
    assert len(drawn) == 4
    for panel in drawn:
        colours = {
            re.search(r"\w+", override["matcher"]["options"])[0]: override["properties"][0]["value"]["fixedColor"]
            for override in panel["fieldConfig"]["overrides"]
        }
        assert colours == CAUSE_COLOURS


def test_a_band_is_not_splintered_by_its_value():
    """A band ends where its series ends: a value that moves would begin a new one at each point."""
    for _, panel in PANELS:
        if panel["type"] == "state-timeline":
            for target in panel["targets"]:
                assert re.search(r"== 1\b|> bool 0|_info\{", target["expr"]), panel["title"]


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_board_of_a_run_is_marked_and_leads_to_the_coordinator(board):
    """Start and restart, incidents and alerts on each; the menu has the coordinator's page of the run, or its first."""
    variables = {item["name"] for item in board["templating"]["list"]}
    _, menu = board["links"]
    assert "coordinator" in variables
    if "run" in variables:
        marks = {mark["name"]: mark["expr"] for mark in board["annotations"]["list"]}
        assert set(marks) == {"Incidents", "Alerts", "Starts and restarts"}
        assert 'state="warming"' in marks["Starts and restarts"]
        assert menu["url"] == "${coordinator}/runs/${run:percentencode}"
    else:
        assert menu["url"] == "${coordinator}/"


def test_rules_of_the_linter_are_held_or_left_out_for_a_reason():
    """Each of the seventeen is tested, or stands with its reason in docs/dashboards.md and is indeed not kept."""
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+?) \|$", DOCS.read_text(), re.MULTILINE)
    left_out = {rule for rule, reason in rows if len(reason) > 20}
    assert left_out == {
        "template-job-rule",
        "template-instance-rule",
        "target-job-rule",
        "target-instance-rule",
        "panel-units-rule",
    }
    assert len(left_out | HELD.keys()) == 17
    assert all(hasattr(test_catalogue, name) for name in HELD.values())
    names = {item["name"] for board in BOARDS.values() for item in board["templating"]["list"]}
    assert not names & {"job", "instance"}
    assert any(unit.startswith("suffix: ") for _, _, unit, _, _ in shown())
