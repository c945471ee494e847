"""From paths to a summary: ranks, workers, what is passed over."""

import os
from functools import partial
from pathlib import Path

import pytest

from lockstep.analysis import workers
from lockstep.analysis.analyse import analyse_paths
from lockstep.analysis.workers import run_here
from lockstep.contracts.errors import NoTraceError
from lockstep.trace.store import read_columns, write_columns
from tests.analysis.job import FORWARD, RANKS, SLEEP, rank_columns
from tests.trace.traces import RECORDING, document, event, write

alone = partial(run_here, processes=1)


@pytest.fixture
def job(tmp_path):
    """Four ranks' stored traces, rank 2 asleep."""
    for rank in RANKS:
        write_columns(rank_columns(rank, slept_ms={2: 40}), tmp_path / f"{rank}.parquet")
    return tmp_path


def test_processes_change_nothing(job):
    """In this process and in two others: the same summary, the slow rank and its function in it."""
    here = analyse_paths([job], alone).as_json()
    there = analyse_paths([job], partial(run_here, processes=2)).as_json()
    assert here == there
    assert [each["rank"] for each in here["ranks"]] == list(RANKS)
    assert [(each["cause"], each["ranks"]) for each in here["findings"] if each["subject"] == FORWARD] == [
        ("slow_function", [2])
    ]


def test_hostile_files_are_named_and_passed_over(job):
    """Cut off, no JSON, no events: the others are analysed."""
    write(job, document([event()])[:-30], "rank5.json")
    write(job, b"\x1f\x8bgarbage", "rank6.json.gz")
    write(job, b"[]", "rank7.json")
    write(job, b"PAR1 and no more", "8.parquet")
    found = analyse_paths([job], alone)
    assert sorted(Path(each.path).name for each in found.skipped) == [
        "8.parquet",
        "rank5.json",
        "rank6.json.gz",
        "rank7.json",
    ]
    assert all(each.error for each in found.skipped)
    assert list(found.paths) == list(RANKS)


def test_nothing_to_use_is_an_error(tmp_path):
    """The error names what was wrong with each."""
    write(tmp_path, b"[]", "rank7.json")
    with pytest.raises(NoTraceError, match=r"^no usable trace: \S+ in \S*rank7\.json: got [^;]+, expected [^;]+$"):
        analyse_paths([tmp_path], alone)


def test_two_traces_of_one_rank_are_named(job):
    """The first by name counts, the other is reported with it."""
    write_columns(rank_columns(1), job / "9.parquet")
    found = analyse_paths([job], alone)
    assert found.paths[1] == str(job / "1.parquet")
    assert [(Path(each.path).name, each.error) for each in found.skipped] == [
        ("9.parquet", f"a second trace of rank 1: {job / '1.parquet'} counts")
    ]


def test_traces_without_a_rank_get_the_free_numbers(tmp_path):
    """Rank 1 is known; the two nameless ones are 0 and 2, in the order of their names, findings included."""
    write_columns(rank_columns(1), tmp_path / "x1.parquet")
    for name in ("b.parquet", "a.parquet"):
        write_columns(rank_columns(0, has_rank=False), tmp_path / name)
    found = analyse_paths([tmp_path], alone)
    assert {rank: Path(path).name for rank, path in found.paths.items()} == {
        0: "a.parquet",
        1: "x1.parquet",
        2: "b.parquet",
    }
    assert all(set(each.ranks) <= {0, 1, 2} for each in found.cluster.findings)


def test_columns_are_stored_by_rank(job, tmp_path_factory):
    """One file for each rank that counts, under its number, readable; nothing else is left."""
    write_columns(rank_columns(1), job / "9.parquet")
    write(job, b"[]", "rank7.json")
    out = tmp_path_factory.mktemp("out")
    analyse_paths([job], alone, store=out)
    assert sorted(each.name for each in out.iterdir()) == [f"{rank}.parquet" for rank in RANKS]
    assert len(read_columns(out / "2.parquet")) == len(rank_columns(2, slept_ms={2: 40}))


def test_progress_is_reported(job):
    """From none of four to all of four."""
    progress = []
    analyse_paths([job], alone, on_done=lambda done, count: progress.append((done, count)))
    assert progress == [(done, 4) for done in range(5)]


def _die_of_rank_2(job):
    if job.source.named_rank == 2:
        os._exit(9)
    return work(job)


work = workers.work


def test_a_worker_that_dies_costs_one_trace(job, monkeypatch):
    """Killed as by a lack of memory: the others' traces are analysed all the same."""
    monkeypatch.setattr(workers, "work", _die_of_rank_2)
    found = analyse_paths([job / "1.parquet", job / "2.parquet"], partial(run_here, processes=2))
    assert list(found.paths) == [1]
    assert [Path(each.path).name for each in found.skipped] == ["2.parquet"]
    assert "died" in found.skipped[0].error


def test_a_recording_alone(tmp_path):
    """One real trace from end to end: it is rank 2's, and its sleeping forward is on the path."""
    summary = analyse_paths([RECORDING], alone).as_json()
    (rank,) = summary["ranks"]
    assert rank["rank"] == 2
    assert SLEEP in {each["name"] for each in rank["critical_path"][:3]}
    assert sum(each["ns"] for each in rank["critical_path"]) == rank["window_ns"]
