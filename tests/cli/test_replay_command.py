"""`lockstep replay`: JSON Lines of incidents, or one line that states what is wrong."""

import asyncio
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.scenarios.job import Fault, Scenario
from benchmarks.scenarios.model import generate
from coordinator.record import steplog
from coordinator.record.journal import CoordinatorStart
from coordinator.record.recorder import Recorder
from coordinator.settings.policy import Policy
from lockstep.cli.main import main
from lockstep.cli.replay_command import _subject, _text
from tests.coordinator.live import Live


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
    assert list(line) == [*keys.split(), "lost_device_seconds", "evidence", "id", "confidence"]
    assert (line["run"], line["ranks"], line["cause"], line["closed_step"]) == ("night", [3], "compute", None)


def test_text_names_rank_cause_and_evidence(file, capsys):
    """Without --json an operator reads the same in words."""
    assert main(["replay", str(file.parent), "--domains", "tp=2,dp=4"]) == 0
    out = capsys.readouterr().out
    assert "night: slow_rank by compute, rank 3 in dp domain dp1" in out
    assert "rank 3 works" in out


def test_without_an_incident_the_steps_are_counted(tmp_path, capsys):
    """A log that shows nothing states how much of it was evaluated, so that a wrong unit or a short log is noticed."""
    recording = generate(Scenario(name="job", degrees="dp=4", seed=2, steps=40))
    steplog.write(recording.log(run="night"), tmp_path / "steps.parquet")
    assert main(["replay", str(tmp_path / "steps.parquet")]) == 0
    assert capsys.readouterr().out.startswith("night: no incidents in 40 steps of 4 ranks, ")


def test_waits_without_their_domains_are_named(file, capsys):
    """Without degrees all ranks are peers; waits in tensor groups show that they are not."""
    assert main(["replay", str(file), "--json"]) == 0
    assert "run night: waits of tp, but no such domains" in capsys.readouterr().err
    assert main(["replay", str(file), "--domains", "tp=2,dp=4", "--json"]) == 0
    assert "waits of" not in capsys.readouterr().err


def test_a_hang_is_printed_with_the_length_of_its_silence():
    """Its ratio is of a step that never came: no share by which anything was longer."""
    values = {"slowdown_ratio": 1260.4, "onset_step": 61, "detected_step": 61, "closed_step": None}
    line = {"run": "night", "kind": "hang", "cause": "unknown", "scope": "rank", "ranks": [3], "domain": None, **values}
    text = _text(line | {"lost_device_seconds": 1.0, "evidence": []})
    assert text.startswith("night: hang by unknown, rank 3: no step for as long as 1,260 steps, from step 61")


@pytest.mark.parametrize(
    ("scope", "ranks", "text"),
    [
        ("job", [], "job"),
        ("rank", [3], "rank 3"),
        ("rank", [1, 5], "ranks 1, 5"),
        ("node", list(range(8, 16)), "node of ranks 8-15"),
        ("group", [2, 3], "group of ranks 2-3"),
    ],
)
def test_what_an_incident_is_about(scope, ranks, text):
    """A job has no ranks to list, and the ranks of a node are not its number."""
    assert _subject(scope, ranks) == text


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
    """What cannot be read is reported with its path."""
    path = tmp_path / "steps.parquet"
    path.write_text("no log")
    assert main(["replay", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


@pytest.fixture
def recording(tmp_path):
    """Record the same job as a coordinator would; return the directory and what was reported live."""
    slow = Fault(cause="compute", ranks=(3,), ratio=0.1, begin=60)
    made = generate(Scenario(name="job", degrees="tp=2,dp=4", seed=2, steps=100, faults=(slow,)))
    start = CoordinatorStart(policy=Policy(), domains="", order="tp-cp-ep-dp-pp")
    recorder = Recorder(tmp_path / "recorded", start, 1_789_999_999.0, quota_bytes=1 << 30)
    live = Live(tap=recorder)
    live.play(made.log(run="night"), made.topology)
    assert asyncio.run(recorder.flush())
    return tmp_path / "recorded", live.lines()


def test_a_recording_needs_no_flags(recording, capsys):
    """The directory, and one part of it, give what was reported live; with degrees by hand the same ranks."""
    directory, live = recording
    assert main(["replay", str(directory), "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == live
    (part,) = directory.glob("*.parquet")
    assert main(["replay", str(part), "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == live
    assert main(["replay", str(directory), "--domains", "tp=2,dp=4", "--json"]) == 0
    assert [json.loads(line)["ranks"] for line in capsys.readouterr().out.splitlines()] == [[3]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--domains", "tp=2,dp=8"], "expected tp*cp*dp*pp = world size 8"),
        (["--domains", "tp=two"], "got 'tp=two'"),
        (["--order", "tp-dp"], "order: got 'tp-dp'"),
    ],
)
def test_mistakes_with_a_recording_are_named(recording, capsys, arguments, words):
    """Degrees that do not fit the recorded world are refused as those of a step log are."""
    assert main(["replay", str(recording[0]), *arguments]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert out == ""


def test_leniently_the_rest_is_printed(file, tmp_path, capsys):
    """Rows that no log can hold, ranks that no domain has and steps reported twice are counted; the slow rank is found."""
    table = pq.read_table(file)
    columns = {name: table.column(name).to_numpy().copy() for name in table.column_names}
    columns["compute_ns"] = columns["compute_ns"].astype(float)
    columns["compute_ns"][[40, 41]] = np.nan
    columns["duration_ns"][50] = -1
    columns["rank"][60] = 99
    columns = {name: np.append(values, values[-8:]) for name, values in columns.items()}
    bad = tmp_path / "bad.parquet"
    pq.write_table(pa.table(columns), bad)
    assert main(["replay", str(bad), "--domains", "tp=2,dp=4"]) == 2
    assert "duration_ns of row 50" in capsys.readouterr().err
    assert main(["replay", str(bad), "--domains", "tp=2,dp=4", "--lenient", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["ranks"] for line in out.splitlines()] == [[3]]
    assert "operation: compute_ns: 2\n" in err
    assert "rank: 1" in err
    assert "impossible: 1" in err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("dp: [[0, 1, 2], [2, 3]]", "got rank 2 in dp0 and dp1, expected one group"),
        ("dp: 3", "dp: got 3, expected lists of ranks"),
        ("dp: [[0, 1], [2, 99]]", "group dp1: got rank 99, expected 0 to 7"),
        ("", "got None, expected lists of ranks by kind"),
    ],
)
def test_groups_that_cannot_be_are_named(file, tmp_path, capsys, content, words):
    """Overlapping groups, no lists, ranks that the log does not have."""
    groups = tmp_path / "groups.yaml"
    groups.write_text(content)
    assert main(["replay", str(file), "--groups", str(groups)]) == 2
    assert words in capsys.readouterr().err


def test_several_runs_in_one_log_are_printed_by_name(file, tmp_path, capsys):
    """Rows of two runs in one file, in any order: each run's incidents, under its name."""
    table = pq.read_table(file)
    other = table.set_column(table.column_names.index("run"), "run", pa.array(["day"] * table.num_rows))
    pq.write_table(pa.concat_tables([table, other]), tmp_path / "both.parquet")
    assert main(["replay", str(tmp_path / "both.parquet"), "--domains", "tp=2,dp=4", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["run"], line["ranks"]) for line in lines] == [("day", [3]), ("night", [3])]


def test_an_empty_log_has_no_incidents(tmp_path, capsys):
    """A file with the columns and no row is an answer, an empty directory is a mistake."""
    names = ("rank", "step", "start_ns", "duration_ns", "compute_ns", "host_ns", "data_ns", "gc_ns")
    pq.write_table(pa.table({name: pa.array([], type=pa.int64()) for name in names}), tmp_path / "empty.parquet")
    assert main(["replay", str(tmp_path / "empty.parquet"), "--json"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["replay", str(tmp_path / "empty.parquet")]) == 0
    assert capsys.readouterr().out == "no incidents: the log has no rows\n"
    (tmp_path / "none").mkdir()
    assert main(["replay", str(tmp_path / "none")]) == 2
    assert "got an empty directory" in capsys.readouterr().err
