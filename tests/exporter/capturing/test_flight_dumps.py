"""Dumps of torch's Flight Recorder as files: a rank's own, of this attempt, and nothing else."""

import asyncio
import os
import pickle

import pytest

from exporter.capturing.flight_dumps import FlightDump, issued_bytes, wait_written
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


def flight_dump(prefix, *, pipe_prefix="", uid=None, since=0):
    owner_uid = os.geteuid() if uid is None else uid
    return FlightDump(rank=RANK, prefix=prefix, pipe_prefix=pipe_prefix, owner_uid=owner_uid, since_unix_ns=since)


def read(prefix, **options):
    return flight_dump(prefix, **options).read()


class Monitor:
    """What ProcessGroupNCCL's thread does: reads its pipe without waiting, and writes the dump where a byte was in it."""

    def __init__(self, directory, rank=RANK):
        self.path = directory / f"pipe_{rank}.pipe"
        os.mkfifo(self.path)
        self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self._dump = directory / f"rank_{rank}"

    def look(self, entries):
        """Return whether a dump was requested."""
        try:
            is_requested = bool(os.read(self._file, 128))
        except BlockingIOError:
            return False
        if is_requested:
            self._dump.write_bytes(pickle.dumps(dumped(*entries), protocol=2))
        return is_requested

    def close(self):
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


@pytest.fixture
def monitor(tmp_path):
    made = Monitor(tmp_path)
    yield made
    made.close()


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


async def test_a_dump_is_requested_and_read_once_it_is_written(prefix, tmp_path, monitor):
    """The file of an earlier time-out is there already: what is read is what the process writes on the request."""
    dump = flight_dump(prefix, pipe_prefix=str(tmp_path / "pipe_"))
    former = {dump: dump.version()}
    assert dump.request()
    waiting = asyncio.ensure_future(wait_written(former, 60))
    await asyncio.sleep(0)
    assert not waiting.done()
    monitor.look([entry(3, 77)])
    await waiting
    assert [each.sequence for each in dump.read()] == [77]


async def test_a_process_that_does_not_write_is_waited_for_so_long(prefix, tmp_path, monitor):
    """Its monitor may be off: the former dump is read."""
    dump = flight_dump(prefix, pipe_prefix=str(tmp_path / "pipe_"))
    former = {dump: dump.version()}
    assert dump.request()
    await wait_written(former, 0.01)
    assert len(dump.read()) == ISSUED_MAX


@pytest.mark.parametrize("pipe_prefix", ["", "relative/pipe_", "/nonexistent/pipe_"])
def test_without_a_pipe_no_dump_is_requested(prefix, pipe_prefix):
    """Most trainings have set none."""
    assert not flight_dump(prefix, pipe_prefix=pipe_prefix).request()


def test_only_a_pipe_of_the_rings_owner_that_is_read_is_written_into(prefix, tmp_path, monitor):
    """The training names the path: nothing else gets a byte, and a full pipe holds no one up."""
    pipe_prefix = str(tmp_path / "pipe_")
    with pytest.raises(MalformedError, match=f"expected a pipe of uid {os.geteuid() + 1}"):
        flight_dump(prefix, pipe_prefix=pipe_prefix, uid=os.geteuid() + 1).request()
    dump = flight_dump(prefix, pipe_prefix=pipe_prefix)
    with monitor.path.open("wb", buffering=0) as pipe:
        os.set_blocking(pipe.fileno(), False)
        while pipe.write(bytes(4096)) is not None:
            pass
    assert dump.request()
    monitor.close()
    assert not dump.request()
    monitor.path.unlink()
    monitor.path.write_bytes(b"")
    with pytest.raises(MalformedError, match="expected a pipe"):
        dump.request()
    assert monitor.path.read_bytes() == b""
    monitor.path.unlink()
    os.mkfifo(tmp_path / "other")
    monitor.path.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        dump.request()
