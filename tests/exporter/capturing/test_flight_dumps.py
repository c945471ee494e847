"""Dumps of torch's Flight Recorder as files: a rank's own, of this attempt, and nothing else."""

import os
import pickle

import pytest

from exporter.capturing.flight_dumps import issued_bytes, read_flight_dump
from exporter.capturing.stack_text import Thread, thread_stacks
from lockstep.contracts.codec import encode
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import ISSUED_MAX, STACKS_MAX_BYTES
from lockstep.contracts.messages import RankStacks
from tests.trace.test_flight_recorder import ENTRY, dumped

RANK = 3


def entry(group, sequence):
    return ENTRY | {"process_group": (f"{group}" * 64, "d" * 64), "collective_seq_id": sequence}


@pytest.fixture
def prefix(tmp_path):
    """Write a dump of ten groups with ten collectives each; return the beginning of its path."""
    entries = [entry(group, sequence) for group in range(10) for sequence in range(1, 11)]
    (tmp_path / f"rank_{RANK}").write_bytes(pickle.dumps(dumped(*entries), protocol=2))
    return str(tmp_path / "rank_")


def read(prefix, *, uid=None, since=0):
    return read_flight_dump(prefix, RANK, owner_uid=os.geteuid() if uid is None else uid, since_unix_ns=since)


def test_the_last_collectives_fit_into_a_message_with_its_stacks(prefix):
    """10 KB a rank, whatever the names: what collectives take, stacks do not get."""
    issued = read(prefix)
    assert len(issued) == ISSUED_MAX
    assert {each.sequence for each in issued} == {7, 8, 9, 10}
    frames = tuple((f"/srv/{'x' * 150}", 88, "f" * 90) for _ in range(100))
    threads, omitted = thread_stacks([Thread(1, frames)] * 3, 1, issued_bytes(issued))
    message = RankStacks(
        run="r" * 128, node="n" * 128, rank=0, request_id=1, unix_ns=1, threads=threads, collectives=issued,
        omitted_frames=omitted,
    )  # fmt: skip
    assert len(encode(message)) <= STACKS_MAX_BYTES
    assert threads[0].frames


def test_a_dump_of_a_former_attempt_is_none(prefix, tmp_path):
    """It would show collectives of a process that is gone."""
    written_ns = (tmp_path / f"rank_{RANK}").stat().st_mtime_ns
    assert read(prefix, since=written_ns)
    assert read(prefix, since=written_ns + 1) == []


@pytest.mark.parametrize("prefix", ["", "relative/rank_", "/nonexistent/rank_"])
def test_without_a_file_there_is_nothing(prefix):
    """Most trainings have set none."""
    assert read(prefix) == []


def test_another_users_file_is_not_read(prefix, tmp_path):
    """The training names the path: it may name no file of another user, and nothing but a file."""
    with pytest.raises(MalformedError, match=f"expected a file of uid {os.geteuid() + 1}"):
        read(prefix, uid=os.geteuid() + 1)
    path = tmp_path / f"rank_{RANK}"
    path.rename(tmp_path / "other")
    path.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        read(prefix)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(MalformedError, match="expected a file"):
        read(prefix)
