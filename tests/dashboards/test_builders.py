"""Builders of panels: what leaves them is what Grafana reads, the same each time."""

import json

from dashboards import builders


def board(*panels):
    rows = (builders.DashboardRow(title="Row", lines=(builders.PanelLine(panels=panels),)),)
    return builders.DashboardSpec(
        uid="u", title="T", description="D.", rows=rows, variables=(builders.datasource_variable(),)
    )


def lines(title="Lines"):
    return builders.timeseries(title, "A description.", "s", builders.query("up"), builders.query("down", "{{x}}"))


def test_the_same_source_gives_the_same_bytes():
    """Rendering twice gives the same text: panels are not changed by being placed."""
    one = board(lines(), lines("Other"))
    assert builders.render(one) == builders.render(one)


def test_keys_are_sorted_and_nothing_is_null():
    """Keys are in order at every level, and null, which means a default in some releases and an error in others, is gone."""
    text = builders.render(board(lines(), builders.alerts("Alerts", "D.")))
    data = json.loads(text)
    assert text == json.dumps(data, indent=2, sort_keys=True) + "\n"
    assert "null" not in text


def test_panels_of_a_line_share_its_width():
    """Panels stand side by side from the left, under their row, with ids of their own."""
    panels = json.loads(builders.render(board(lines(), lines("B"), lines("C"))))["panels"]
    assert [(p["gridPos"]["x"], p["gridPos"]["y"], p["gridPos"]["w"]) for p in panels] == [
        (0, 0, 24),
        (0, 1, 8),
        (8, 1, 8),
        (16, 1, 8),
    ]
    assert [p["id"] for p in panels] == [1, 2, 3, 4]


def test_queries_are_named_and_know_their_source():
    """Each query has its own letter, a data source object, and is either a range or an instant."""
    _, panel = json.loads(builders.render(board(lines())))["panels"]
    assert [(t["refId"], t["range"], t["instant"]) for t in panel["targets"]] == [
        ("A", True, False),
        ("B", True, False),
    ]
    assert all(t["datasource"] == builders.DATASOURCE for t in panel["targets"])


def test_a_table_asks_for_one_moment_and_hides_what_has_no_heading():
    """A table's query is instant and in table form; without a heading the constant value column is left out."""
    table = builders.table("T", "D.", "none", builders.query("up", table=True), columns=("job",))
    _, panel = json.loads(builders.render(board(table)))["panels"]
    assert (panel["targets"][0]["instant"], panel["targets"][0]["format"]) == (True, "table")
    assert panel["transformations"][0]["options"]["excludeByName"] == {"Time": True, "Value": True}


def test_a_variable_of_many_values_offers_all():
    """A multi variable chooses all by a pattern that needs a value, and looks its values up with the time range."""
    many = builders.variable("host", "Host", "label_values(up, instance)", multi=True)
    one = builders.variable("run", "Run", "label_values(up, run)")
    text = builders.render(
        builders.DashboardSpec(
            uid="u", title="T", description="D.", rows=(), variables=(builders.datasource_variable(), many, one)
        )
    )
    source, host, run = json.loads(text)["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    assert (host["allValue"], host["includeAll"], host["multi"], host["refresh"]) == (".+", True, True, 2)
    assert host["query"]["query"] == host["definition"] == "label_values(up, instance)"
    assert "allValue" not in run
    assert run["datasource"] == builders.DATASOURCE
