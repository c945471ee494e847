"""`lockstep replay`: JSON Lines of incidents, or one line that says what is wrong."""

import json

import pytest

from benchmarks.scenarios.job import Fault, Scenario
from benchmarks.scenarios.model import generate
from coordinator import steplog
from lockstep.cli.main import main


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Write the log of a job in which rank 3 computes 10 % longer from step 60 on; return its path."""
    slow = Fault(cause="compute", ranks=(3,), ratio=0.1, begin=60)
    recording = generate(Scenario(name="job", degrees="tp=2,dp=4", seed=2, steps=100, faults=(slow,)))
    path = tmp_path_factory.mktemp("log") / "steps.parquet"
    steplog.write(recording.log(run="night"), path)
    return path


def test_json_is_one_incident_a_line(file, capsys):
    """Each line is an object with exactly the promised keys."""
    assert main(["replay", str(file), "--domains", "tp=2,cp=1,ep=1,dp=4,pp=1", "--json"]) == 0
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    keys = "run kind cause scope ranks domain onset_step detected_step closed_step slowdown_ratio"
    assert list(line) == [*keys.split(), "lost_device_seconds", "evidence"]
    assert (line["run"], line["ranks"], line["cause"], line["closed_step"]) == ("night", [3], "compute", None)


def test_text_names_rank_cause_and_evidence(file, capsys):
    """Without --json an operator reads the same in words."""
    assert main(["replay", str(file.parent), "--domains", "tp=2,dp=4"]) == 0
    out = capsys.readouterr().out
    assert "night: slow_rank by compute, rank 3 in dp domain dp1" in out
    assert "rank 3 works" in out


def test_groups_come_from_a_file(file, tmp_path, capsys):
    """A file of groups stands in for degrees, in YAML or JSON."""
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps({"tp": [[0, 1], [2, 3], [4, 5], [6, 7]], "dp": [[0, 2, 4, 6], [1, 3, 5, 7]]}))
    assert main(["replay", str(file), "--groups", str(groups), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["domain"] == {"kind": "dp", "id": "dp1"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--domains", "tp=2,dp=8"], "got 0 to 7, expected 0 to 15"),
        (["--domains", "tp=two"], "got 'tp=two'"),
        (["--domains", "tp=2,dp=4", "--order", "tp-dp"], "order: got 'tp-dp'"),
        (["--ranks-per-node", "0"], "--ranks-per-node: got 0, expected at least 1"),
        (["--groups", "/nonexistent.yaml"], "groups file /nonexistent.yaml"),
    ],
)
def test_mistakes_are_named(file, capsys, arguments, words):
    """A wrong argument is one line on stderr and status 2."""
    assert main(["replay", str(file), *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[1, 2]", "dp: [[0, 0]]", "dp: [[0, -1]]", "xp: [[0, 1]]", "dp: [one]", "dp: [["])
def test_a_bad_groups_file_is_named(file, tmp_path, capsys, content):
    """Groups that are none are refused with file and content."""
    groups = tmp_path / "groups.yaml"
    groups.write_text(content)
    assert main(["replay", str(file), "--groups", str(groups)]) == 2
    assert f"groups file {groups}" in capsys.readouterr().err


def test_a_file_that_is_no_log_is_named(tmp_path, capsys):
    """What cannot be read is said with its path."""
    path = tmp_path / "steps.parquet"
    path.write_text("no log")
    assert main(["replay", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
