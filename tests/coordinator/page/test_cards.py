"""Cards, pages and their files: what stands in them, and that nothing hostile does."""

import hashlib
import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from alerts.rules import RUNBOOKS as RUNBOOK_FOLDER
from coordinator.decide.incidents import Prediction
from coordinator.detect.anomalies import KINDS
from coordinator.page import assets, render_page
from coordinator.page.cards import RUNBOOKS, card
from coordinator.page.incident_list import render_incidents
from coordinator.page.run_page import RunView, render_run
from coordinator.settings.config import CoordinatorConfig
from tests.analysis.report.test_style import lab, linear
from tests.coordinator.test_collector import run_snapshot, snapshot
from tests.coordinator.test_store import incident

VENDORED = {
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.LICENSE.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""SHA-256 of what uplot-1.6.32.tgz holds as dist/uPlot.iife.min.js, dist/uPlot.min.css and LICENSE."""


class Tags(HTMLParser):
    """What a browser would make of a page: sources of its scripts, names of all attributes."""

    def __init__(self, page):
        super().__init__()
        self.scripts, self.attributes = [], set()
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.attributes |= {name for name, _ in attributes}
        if tag == "script":
            self.scripts.append(dict(attributes).get("src", "inline"))


HOSTILE = '" onclick="x"><script>alert(1)</script>\u202e'


def run_page(run=None, **more):
    values = {"run": run or run_snapshot(), "slowest": [], "kinds": ["node"], "domains": {}, "domain_counts": {}}
    values |= {"captures": [], "closed": [], "profile_steps": 3, "hosts": {}}
    return render_run(RunView(**(values | more)), snapshot(), CoordinatorConfig())


def test_a_card_shows_what_is_known():
    """Cause and root cause, function, evidence, gain by the model, advice, why, and the ways on."""
    gain = Prediction(gain_ratio=0.2, faulty_step_seconds=0.5, repaired_step_seconds=0.4, error_band_ratio=0.02)
    explanation = {
        "quantity": "own work", "reference": {"how": "its peers"}, "samples": {"steps": [1, 2], "own_seconds": [0.5, None]},
        "noise": {"sigma_ratio": 0.0123}, "rule": "too long", "changes": [{"step": 62, "cause": "gc", "rank_count": 2}],
    }  # fmt: skip
    config = CoordinatorConfig(runbook_base_url="http://r/", dashboard_base_url="http://g")
    shown = incident(function="train.py(9): f", root_cause="long_sequences", prediction=gain, explanation=explanation)
    text = card(shown, config, with_run=True)
    for words in (
        "Slow rank: rank 2-3", "long sequences", "train.py(9): f", "it stays in forward", "expects 20% of the step back",
        "500 ms to 400 ms", "<strong>a</strong>: b.", "Why: own work", "Noise is 1.23% a step", "step 62, detected: gc on 2 ranks",
        'href="http://r/LockstepSlowDeviceFound.md"', 'href="http://g/d/lockstep-run?var-run=job"',
        'href="/api/v1/incidents/job-1"', 'href="/runs/job"', "capture 7", "50%, 50 ms a step",
    ):  # fmt: skip
        assert words in text, words


def test_a_card_shows_where_and_when():
    """The host, and the clock's time of what steps alone would not show; no host where none is known."""
    shown = incident(opened_unix_ns=1_790_000_000 * 10**9)
    text = card(shown, CoordinatorConfig(), with_run=False, host="node-17")
    assert "<dt>Host</dt><dd>node-17</dd>" in text
    moment = '<time datetime="2026-09-21T14:13:20Z">2026-09-21 14:13:20 UTC</time>'
    assert f"began at step 60, found at step 62 ({moment})</dd>" in text
    closed = replace(shown, state="closed", closed_step=80, closed_unix_ns=1_790_000_060 * 10**9)
    text = card(closed, CoordinatorConfig(), with_run=False)
    assert "Host" not in text
    assert 'closed at step 80 (<time datetime="2026-09-21T14:14:20Z">' in text


def test_a_closed_card_folds_what_needs_no_action():
    """Who, when and what it has cost stay in sight; evidence, gain and advice are one click away."""
    shown, mark, folded = card(
        incident(state="closed", closed_step=80, lost_device_seconds=1.0), CoordinatorConfig(), with_run=False
    ).partition("<details")
    assert mark
    assert "<dt>Lost</dt>" in shown
    assert "rank 2 is slow" not in shown
    assert "rank 2 is slow" in folded
    assert 'id="details-job-1"' in folded
    assert "rank 2 is slow" in card(incident(), CoordinatorConfig(), with_run=False).partition("<details")[0]


def test_a_hang_is_shown_with_the_length_of_its_silence():
    """Nothing is longer in a run that makes no step: no share of it, and no time a step."""
    shown = incident(kind="hang", slowdown_ratio=1260.4, excess_seconds=605.0)
    text = card(shown, CoordinatorConfig(), with_run=False)
    assert "<dt>No step for</dt><dd>10 min, as long as 1,260 steps</dd>" in text
    assert "Longer by" not in text
    silent = card(replace(shown, slowdown_ratio=0.0, excess_seconds=61.0), CoordinatorConfig(), with_run=False)
    assert "<dd>61 s</dd>" in silent


@pytest.mark.parametrize(
    ("state", "words"),
    [("hung", '"bad">No step since'), ("lost", '"bad">No step since'), ("finished", '"soft">Last step at')],
)
def test_a_run_that_stands_still_shows_since_when(state, words):
    """Where steps come, the last one is no news."""
    moment = '<time datetime="2026-09-21T14:13:20Z">2026-09-21 14:13:20 UTC</time>'
    assert f"{words} {moment}." in run_page(run_snapshot(state=state, last_step_unix_s=1_790_000_000.0))
    for other in (
        {"state": "healthy", "last_step_unix_s": 1_790_000_000.0},
        {"state": state, "last_step_unix_s": None},
    ):
        page = run_page(run_snapshot(**other))
        assert "No step since" not in page, other
        assert "Last step at" not in page, other


def test_captures_count_ranks():
    """Three ranks are not rank 3."""
    ranks = [{"state": "asked"}] * 2 + [{"state": "refused"}]
    capture = {
        "request_id": 1, "incident_id": "", "first_step": 4, "steps": 2, "ranks": ranks,
        "ended_unix_seconds": None, "cost_seconds": 0,
    }  # fmt: skip
    assert "steps 4 to 5, 2 ranks asked, 1 rank refused; under way" in run_page(captures=[capture])


def test_a_gain_names_its_source():
    """The step records, where the job has no model."""
    gain = Prediction(
        gain_ratio=0.2, faulty_step_seconds=0.5, repaired_step_seconds=0.4, error_band_ratio=None, source="records"
    )
    text = card(incident(prediction=gain), CoordinatorConfig(), with_run=True)
    assert "20% of a step, by the step records" in text


def test_every_kind_has_a_runbook():
    """The page of the alert that is about it."""
    assert set(RUNBOOKS) == set(KINDS)
    assert all((RUNBOOK_FOLDER / f"{name}.md").is_file() for name in RUNBOOKS.values())


def test_a_hang_shows_where_its_ranks_stand():
    """The merged stacks, a line for each place, as text."""
    shown = incident(kind="hang", stacks=("ranks 0-3: train.py(120): main", "  rank 1: train.py(88): <listcomp>"))
    text = card(shown, CoordinatorConfig(), with_run=True)
    assert "Stacks of the ranks" in text
    assert "ranks 0-3: train.py(120): main\n  rank 1: train.py(88): &lt;listcomp&gt;</pre>" in text
    assert "Stacks of the ranks" not in card(incident(kind="hang"), CoordinatorConfig(), with_run=True)


def test_nothing_hostile_stands_in_a_page():
    """Names of runs, nodes, functions, domains and texts of captures: text, whatever they hold."""
    bad = incident(1, **dict.fromkeys(("id", "run", "cause", "function", "operator", "root_cause"), HOSTILE))
    bad = replace(bad, evidence=(HOSTILE,), domain=(HOSTILE, HOSTILE), scope="group")
    run = run_snapshot(HOSTILE, incidents=(bad,), state=HOSTILE)
    slow = {"rank": 1, "hostname": HOSTILE, "self_seconds": 1, "wait_seconds": None, "excess_ratio": 0.1, "levels": [1]}
    capture = {
        "request_id": 1, "incident_id": HOSTILE, "first_step": 1, "steps": 2, "ranks": [{"state": HOSTILE}],
        "ended_unix_seconds": None, "cost_seconds": 0,
    }  # fmt: skip
    more = {
        "slowest": [slow],
        "domains": {HOSTILE: [(HOSTILE, HOSTILE)]},
        "domain_counts": {HOSTILE: 2},
        "captures": [capture],
        "closed": [bad],
        "hosts": {bad.id: HOSTILE},
    }
    pages = [run_page(run, **more), render_page(replace(snapshot(run)), [bad], CoordinatorConfig(), {bad.id: HOSTILE})]
    pages.append(render_incidents([bad], snapshot(run), CoordinatorConfig()))
    for page in pages:
        assert "alert(1)" in page
        tags = Tags(page)
        assert all(name.startswith("/static/") for name in tags.scripts)
        assert not [name for name in tags.attributes if name.startswith("on")]
        assert "\u202e" not in page
        assert "style=" not in page


def test_pages_name_files_that_are_there():
    """Each by its content; small scripts; and in the package, where a wheel takes them from."""
    page = run_page()
    paths = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert [path.rpartition("/")[2] for path in paths] == [
        *("icon.svg", "uplot.css", "page.css", "page.js", "uplot.js", "series.js", "heat.js"),
    ]
    for path in paths:
        _, _, digest, name = path.split("/")
        assert assets.found(digest, name) is not None
        assert assets.found("0" * len(digest), name) is None
    own = [name for name in assets.BODIES if name.endswith(".js") and name not in VENDORED]
    assert sum(len(assets.BODIES[name]) for name in own) < 45_000
    assert assets.found("", "../page/assets.py") is None


def test_the_chart_library_is_the_one_that_was_released():
    """The file is uPlot 1.6.32 as the npm registry has it, unchanged, with its licence; nothing else is vendored."""
    folder = Path(assets.__file__).parent / "static"
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in VENDORED} == VENDORED
    assert b"(v1.6.32)" in assets.BODIES["uplot.js"][:60]
    assert "MIT License" in (folder / "uplot.LICENSE.txt").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_scale_is_one_of_lightness(scheme):
    """Evenly rising or falling, and far from the ground at the long end: for every eye, and on paper."""
    style = assets.BODIES["page.css"].decode()
    part = style[style.index("prefers-color-scheme: dark") :] if scheme == "dark" else style
    found = re.findall(r"--l(\d): (#[0-9a-f]{6})", part)[:9]
    assert [int(number) for number, _ in found] == list(range(9))
    light = [lab(linear(colour))[0] for _, colour in found]
    steps = [other - one for one, other in itertools.pairwise(light)]
    assert all(4 < (step if scheme == "dark" else -step) < 15 for step in steps), light
