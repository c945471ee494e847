"""`lockstep analyze`: what it prints, what it writes, local processes and a Dask cluster alike."""

import json
import subprocess
import sys
from io import StringIO

import pytest

from lockstep.cli.main import EXTRA_PACKAGES, main
from lockstep.diagnosis.frames import readable
from lockstep.trace.store import write_columns
from tests.analysis.job import FORWARD, RANKS, SLEEP, rank_columns
from tests.trace.traces import RECORDING, document, event, write

CLUSTER = """
import sys
from distributed import LocalCluster
from lockstep.cli.main import main
options = dict(processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=None, n_workers=1)
with LocalCluster(**options, threads_per_worker=1, local_directory=sys.argv[1]) as cluster:
    assert cluster.scheduler_address.startswith("tcp://127.0.0.1:")
    sys.exit(main(["analyze", "--json", "--scheduler", cluster.scheduler_address, *sys.argv[2:]]))
"""
"""A scheduler and a worker on loopback, and the command with them: what it sends goes over TCP."""


@pytest.fixture
def job(tmp_path):
    """Return a folder with four ranks' traces, rank 2 asleep in its forward."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in RANKS:
        write_columns(rank_columns(rank, slept_ms={2: 40}), folder / f"{rank}.parquet")
    return folder


def test_a_person_reads_where_and_what_to_do(job, capsys):
    """Breakdown by rank, the rank that all wait for, its function, advice with its gain."""
    assert main(["analyze", "--processes", "1", str(job)]) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert lines[0] == "4 ranks, 5 steps of 100.0 ms: 2 findings"
    assert "compute" in lines[2]
    assert [line.split()[0] for line in lines[3:7]] == ["0", "1", "2", "3"]
    straggler = f". cpu: slow function on rank 2: {readable(FORWARD)} (40.0 ms a step, high confidence)"
    assert any(line.endswith(straggler) for line in lines)
    assert any(line.startswith("   -> ") and "(up to 40% of the step)" in line for line in lines)
    assert f"most of it in {SLEEP}" in output.out
    assert output.err == ""


def test_without_marked_steps_no_sentence_is_about_steps(tmp_path, capsys):
    """Thirty small kernels that wait for their launches: times and gains are of the window."""
    launched = [
        each
        for at in range(30)
        for each in (
            event("cudaLaunchKernel", cat="cuda_runtime", ts=20 * at, dur=15, args={"correlation": at}),
            event("k", cat="kernel", tid=7, ts=20 * at + 16, dur=2, args={"correlation": at, "stream": 7, "device": 0}),
        )
    ]
    assert main(["analyze", str(write(tmp_path, document(launched)))]) == 0
    output = capsys.readouterr().out
    assert "without marked steps: 1 finding" in output
    assert "of the window)" in output
    assert " a step" not in output
    assert "of the step" not in output


def test_one_trace_shows_its_path(capsys):
    """A recording alone: its path, and no one to compare with."""
    assert main(["analyze", str(RECORDING)]) == 0
    output = capsys.readouterr().out
    assert "critical path:" in output
    assert "waiting in collectives" in output.splitlines()[-1]


def test_json_and_files_agree(job, tmp_path, capsys):
    """One object on standard output, the same in summary.json; a report and columns next to it; what was skipped."""
    write(job, b"[]", "rank9.json")
    out = tmp_path / "new" / "out"
    assert main(["analyze", "--json", "--processes", "1", "--out", str(out), str(job)]) == 0
    output = capsys.readouterr()
    summary = json.loads(output.out)
    assert json.loads((out / "summary.json").read_text()) == summary
    assert sorted(each.name for each in out.iterdir()) == [
        *(f"{rank}.parquet" for rank in RANKS),
        "report.html",
        "summary.json",
    ]
    assert "<html" in (out / "report.html").read_text()
    assert output.err.startswith(f"lockstep: skipped {job / 'rank9.json'}: trace in ")
    assert len(summary["skipped"]) == 1


def test_what_was_written_is_analysed_again(job, tmp_path, capsys):
    """The stored columns of a run give the same findings; the run's own summary next to them is no trace."""
    out = tmp_path / "out"
    main(["analyze", "--json", "--processes", "1", "--out", str(out), str(job)])
    first = json.loads(capsys.readouterr().out)
    main(["analyze", "--json", "--processes", "1", str(out)])
    again = json.loads(capsys.readouterr().out)
    assert again["findings"] == first["findings"]
    assert again["skipped"] == []


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (["{empty}"], "expected traces below it"),
        (["{empty}/none.json"], "none.json"),
        (["--processes", "0", "{job}"], "--processes: got 0, expected 1 to 1024"),
        (["--out", "{job}/0.parquet", "{job}"], "--out"),
        (["--scheduler", "no address", "{job}"], "scheduler no address: "),
    ],
)
def test_wrong_input_is_reported_in_one_line(job, tmp_path, capsys, arguments, expected_text):
    """Nothing to use, a wrong number, a folder that is a file, no address: status 2 and why."""
    (tmp_path / "empty").mkdir()
    places = {"job": job, "empty": tmp_path / "empty"}
    assert main(["analyze", *(each.format(**places) for each in arguments)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("lockstep: ")
    assert expected_text in complaint
    assert "Traceback" not in complaint


class Terminal(StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [Terminal(), StringIO()])
def test_a_bar_on_a_terminal_only(job, monkeypatch, capsys, terminal):
    """Progress is drawn on standard error where that is a terminal, and never into the JSON."""
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["analyze", "--json", "--processes", "1", str(job)]) == 0
    assert ("traces" in terminal.getvalue()) is terminal.isatty()
    json.loads(capsys.readouterr().out)


def test_the_cluster_extra_is_known():
    """Without distributed the command names the extra, as for every other package."""
    assert "distributed" in EXTRA_PACKAGES


def test_a_dask_cluster_gives_the_same_summary(job, tmp_path, capsys):
    """Scheduler and worker on loopback: the same JSON as local processes, columns stored as well."""
    write(job, b"[]", "rank9.json")
    out = tmp_path / "out"
    command = [sys.executable, "-c", CLUSTER, str(tmp_path / "dask"), "--out", str(out), str(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert main(["analyze", "--json", "--processes", "1", str(job)]) == 0
    theirs = json.loads(done.stdout)
    assert theirs == json.loads(capsys.readouterr().out)
    assert len(theirs["ranks"]) == len(RANKS)
    assert (out / "2.parquet").is_file()


@pytest.mark.parametrize(("degrees", "kind"), [("tp=4", "tp"), ("dp=4", "dp"), ("tp=2,pp=4", "dp"), ("", "dp")])
def test_parallel_degrees_show_what_groups_are_for(job, capsys, degrees, kind):
    """`groups[].kind` by the degrees that are given; those of another job are no source."""
    assert main(["analyze", "--json", "--processes", "1", "--domains", degrees, str(job)]) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert group["kind"] == kind


@pytest.mark.parametrize("wrong", [["--domains", "xp=4"], ["--domains", "tp=0"], ["--order", "tp-dp"]])
def test_degrees_that_are_none_are_refused(job, capsys, wrong):
    """By the option's name, before any trace is read."""
    assert main(["analyze", *wrong, str(job)]) == 2
    assert wrong[0] in capsys.readouterr().err
