"""`lockstep report` and `lockstep compare`: recordings and step logs in; text, JSON and pages out; statuses for CI."""

import asyncio
import json
from dataclasses import replace

import pytest

from benchmarks.scenarios.job import Fault, Scenario
from benchmarks.scenarios.model import generate
from coordinator.record import steplog
from coordinator.record.journal import CoordinatorStart
from coordinator.record.recorder import Recorder
from coordinator.settings.policy import Policy
from lockstep.cli.main import EXIT_ERROR, main
from tests.coordinator.live import Live

JOB = Scenario(name="job", degrees="tp=2,dp=4", seed=2, steps=200)
SLOW = replace(JOB, seed=5, faults=(Fault(cause="compute", ranks=(3,), ratio=0.1, begin=0),))
LATER = replace(JOB, seed=2, faults=(Fault(cause="compute", ranks=(3,), ratio=0.1, begin=60),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write step logs of a healthy run, of another one, of one that is slow, and of both runs together."""
    folder = tmp_path_factory.mktemp("runs")
    for name, job in (("a", JOB), ("again", replace(JOB, seed=4)), ("slow", SLOW), ("later", LATER)):
        steplog.write(generate(job).log(run=name), folder / f"{name}.parquet")
    return folder


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Record a run of which rank 3 becomes slow, as a coordinator does."""
    directory = tmp_path_factory.mktemp("recording")
    start = CoordinatorStart(policy=Policy(), domains="", order="tp-cp-ep-dp-pp")
    tap = Recorder(directory, start, 1_789_999_999.0, quota_bytes=1 << 30)
    generated = generate(LATER)
    live = Live(tap=tap)
    live.play(generated.log(run="night"), generated.topology)
    assert asyncio.run(tap.flush())
    return directory


def run(capsys, *arguments):
    """Return status and output."""
    status = main([str(each) for each in arguments])
    return status, capsys.readouterr().out


def test_a_slow_run_ends_with_status_1(folder, capsys, tmp_path):
    """Part and rank are named, in words, as JSON and as a page."""
    page = tmp_path / "compare.html"
    status, text = run(capsys, "compare", folder / "a.parquet", folder / "slow.parquet", "--html", page)
    assert status == 1
    assert "is slower on" in text.splitlines()[0]
    assert "slower: compute, rank 3: " in text
    assert "rank 3" in page.read_text()
    status, text = run(capsys, "compare", folder / "a.parquet", folder / "slow.parquet", "--json")
    assert (status, json.loads(text)["runs"]) == (1, ["a", "slow"])


def test_equal_runs_and_faster_ones_end_with_status_0(folder, capsys):
    """A part that became faster is no regression."""
    status, text = run(capsys, "compare", folder / "a.parquet", folder / "again.parquet")
    assert (status, text.splitlines()[0].startswith("Nothing is slower beyond noise; step ")) == (0, True)
    status, text = run(capsys, "compare", folder / "slow.parquet", folder / "a.parquet")
    assert status == 0
    assert "faster: compute, rank 3: " in text


def test_wrong_input_ends_with_status_2(folder, capsys, tmp_path):
    """What, where, and what is there."""
    cases = [
        (["compare", folder / "a.parquet", tmp_path / "missing"], "got no such file or folder"),
        (["compare", folder / "a.parquet", folder], "got 4 runs, expected --run with one of a, again, later, slow"),
        (["compare", folder / "a.parquet", folder, "--run-b", "b"], "--run: got 'b'"),
        (["report", folder / "a.parquet", "--html", tmp_path], "--html"),
        (["report", folder / "a.parquet", "--domains", "tp=3"], "expected 0 to 2"),
    ]
    for arguments, named in cases:
        assert main([str(each) for each in arguments]) == EXIT_ERROR
        assert named in capsys.readouterr().err


def test_a_report_of_a_step_log(folder, capsys, tmp_path):
    """The incidents that a coordinator would have reported, with their cost."""
    page = tmp_path / "report.html"
    arguments = ["report", folder / "later.parquet", "--domains", "tp=2,dp=4"]
    status, text = run(capsys, *arguments, "--html", page)
    assert status == 0
    assert text.startswith("later: Goodput ")
    assert "slow_rank by compute" in text
    status, found = run(capsys, *arguments, "--json")
    value = json.loads(found)
    (incident,) = value["incidents"]
    assert (incident["ranks"], value["steps"], value["ranks"]) == ([3], 200, 8)
    assert value["device_seconds"]["stragglers"] == pytest.approx(incident["lost_device_seconds"], rel=1e-4)
    assert "Where the device time went" in page.read_text()


def test_a_report_of_a_recording_has_the_incidents_as_they_were(recording, folder, capsys):
    """And a recording is compared with a step log."""
    status, text = run(capsys, "report", recording, "--json")
    value = json.loads(text)
    assert (status, value["run"], value["steps"]) == (0, "night", 200)
    assert [each["ranks"] for each in value["incidents"]] == [[3]]
    status, text = run(capsys, "compare", folder / "a.parquet", recording)
    assert status == 1
    assert "compute, rank 3" in text
