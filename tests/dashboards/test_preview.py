"""The preview's own arithmetic: variables, units, rows of a table, colours; pictures are for `test_live.py`."""

import math

import pytest

from dashboards.preview import chart, panel
from dashboards.preview.ask import Answer, Series, Window, replaced
from dashboards.preview.units import beside_axis, ticks, told
from lockstep.cli.main import main

WINDOW = Window(url="http://127.0.0.1:1", begin_s=0.0, end_s=3600.0)


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
        (math.nan, "s", "NaN"),
        (math.inf, "s", "∞"),
    ],
)
def test_numbers_have_units(value, unit, text):
    """Three figures, in the unit that suits the size."""
    assert " ".join(told(value, unit).split()) == text


def test_axes_leave_out_what_a_suffix_says():
    """The title says tokens; the mark has room for the number."""
    assert beside_axis(20000, "suffix: tokens/s").strip() == "20 k"
    assert beside_axis(0.5, "percentunit") == "50 %"


def test_marks_are_round_and_inside():
    """About four round numbers between the ends."""
    assert ticks(0, 1.5) == [0, 0.5, 1, 1.5]
    assert ticks(0, 0.0013) == [0, 0.0005, 0.001]
    assert ticks(3, 3) == [3]


def test_variables_are_filled_in_as_grafana_does():
    """Both spellings; what is no variable stays, and a rate has a window of some scrapes."""
    values = {"run": "r1", "rank": "2", "hostname": ".+"}
    text = 'x{run="$run",rank="${rank}",h=~"$hostname"}[$__rate_interval] y[$__range] "$1"'
    assert replaced(text, values, WINDOW) == 'x{run="r1",rank="2",h=~".+"}[60s] y[3600s] "$1"'


def test_a_line_is_broken_where_nothing_was_measured():
    """Two pieces for two stretches, a point for a single sample, nothing for NaN."""
    points = ((0.0, 1.0), (15.0, 1.0), (600.0, 2.0), (615.0, 2.0), (1200.0, 3.0), (2400.0, math.nan))
    drawn = chart.lines([series(points=points)], "s", WINDOW, (800, 200))
    assert (drawn.count("<polyline"), drawn.count("<circle")) == (2, 1)


def test_a_heat_map_counts_between_bounds():
    """Buckets are cumulative: what lies between two bounds is drawn, not what lies below one."""
    rows = [series(points=((0.0, count),), le=le) for le, count in (("0.1", 0.0), ("1.0", 4.0), ("+Inf", 4.0))]
    assert chart.heat(rows, WINDOW, (800, 200)).count("<rect") == 1


def test_text_from_labels_is_escaped():
    """A label is text, whatever it holds."""
    hostile = series("<script>alert(1)</script>")
    for drawn in (
        chart.bands([hostile], WINDOW, 800, lambda _: None),
        chart.cells([hostile], "s", WINDOW, 800),
        panel._legend([hostile], "s"),
        panel._bars([hostile], "s"),
    ):
        assert "<script>" not in drawn


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
        Answer("A", (series(run="r1", state="healthy"), series(run="r2", state="hung"))),
        Answer("B", (series(points=((0, 1.5),), run="r1"), series(points=((0, 2.5),), run="r2"))),
        Answer("C", (series(points=((0, 7.0),), run="r2"),)),
    ]
    text = panel._table(grid_panel("B", "C"), answers)
    assert "<th>run</th><th>state</th><th>head B</th><th>head C</th>" in text
    rows = text.split("<tr>")[2:]
    assert ["r2" in rows[0], "hung" in rows[0], "2.5" in rows[0], ">7<" in rows[0]] == [True] * 4
    assert ["r1" in rows[1], "healthy" in rows[1], "1.5" in rows[1]] == [True] * 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--dashboard", "fleets"), "expected one of fleet, run"),
        (("--var", "ran=x"), "expected NAME=VALUE with one of"),
        (("--last", "soon"), "expected a number with s, m, h or d"),
        (("--prometheus", "file:///etc/passwd"), "begins with http"),
        (("--prometheus", "http://127.0.0.1:1"), "expected the API of a Prometheus"),
    ],
)
def test_what_cannot_be_drawn_is_named(tmp_path, capsys, arguments, said):
    """One line of error, no page."""
    out = tmp_path / "page.html"
    assert main(["preview", str(out), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()
