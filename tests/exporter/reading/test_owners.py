"""Whose rings are read: as real users of a node. A run is its directory's owner's."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.counts import ExporterCounters
from exporter.reading.rings import Rings
from lockstep.contracts.limits import RUNS_PER_NODE_MAX
from lockstep.contracts.records import RECORD_INDEX
from tests.exporter.conftest import NOW_NS, make_ring_file, record
from tests.support.users import GROUP, OTHER, TRAINER, run_as


@pytest.fixture
def counts() -> ExporterCounters:
    return ExporterCounters()


@pytest.fixture
def root(shared_root: Path) -> Path:
    """Override the root of the exporter's tests by one that all users reach, prepared as an installation does."""
    shared_root.mkdir()
    os.chown(shared_root, 0, GROUP)
    shared_root.chmod(0o3777)
    return shared_root


@pytest.fixture
def rings(root: Path, counts: ExporterCounters) -> Iterator[Rings]:
    rings = Rings(root, counts, {})
    yield rings
    rings.close()


def ring_of(uid: int, directory: Path, rank: int = 0, **header: object) -> None:
    """Write a ring of one record as `uid`."""

    def write() -> None:
        ring = make_ring_file(directory, rank, now_ns=NOW_NS, **header)
        ring.write(record(0))
        ring.close()

    run_as(uid, write, groups=(GROUP,))


def tick(rings: Rings) -> list[tuple[str, int, list[int]]]:
    rings.scan(NOW_NS)
    step = RECORD_INDEX["step"]
    return [(reading.run.name, reading.rank, reading.records[:, step].tolist()) for reading in rings.read()]


def test_a_run_of_any_user_is_read(rings: Rings, root: Path, counts: ExporterCounters):
    """The exporter needs no list of users."""
    ring_of(TRAINER, root / "a")
    ring_of(OTHER, root / "b")
    assert tick(rings) == [("a", 0, [0]), ("b", 0, [0])]
    assert (counts.rejected["run"], counts.rejected["ring"]) == (0, 0)


@pytest.mark.parametrize("intruder", [OTHER, 0])
def test_a_ring_of_another_user_is_refused(rings: Rings, root: Path, counts: ExporterCounters, caplog, intruder: int):
    """Even where the run's owner has opened it to others: a rank that is not the run's is counted once and named."""
    ring_of(TRAINER, root / "a")
    (root / "a").chmod(0o777)
    ring_of(intruder, root / "a", rank=7)
    with caplog.at_level(logging.WARNING):
        assert tick(rings) == [("a", 0, [0])]
        assert tick(rings) == []
    assert counts.rejected["ring"] == 1
    (line,) = caplog.messages
    assert f"owner of the ring in {root}/a/7.ring: got uid {intruder}, expected uid {TRAINER}, whose run it is" in line
    assert list(rings.runs["a"].ranks) == [0]


@pytest.mark.parametrize("kind", ["link", "pipe", "file"])
def test_a_run_name_that_is_no_directory_is_counted_once(
    rings: Rings, root: Path, counts: ExporterCounters, caplog, kind: str
):
    """A link is not followed, to another user's run least of all."""
    ring_of(TRAINER, root / "a")

    def squat() -> None:
        path = root / "b"
        if kind == "link":
            path.symlink_to(root / "a")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.touch()

    run_as(OTHER, squat)
    with caplog.at_level(logging.WARNING):
        assert tick(rings) == [("a", 0, [0])]
        assert tick(rings) == []
    assert counts.rejected["run"] == 1
    (line,) = caplog.messages
    assert f"run directory in {root}/b: got " in line
    assert line.endswith("expected a directory, no link")


def test_a_run_that_becomes_a_link_to_another_users_is_refused(rings: Rings, root: Path, counts: ExporterCounters):
    """Between two looks, and between a look at the directory and one at what is in it."""
    ring_of(OTHER, root / "b")
    ring_of(TRAINER, root / "a")
    assert tick(rings) == [("a", 0, [0]), ("b", 0, [0])]

    def swap() -> None:
        (root / "b").rename(root / "c")
        (root / "b").symlink_to(root / "a")

    run_as(OTHER, swap)
    assert "b" not in {run for run, _, _ in tick(rings)}
    assert counts.rejected["run"] == 1
    run = rings.runs["a"]
    rings._scan_run(
        type(run)("b", root / "b"), OTHER
    )  # the directory was the other user's when its owner was asked for
    assert counts.rejected["ring"] == 1


def test_a_squatted_run_name_is_counted(rings: Rings, root: Path, counts: ExporterCounters, caplog):
    """The agents of other users refuse to write there: a directory that stays without a ring of its owner is reported once."""
    run_as(OTHER, (root / "pretrain").mkdir)
    with caplog.at_level(logging.WARNING):
        tick(rings)
        assert counts.rejected["run"] == 0  # its ring may come
        for _ in range(3):
            tick(rings)
    assert counts.rejected["run"] == 1
    assert f"ring in {root}/pretrain: got none of its owner, uid {OTHER}, expected one, or no directory" in caplog.text


def test_a_run_that_has_lost_its_rings_is_no_squatted_name(rings: Rings, root: Path, counts: ExporterCounters):
    """What was once read is a run."""
    ring_of(TRAINER, root / "a")
    tick(rings)
    (root / "a" / "0.ring").unlink()
    for _ in range(3):
        tick(rings)
    assert counts.rejected["run"] == 0


def test_a_run_that_is_closed_to_the_exporter_is_counted(root: Path):
    """Its user is in no group of the exporter's: silence would look like a rank that does not train."""
    ring_of(TRAINER, root / "a")
    os.chown(root / "a", -1, TRAINER)
    (root / "a").chmod(0o750)

    def look() -> tuple[list, int, list]:
        counts = ExporterCounters()
        rings = Rings(root, counts, {})
        first = tick(rings)
        return first, counts.rejected["run"], [tick(rings), counts.rejected["run"]]

    assert run_as(61003, look, gid=GROUP) == ([], 1, [[], 1])


def test_no_user_pushes_another_ones_run_out(rings: Rings, root: Path):
    """Runs beyond the limit are followed by turns: the first of each user, then the second."""
    for number in range(2 * RUNS_PER_NODE_MAX):
        ring_of(OTHER, root / f"a-{number}")
    tick(rings)
    assert len(rings.runs) == RUNS_PER_NODE_MAX
    ring_of(TRAINER, root / "z")
    tick(rings)
    assert "z" in rings.runs
    assert len(rings.runs) == RUNS_PER_NODE_MAX
    assert rings.omitted == RUNS_PER_NODE_MAX + 1


def test_no_user_hides_another_ones_run_behind_directories(rings: Rings, root: Path):
    """Nor by making more of them than are looked through."""
    run_as(OTHER, lambda: [(root / f"a-{number}").mkdir() for number in range(300)] and None)
    ring_of(TRAINER, root / "z")
    tick(rings)
    assert "z" in rings.runs
