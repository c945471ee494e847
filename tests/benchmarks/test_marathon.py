"""The marathon goes on where it stopped, counts by size, and writes dated figures with their bound."""

import json
from collections import Counter

import pytest

from benchmarks import marathon
from benchmarks.marathon import MarathonState, load, main, run_marathon, section, task_of
from benchmarks.scenarios.catalogue import DEGRADED, HEALTHY
from benchmarks.scenarios.report import marathon_of, with_marathon
from benchmarks.scenarios.score import JOB, Named, Score
from benchmarks.scenarios.table import OURS

NAMES = [name for name in HEALTHY if name not in DEGRADED]


@pytest.fixture
def measured(monkeypatch):
    """Let every run have 200 healthy steps, and the fourth one a page; return the tasks that were run."""
    tasks = []

    def measure(task):
        tasks.append(task)
        named = [Named(7, JOB, "data", "run-1")] if task == task_of(3) else []
        return task, [(OURS, Score(healthy_rows=200, alarms_in_health=len(named)))], named

    monkeypatch.setattr(marathon, "measure", measure)
    monkeypatch.setattr(marathon, "digest_of_sources", lambda: "abc")
    return tasks


def test_an_interrupted_marathon_is_the_same_as_one_run(measured, tmp_path):
    """Stopped after every run and taken up again, it runs the same tasks and ends with the same state."""
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    run_marathon(MarathonState(sources="abc"), whole, steps=2000, minutes=1)
    expected, _ = list(measured), measured.clear()
    for steps in range(200, 2001, 200):
        run_marathon(load(parts, "abc"), parts, steps=steps, minutes=1)
    assert measured == expected == [task_of(run) for run in range(10)]
    assert json.loads(parts.read_text()) == json.loads(whole.read_text())


def test_other_sources_begin_again(measured, tmp_path, capsys):
    """What another detector did shows nothing of this one, which gets other seeds; what is no state is refused."""
    path = tmp_path / "state.json"
    run_marathon(MarathonState(sources="abc"), path, steps=400, minutes=1)
    assert load(path, "abc").total_steps == 400
    assert load(path, "def") == MarathonState(sources="def", next_run=2)
    assert "the marathon begins again" in capsys.readouterr().out
    path.write_text("[]")
    with pytest.raises(SystemExit, match=r"state\.json: got .* expected the state of a marathon"):
        load(path, "abc")


def test_processor_time_ends_it(measured, tmp_path):
    """No minute is left: nothing is run."""
    run_marathon(MarathonState(sources="abc"), tmp_path / "state.json", steps=400, minutes=0)
    assert measured == []


def test_every_scenario_comes_to_every_size():
    """Sizes take turns by their shares, and no seed comes twice."""
    tasks = [task_of(run) for run in range(50 * len(NAMES))]
    sizes = Counter(ranks for _, ranks, _, _ in tasks)
    assert {size: count // len(NAMES) for size, count in sizes.items()} == {8: 25, 128: 20, 1024: 4, 10_240: 1}
    assert {(name, ranks) for name, ranks, _, _ in tasks} == {(name, ranks) for name in NAMES for ranks in sizes}
    assert len({seed for _, _, seed, _ in tasks}) == len(tasks)


def test_the_page_gets_dated_figures_in_the_place_of_the_last(measured, tmp_path, capsys):
    """Steps, pages and bound by size, each page with its seed; a second run replaces the first one's figures."""
    page, state = tmp_path / "accuracy.md", tmp_path / "state.json"
    page.write_text("# Accuracy\n\n## Acceptance\n\n- missed\n\n## 8 ranks\n\ntable\n")
    arguments = ["--state", str(state), "--write", str(page), "--steps"]
    assert main([*arguments, "600"]) == 0
    assert "0 pages in 600 healthy steps, at most 2,496.44 in 500,000" in page.read_text()
    assert main([*arguments, "20000"]) == 0
    text = page.read_text()
    assert text.count("## Marathon") == 1
    assert text.index("## Acceptance") < text.index("## Marathon") < text.index("## 8 ranks")
    assert "1 pages in 20,000 healthy steps, at most 118.60 in 500,000 with a confidence of 95 %." in text
    name, ranks, seed, _ = task_of(3)
    assert f"- {name}, {ranks} ranks, seed {seed}: ('job', '') at row 7, data" in text
    assert marathon_of(text) == section(load(state, "abc"))
    assert "1 pages in 20,000" in capsys.readouterr().out


def test_more_than_one_page_in_half_a_million_steps_fails(tmp_path, monkeypatch):
    """The exit status follows the budget."""
    monkeypatch.setattr(marathon, "digest_of_sources", lambda: "abc")
    page, state = tmp_path / "accuracy.md", tmp_path / "state.json"
    for pages, status in ((1, 0), (2, 1)):
        state.write_text(json.dumps({"sources": "abc", "steps": {"8": 500_000}, "pages": {"8": pages}}))
        assert main(["--state", str(state), "--write", str(page)]) == status


def test_a_page_without_figures_gets_them_before_its_first_table():
    """The tables of `make accuracy` stay as they are."""
    figures = "<!-- marathon -->\nfigures\n<!-- end of marathon -->"
    assert marathon_of("# Accuracy\n\n## 8 ranks\n") == ""
    page = with_marathon("# Accuracy\n\n## 8 ranks\n\ntable\n", figures)
    assert page == f"# Accuracy\n\n{figures}\n\n## 8 ranks\n\ntable\n"
    assert with_marathon(page, figures) == page
