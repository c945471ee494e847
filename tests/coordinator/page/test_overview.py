"""Short texts of the pages."""

import re
from dataclasses import replace

import pytest

from coordinator.page.incident_list import SHOWN_MAX, render_incidents
from coordinator.page.layout import format_seconds
from coordinator.page.overview import render_page, runs_table, suspects
from coordinator.settings.config import CoordinatorConfig
from coordinator.snapshot import Suspect
from tests.coordinator.test_collector import run_snapshot, snapshot
from tests.coordinator.test_store import incident


@pytest.mark.parametrize(
    ("ranks", "slow", "text"),
    [
        ((), 0, "-"),
        ((), 3, "3"),
        ((2,), 1, "rank 2"),
        ((2,), 2, "ranks 2 and 1 more"),
        ((2, 5), 2, "ranks 2, 5"),
    ],
)
def test_slow_ranks_are_not_read_as_their_number(ranks, slow, text):
    """Rank 2 is not two ranks."""
    worst = tuple(
        Suspect(rank=rank, hostname="a", domain_kind="dp", cause="compute", excess_ratio=0.1) for rank in ranks
    )
    assert suspects(run_snapshot(suspects=worst, slow_ranks=slow)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 ns"),
        (0.433, "433 ms"),
        (12.5, "12.5 s"),
        (599.0, "599 s"),
        (600.0, "10 min"),
        (7199.0, "120 min"),
        (7200.0, "2.0 h"),
    ],
)
def test_times_have_the_unit_that_people_use(seconds, text):
    """Ten minutes are not 0.2 h."""
    assert format_seconds(seconds) == text


def test_runs_that_need_somebody_come_first():
    """Open incidents, then a run that stands still, then the others by name."""
    slow = run_snapshot("z-slow", incidents=(incident(),))
    others = [run_snapshot(name, incidents=(), state=state) for name, state in (("a", "healthy"), ("b", "lost"))]
    page = runs_table((*others, slow))
    assert re.findall(r'href="/runs/([^"]+)"', page) == ["z-slow", "b", "a"]


def test_figures_are_sorted_as_numbers():
    """2 s come after 900 ms, and what is not known after both; names are sorted by their text."""
    times = (0.9, 2.0, None)
    page = runs_table(tuple(run_snapshot(f"r{each}", incidents=(), recent_step_seconds=each) for each in times))
    keys = re.findall(r'data-name="step time" data-value="([^"]+)"', page)
    assert sorted(map(float, keys)) == [-1.0, 0.9, 2.0]
    assert '<td data-name="run"><a' in page


def test_all_incidents_are_on_one_page():
    """The open ones first, then the youngest; how long each lasted; more than are shown are counted."""
    old = incident(1, state="closed", closed_step=80, closed_unix_ns=61 * 10**9, opened_unix_ns=10**9)
    young = replace(old, id="young", opened_unix_ns=2 * 10**9)
    page = render_incidents([old, young, incident(3)], snapshot(run_snapshot()), CoordinatorConfig())
    assert re.findall(r'href="/incidents/([^"]+)"', page) == ["job-3", "young", "job-1"]
    assert 'data-name="lasted" data-value="60">60 s<' in page
    many = [incident(number) for number in range(SHOWN_MAX + 7)]
    assert "7 more: see /api/v1/incidents." in render_incidents(many, snapshot(), CoordinatorConfig())
    assert "No incident yet." in render_incidents([], snapshot(), CoordinatorConfig())


def test_a_page_that_receives_nothing_shows_it():
    """No broker, or no exporter while runs are watched: in words that stand out, in a part that is kept fresh."""
    live = '<span id="sources-live" data-live="">'
    well = render_page(snapshot(run_snapshot()), [], CoordinatorConfig(), {})
    assert f"{live} · connected to the broker · exporters alive: {snapshot().nodes_alive}</span>" in well
    deaf = replace(snapshot(run_snapshot()), is_connected=False, nodes_alive=0)
    rendered = render_page(deaf, [], CoordinatorConfig(), {})
    assert (
        '<span class="bad">not connected to the broker</span> · <span class="bad">exporters alive: 0</span>' in rendered
    )
    young = render_page(replace(snapshot(), nodes_alive=0), [], CoordinatorConfig(), {})
    assert " · exporters alive: 0</span>" in young


def test_what_is_open_stands_before_the_runs():
    """Who was paged does not pass twenty healthy runs first."""
    quiet = [run_snapshot(f"quiet-{number}") for number in range(20)]
    slow = incident()
    page = render_page(
        snapshot(run_snapshot("job", incidents=(slow,)), *quiet), [], CoordinatorConfig(), {slow.id: "n7"}
    )
    assert page.index("Slow rank: rank 2-3") < page.index("quiet-0")
    assert "<dt>Host</dt><dd>n7</dd>" in page
