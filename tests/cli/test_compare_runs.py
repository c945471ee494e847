"""`lockstep analyze A --against B`: table, JSON and status."""

import json
from pathlib import Path

import pytest

from lockstep.cli.analyze_command import EXIT_REGRESSION
from lockstep.cli.main import main
from lockstep.trace.store import write_columns
from tests.analysis.comparison.made_run import Job

RECORDED = Path(__file__).parents[1] / "analysis" / "recorded"


def written(folder, job):
    folder.mkdir()
    for rank, columns in enumerate(job.columns()):
        write_columns(columns, folder / f"{rank}.parquet")
    return str(folder)


@pytest.fixture
def baseline(tmp_path):
    return written(tmp_path / "baseline", Job(seed=1))


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_an_equal_run_ends_with_0(tmp_path, baseline, capsys, seed):
    """CI goes on."""
    assert main(["analyze", "--processes", "1", written(tmp_path / "run", Job(seed=seed)), "--against", baseline]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("before: 4 ranks, 8 steps; after: 4 ranks, 8 steps; ")
    assert lines[-1] == "no regression"


@pytest.mark.parametrize(
    ("fault", "quantity"),
    [
        ({"operator_factor": 1.4}, ("kernel", "gemm_backward")),
        ({"extra_launches": 3}, ("count", "kernels")),
        ({"transfer_ns": 4_500_000}, ("collective", "all_reduce among 4 ranks, 4194304 bytes")),
        (
            {"loader_extra_ns": 2_000_000, "slow_rank": 3},
            ("function", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
        ),
    ],
)
def test_a_regression_ends_with_3_and_is_named(tmp_path, baseline, capsys, fault, quantity):
    """One injected fault each: the status, the row of the table, and the same in JSON and in the folder."""
    run = written(tmp_path / "run", Job(seed=2, **fault))
    arguments = ["analyze", "--processes", "1", run, "--against", baseline]
    assert main([*arguments, "--json", "--out", str(tmp_path / "out")]) == EXIT_REGRESSION == 3
    output = capsys.readouterr().out
    found = json.loads(output)
    assert json.loads((tmp_path / "out" / "comparison.json").read_text()) == found
    worse = {(each["kind"], each["name"]): each for each in found["changes"] if each["verdict"] == "regression"}
    assert len(worse) == found["regressions"]
    assert worse[quantity]["after"] > worse[quantity]["before"] + worse[quantity]["limit"]
    assert main(arguments) == EXIT_REGRESSION
    rows = capsys.readouterr().out.splitlines()
    assert any("SLOWER" in row and quantity[1][:57] in row for row in rows)
    assert rows[-1] == f"{found['regressions']} regressions"


def test_recorded_traces_against_themselves(capsys):
    """Traces of torch's profiler as they are; a run against itself has changed in nothing."""
    folder = str(RECORDED / "healthy")
    assert main(["analyze", "--processes", "1", "--json", folder, "--against", folder]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["verdict"] for each in found["changes"]} == {"same"}
    assert {each["kind"] for each in found["changes"]} == {"step", "part", "count"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--against", "nowhere"], "traces in nowhere: got "),
        (["--tolerance", "2", "--against", "nowhere"], "--tolerance: got 2.0, expected 0 to 1"),
    ],
)
def test_a_wrong_input_ends_with_2(baseline, capsys, more, message):
    """What, where, got, expected."""
    assert main(["analyze", "--processes", "1", baseline, *more]) == 2
    assert message in capsys.readouterr().err


def test_two_traces_of_one_rank_are_no_run(tmp_path, baseline, capsys):
    """A baseline of two runs in one folder is refused, rather than mixed."""
    written(tmp_path / "baseline" / "again", Job(seed=5))
    assert main(["analyze", "--processes", "1", baseline, "--against", baseline]) == 2
    assert "got two of rank 0, expected one trace for each rank of one run" in capsys.readouterr().err
