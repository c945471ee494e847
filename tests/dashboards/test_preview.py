"""The preview's own arithmetic: variables, units, rows of a table, colours; pictures are for `test_live.py`."""

import math
import re
from pathlib import Path

import pytest

import dashboards
from dashboards.preview import ask, chart, panel
from dashboards.preview.ask import QueryResult, Series, TimeWindow, replaced
from dashboards.preview.units import axis_label, format_value, ticks
from lockstep.cli.main import main
from tests.support.servers import answers

WINDOW = TimeWindow(url="http://127.0.0.1:1", begin_s=0.0, end_s=3600.0)


def series(legend="a", points=((0.0, 1.0),), **labels):
    return Series(labels, legend, points)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 s"),
        (0.0000123, "s", "12.3 µs"),
        (0.25, "s", "250 ms"),
        (90, "s", "90 s"),
        (7200, "s", "2 h"),
        (0.333, "percentunit", "33.3 %"),
        (21300, "suffix: tokens/s", "21.3 k tokens/s"),
        (3e8, "Bps", "300 MB/s"),
        (84, "celsius", "84 °C"),
        (8, "short", "8"),
        (10240.2, "locale", "10,240"),
        (math.nan, "s", "NaN"),
        (math.inf, "s", "∞"),
    ],
)
def test_numbers_have_units(value, unit, text):
    """Three figures, in the unit that suits the size."""
    assert " ".join(format_value(value, unit).split()) == text


def test_axes_leave_out_what_a_suffix_states():
    """The title names tokens; the mark has room for the number."""
    assert axis_label(20000, "suffix: tokens/s").strip() == "20 k"
    assert axis_label(0.5, "percentunit") == "50 %"


def test_marks_are_round_and_inside():
    """About four round numbers between the ends."""
    assert ticks(0, 1.5) == [0, 0.5, 1, 1.5]
    assert ticks(0, 0.0013) == [0, 0.0005, 0.001]
    assert ticks(3, 3) == [3]


def test_marks_of_what_is_counted_are_whole():
    """No axis has half an incident."""
    assert ticks(0, 1, "locale") == [0, 1]
    assert ticks(0, 9, "locale") == [0, 5]
    assert ticks(0, 20, "locale") == [0, 5, 10, 15, 20]


def test_variables_are_filled_in_as_grafana_does():
    """Both spellings; what is no variable stays, and a rate has a window of some scrapes."""
    values = {"run": "r1", "rank": "2", "hostname": ".+"}
    text = 'x{run="$run",rank="${rank}",h=~"$hostname"}[$__rate_interval] y[$__range] "$1"'
    assert replaced(text, values, WINDOW) == 'x{run="r1",rank="2",h=~".+"}[60s] y[3600s] "$1"'


def test_a_line_is_broken_where_nothing_was_measured():
    """Two pieces for two stretches, a point for a single sample, nothing for NaN."""
    points = ((0.0, 1.0), (15.0, 1.0), (600.0, 2.0), (615.0, 2.0), (1200.0, 3.0), (2400.0, math.nan))
    drawn = chart.lines(
        [series(points=points)], "s", WINDOW, (800, 200), chart.SeriesStyle(lambda _: None, lambda _: False)
    )
    assert (drawn.count("<polyline"), drawn.count("<circle")) == (2, 1)


def test_a_line_looks_as_the_panel_sets_it():
    """Its colour and whether it is dashed are found by its legend, by the whole name or by a pattern."""
    colour = {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}}
    dash = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}}
    overrides = [
        {"matcher": {"id": "byName", "options": "compute"}, "properties": [colour]},
        {"matcher": {"id": "byRegexp", "options": "/, average rank$/"}, "properties": [dash]},
    ]
    shown = {
        "type": "timeseries",
        "gridPos": {"w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": "s"}, "overrides": overrides},
    }
    points = ((0.0, 1.0), (15.0, 1.0))
    drawn = panel._drawing(shown, [series("compute", points), series("compute, average rank", points)], WINDOW)
    found = re.findall(r'<polyline class="([^"]+)" stroke="([^"]+)"', drawn)
    assert found == [("l", panel._COLOURS["red"]), ("l dash", "var(--c1)")]


def test_a_heat_map_counts_between_bounds():
    """Buckets are cumulative: what lies between two bounds is drawn, not what lies below one."""
    rows = [series(points=((0.0, count),), le=le) for le, count in (("0.1", 0.0), ("1.0", 4.0), ("+Inf", 4.0))]
    assert chart.heat(rows, WINDOW, (800, 200)).count("<rect") == 1


def test_text_from_labels_is_escaped():
    """A label is text, whatever it holds."""
    hostile = series("<script>alert(1)</script>")
    for drawn in (
        chart.bands([hostile], WINDOW, (800, 200), lambda _: None),
        chart.cells([hostile], "s", WINDOW, (800, 200)),
        panel._legend([hostile], "s", lambda _: None),
        panel._text("<script>alert(1)</script>"),
        panel._bars([hostile], "s"),
    ):
        assert "<script>" not in drawn


def rectangles(drawn):
    """Return (x, y, width, height) of each."""
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', drawn)
    return [tuple(map(float, each)) for each in found]


def test_cells_fill_the_time_and_the_panel():
    """A cell is as wide as the time to the next, a hole stays one, and the rows share the panel's height."""
    points = ((0.0, 1.0), (15.0, 2.0), (45.0, 1.0))
    first, second, third, other = rectangles(
        chart.cells([series("0", points), series("1", ((0.0, 1.0),))], "s", WINDOW, (3672, 220))
    )
    assert first[0] + first[2] == pytest.approx(second[0] + 1, abs=0.2)
    assert second[0] + second[2] == pytest.approx(third[0] - first[2] + 2, abs=0.2)
    assert (other[1], first[3]) == (100.0, 90.0)


def test_bands_fill_the_panel():
    """One band is as high as the panel; many are no thinner than their names, and the panel grows."""
    (band,) = rectangles(chart.bands([series()], WINDOW, (800, 220), lambda _: None))
    assert band[3] == 180
    many = [series(str(number)) for number in range(100)]
    assert 'viewBox="0 0 800 2220"' in chart.bands(many, WINDOW, (800, 220), lambda _: None)


def test_the_axis_begins_with_the_data(monkeypatch):
    """A window that is longer than the run is cut to it, to no less than a minute; without data it stays."""
    asked = []

    def answer(_url, _path, parameters):
        asked.append(parameters["query"])
        return {"result": [{"metric": {}, "values": [[first_s, "1"]]}] if first_s else []}

    monkeypatch.setattr(ask, "_get", answer)
    first_s = 1200.0
    assert ask.narrowed(WINDOW, {"run": "r1"}).begin_s == 1200.0
    first_s = 3590.0
    assert ask.narrowed(WINDOW, {"run": "r1"}).begin_s == 3540.0
    first_s = 0.0
    assert ask.narrowed(WINDOW, {}) == WINDOW
    assert 'run="r1"' in asked[0]
    assert "run=" not in asked[-1]


def test_a_line_of_panels_is_as_high_as_it_needs():
    """Panels are placed by lines, not by units of height: a table with one row leaves no white below it."""
    row = {"type": "row", "title": "Row", "gridPos": {"x": 0, "y": 11, "w": 24, "h": 1}}
    assert 'style="grid-column:1/span 24;grid-row:3/span 1"' in panel.draw(row, WINDOW, {}, [0, 1, 11, 12])


def test_short_cells_are_not_broken():
    """Names of causes and alerts stay whole; only what is longer may be broken."""
    assert panel._text("LockstepSlowDeviceFound") == "<td>LockstepSlowDeviceFound</td>"
    assert panel._text("x" * 40).startswith('<td class="w">')


def test_a_stat_shows_the_word_for_its_value():
    """What is mapped is written as in the panel, in its colour; what is not is a number."""
    steps = [{"value": None, "color": "red"}, {"value": 1, "color": "green"}]
    options = {"0": {"text": "away"}, "1": {"text": "connected"}}
    defaults = {"thresholds": {"steps": steps}, "mappings": [{"type": "value", "options": options}]}
    cells = [
        panel._stat({"options": {}, "fieldConfig": {"defaults": defaults}}, series(points=((0.0, value),)), "none")
        for value in (0.0, 1.0, 2.0)
    ]
    assert [re.search(r">([^<]+)<", text)[1] for text in cells] == ["away", "connected", "2"]
    assert [panel._COLOURS[colour] in text for colour, text in zip(("red", "green"), cells, strict=False)] == [
        True,
        True,
    ]


def test_every_colour_of_the_dashboards_is_drawn():
    """What a browser does not know by Grafana's name leaves a gap in the legend."""
    rendered = (Path(dashboards.__file__).parent / "rendered").glob("*.json")
    named = {name for path in rendered for name in re.findall(r'"(?:fixedColor|color)": "([a-z-]+)"', path.read_text())}
    assert {"red", "dark-green"} <= named <= set(panel._COLOURS)


def test_a_state_without_a_colour_can_be_read():
    """White on grey: the colour of text as a background would be white on white in the dark scheme."""
    colour = {"id": "color", "value": {"mode": "fixed", "fixedColor": "text"}}
    overrides = [{"matcher": {"id": "byName", "options": "finished"}, "properties": [colour]}]
    shown = {"options": {"textMode": "name"}, "fieldConfig": {"defaults": {}, "overrides": overrides}}
    for state in ("finished", "of no override"):
        assert f"background:{panel._GREY}" in panel._stat(shown, series(state), "none")


@pytest.mark.parametrize(("minutes", "half"), [(4, 26), (60, 16)])
def test_no_moment_of_the_axis_is_cut(minutes, half):
    """A label ends before the drawing does; seconds are reported where minutes would repeat."""
    window = TimeWindow(url=WINDOW.url, begin_s=0.0, end_s=minutes * 60.0)
    drawn = chart.bands([series()], window, (800, 200), lambda _: None)
    labels = re.findall(r'<text class="m" x="([\d.]+)" y="\d+">([\d:]+)<', drawn)
    assert len({text for _, text in labels}) == len(labels) > 3
    assert max(float(x) for x, _ in labels) < 800 - half


def grid_panel(*columns, names=("A",)):
    order = {"run": 0, "state": 1, **{f"Value #{letter}": 2 + place for place, letter in enumerate(columns)}}
    organize = {
        "indexByName": order,
        "excludeByName": {"Time": True, **{f"Value #{n}": True for n in names}},
        "renameByName": {f"Value #{letter}": f"head {letter}" for letter in columns},
    }
    return {
        "transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}],
        "options": {"sortBy": [{"displayName": f"head {columns[-1]}", "desc": True}]},
        "fieldConfig": {"defaults": {"unit": "none"}, "overrides": []},
    }


def test_a_grid_merges_on_the_labels_it_has():
    """A row for each run: values of several queries stand in it, the largest last column first, empty where none is."""
    answers = [
        QueryResult("A", (series(run="r1", state="healthy"), series(run="r2", state="hung"))),
        QueryResult("B", (series(points=((0, 1.5),), run="r1"), series(points=((0, 2.5),), run="r2"))),
        QueryResult("C", (series(points=((0, 7.0),), run="r2"),)),
    ]
    text = panel._table(grid_panel("B", "C"), answers)
    assert "<th>run</th><th>state</th><th>head B</th><th>head C</th>" in text
    rows = text.split("<tr>")[2:]
    assert ["r2" in rows[0], "hung" in rows[0], "2.5" in rows[0], ">7<" in rows[0]] == [True] * 4
    assert ["r1" in rows[1], "healthy" in rows[1], "1.5" in rows[1]] == [True] * 3


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (("--dashboard", "fleets"), "expected one of fleet, run"),
        (("--var", "ran=x"), "expected NAME=VALUE with one of"),
        (("--last", "soon"), "expected a number with s, m, h or d"),
        (("--prometheus", "file:///etc/passwd"), "begins with http"),
        (("--prometheus", "http://127.0.0.1:1"), "http://127.0.0.1:1: got [Errno 111] Connection refused, expected"),
    ],
)
def test_what_cannot_be_drawn_is_named(tmp_path, capsys, arguments, expected_text):
    """One line of error, no page."""
    out = tmp_path / "page.html"
    assert main(["preview", str(out), *arguments]) == 2
    assert expected_text in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("body", ["<html>login</html>", "[1]", ""])
def test_a_server_that_is_no_prometheus_is_reported(tmp_path, capsys, body):
    """Its address, how its answer begins, and the option; no page."""
    out = tmp_path / "page.html"
    with answers(body) as address:
        assert main(["preview", str(out), "--prometheus", f"http://{address}"]) == 2
    where, expected = f"http://{address}/api/v1/query_range", "JSON of the API of a Prometheus; use --prometheus URL"
    assert capsys.readouterr().err == f"lockstep: answer in {where}: got {body!r}, expected {expected}\n"
    assert not out.exists()


def test_an_empty_panel_shows_what_it_needs(monkeypatch):
    """As Grafana does: the panel's own text, which names the level of the exporters where that is the reason."""
    monkeypatch.setattr(panel, "ask", lambda *_: [])
    shown = {"type": "timeseries", "fieldConfig": {"defaults": {"noValue": "no data (exported at metrics_level full)"}}}
    assert panel._body(shown, WINDOW, {}) == '<p class="none">no data (exported at metrics_level full)</p>'
    assert (
        panel._body({"type": "timeseries", "fieldConfig": {"defaults": {}}}, WINDOW, {})
        == '<p class="none">no data</p>'
    )
