"""The timeline and the flame graphs: what is drawn of traces, and that a browser shows it and leads to a finding's place."""

import json
import re
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from lockstep.analysis import pictures as module
from lockstep.analysis.analyse import analyse_paths
from lockstep.analysis.pictures import KINDS, pictures_of
from lockstep.analysis.report import render
from lockstep.analysis.sources import Source
from lockstep.analysis.workers import run_here
from lockstep.trace.store import write_columns
from tests.analysis.comparison.made_run import LOADER, Job
from tests.analysis.report import made
from tests.analysis.report.reader import read
from tests.analysis.report.test_browser import HIDDEN, OUTSIDE
from tests.analysis.report.test_escaping import HOSTILE
from tests.support.browser import chromium
from tests.trace.made import columns_of
from tests.trace.made import made as event

RECORDED = Path(__file__).parents[1] / "recorded"
_SUBJECT = "tests/analysis/recorded_job.py(82): forward"


def analysed(folder):
    """Return the summary of a folder and the pictures of its traces."""
    found = analyse_paths([folder], partial(run_here, processes=1))
    summary = found.as_json()
    return summary, pictures_of(found.sources, summary["findings"])


@pytest.fixture(scope="module")
def forward():
    return analysed(RECORDED / "forward_stacks")


def test_the_place_of_a_finding_is_its_longest_call(forward):
    """The slow forward of rank 2, as long as the fault that was injected; its slice is in a lane of that rank."""
    _, pictures = forward
    assert pictures.places == {(2, _SUBJECT)}
    begin_ns, duration_ns = pictures.timeline["places"][f"2|{_SUBJECT}"]
    assert duration_ns > 40e6
    rank = next(each for each in pictures.timeline["ranks"] if each["rank"] == 2)
    rows = [lane["slices"][at : at + 5] for lane in rank["lanes"] for at in range(0, len(lane["slices"]), 5)]
    (found,) = [row for row in rows if row[:2] == [begin_ns, duration_ns]]
    assert pictures.timeline["names"][found[2]] == _SUBJECT
    assert KINDS[found[3]] == "host"


def test_the_culprit_is_drawn_first(forward):
    """Rank 2, then its peers in order."""
    assert [each["rank"] for each in forward[1].timeline["ranks"]] == [2, 0, 1, 3]


def test_lanes_do_not_cross_and_lie_in_the_window(forward):
    """On each depth of a lane slices follow each other; the deepest is as deep as the lane."""
    for rank in forward[1].timeline["ranks"]:
        for lane in rank["lanes"]:
            rows = [lane["slices"][at : at + 5] for at in range(0, len(lane["slices"]), 5)]
            assert max(depth for *_, depth in rows) == lane["depth"] - 1
            for level in range(lane["depth"]):
                spans = sorted((start, start + length) for start, length, _, _, depth in rows if depth == level)
                assert all(one[1] <= other[0] for one, other in pairwise(spans))


def test_the_culprits_deepest_frame_is_marked(forward):
    """The sleep inside forward, and nothing else; the peer's graph marks nothing."""
    culprit, peer = forward[1].flames
    assert (culprit.rank, peer.rank) == (2, 0)
    (marked,) = [frame for frame in culprit.frames if frame.is_culprit]
    assert marked.name == "<built-in function sleep>"
    assert marked.total_ns > 115e6
    assert marked.peer_ns is None
    assert not any(frame.is_culprit for frame in peer.frames)


def test_callees_lie_inside_their_callers(forward):
    """Below each frame, none wider than the row above, none outside of the picture."""
    for graph in forward[1].flames:
        for frame in graph.frames:
            assert -1e-9 <= frame.left <= frame.left + frame.width <= 1 + 1e-6
            above = [each for each in graph.frames if each.depth == frame.depth - 1]
            inside = [
                each
                for each in above
                if each.left - 1e-6 <= frame.left and frame.left + frame.width <= each.left + each.width + 1e-6
            ]
            assert inside or frame.depth == 0


def test_device_streams_follow_host_threads(tmp_path):
    """Kernels and collectives have lanes of their own, in the colours of their classes."""
    for rank, columns in enumerate(Job(seed=1, loader_extra_ns=4_000_000, slow_rank=1).columns()):
        write_columns(columns, tmp_path / f"{rank}.parquet")
    _, pictures = analysed(tmp_path)
    lanes = pictures.timeline["ranks"][0]["lanes"]
    assert [lane["name"] for lane in lanes] == ["thread 1", "device 0 stream 7", "device 0 stream 20"]
    assert {KINDS[kind] for kind in lanes[1]["slices"][3::5]} == {"compute"}
    assert {KINDS[kind] for kind in lanes[2]["slices"][3::5]} == {"communication"}
    assert (1, LOADER) in pictures.places


def test_a_lane_of_many_events_keeps_the_longest(tmp_path, monkeypatch):
    """What is left out is counted, and stated on the page."""
    monkeypatch.setattr(module, "SLICES_MAX", 7 * 10)
    write_columns(
        columns_of([event("work", start_ns=1000 * at, duration_ns=10 + at) for at in range(50)]), tmp_path / "0.parquet"
    )
    summary, pictures = analysed(tmp_path)
    (lane,) = pictures.timeline["ranks"][0]["lanes"]
    assert lane["slices"][1::5] == list(range(50, 60))
    assert lane["left_out"] == 40
    assert "40 short or deeply nested events are left out" in render(summary, pictures)


def test_traces_that_went_away_leave_the_report_without_pictures():
    """The findings stand; the section states why it is empty."""
    assert pictures_of({0: Source(path=Path("/nowhere/rank0.json"))}, []) is None
    page = read(render(made.summary()))
    assert "made without" in page.find("section", id="timeline")[0].text


def test_a_hostile_name_ends_no_element(tmp_path):
    """Names in the timeline's data and in the flame graph stay text."""
    for rank, slow in enumerate((1, 40)):
        columns = columns_of(
            [
                event("ProfilerStep#1", "user_annotation", 1, 0, 100_000_000),
                event(HOSTILE, "python_function", 1, 1000, slow * 1_000_000),
            ]
        )
        write_columns(columns, tmp_path / f"{rank}.parquet")
    summary, _ = analysed(tmp_path)
    found = analyse_paths([tmp_path], partial(run_here, processes=1))
    finding = {"ranks": [1], "subject": HOSTILE}
    page = render(summary, pictures_of(found.sources, [finding]))
    assert page.count("<script") == page.count("</script>") == 2
    data = re.search(r'id="timeline-data">(.*?)</script>', page, re.DOTALL)[1]
    assert HOSTILE in json.loads(data)["names"]
    document = read(page)
    assert any(HOSTILE[:40] in each.text for each in document.find("section", id="flame")[0].find("span"))
    assert "onload" not in {key for each in document.find("svg") for key in each.attributes}


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.mark.servers
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_a_link_leads_to_the_place_of_a_finding(browser, forward, tmp_path, width, scheme):
    """The page fits; the canvas is drawn; the link zooms to the slice and names it; buttons and keys zoom and move."""
    path = tmp_path / "page.html"
    path.write_text(render(*forward))
    browser.open(path, width=width, scheme=scheme)
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(OUTSIDE) == []
    assert browser.ask(HIDDEN) == 0
    seen = "(() => { const { from, to } = document.querySelector('#timeline canvas').dataset; return [+from, +to]; })()"
    whole = browser.ask(seen)
    timeline = forward[1].timeline
    assert whole == [timeline["begin_ns"], timeline["end_ns"]]
    browser.ask("document.querySelector('a[data-place]').click()")
    begin_ns, duration_ns = timeline["places"][f"2|{_SUBJECT}"]
    from_ns, to_ns = browser.ask(seen)
    assert from_ns <= begin_ns < begin_ns + duration_ns <= to_ns
    assert to_ns - from_ns == pytest.approx(2 * duration_ns, rel=0.01)
    readout = browser.ask("document.querySelector('#timeline .readout').textContent")
    assert readout.startswith(f"{_SUBJECT}: {duration_ns / 1e6:.4g} ms from ")
    assert browser.ask("location.hash") == "#timeline"
    colours = """(() => { const canvas = document.querySelector('#timeline canvas'), seen = new Set();
      const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      for (let at = 0; at < data.length; at += 4 * 7) seen.add(data.slice(at, at + 3).join());
      return seen.size; })()"""
    assert browser.ask(colours) > 5
    browser.ask("document.querySelector('#timeline button[data-key=\\'+\\']').click()")
    closer = browser.ask(seen)
    assert closer[1] - closer[0] == pytest.approx((to_ns - from_ns) / 2)
    press = "document.querySelector('#timeline canvas').dispatchEvent(new KeyboardEvent('keydown', {key: '%s'}))"
    browser.ask(press % "ArrowRight")
    assert browser.ask(seen)[0] == pytest.approx(closer[0] + 0.2 * (closer[1] - closer[0]))
    browser.ask(press % "0")
    assert browser.ask(seen) == whole
    assert browser.complaints == []
