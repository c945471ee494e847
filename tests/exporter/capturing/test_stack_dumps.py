"""Stacks of real processes: the process that holds the ring and has the pipe open is asked, and no other."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from exporter.capturing.stack_dumps import dump_stacks, open_target
from exporter.capturing.stack_text import parse_stacks, thread_stacks
from exporter.reading.ring_file import RingFile
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.paths import ring_path
from lockstep.contracts.stacks import stacks_path
from tests.exporter.capturing import stack_job


@contextlib.contextmanager
def job(directory, what, **variables):
    """Run a process with a ring until the end of the block; it has printed `ready` by then."""
    process = subprocess.Popen(
        [sys.executable, stack_job.__file__, str(directory), what],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])} | variables,
    )
    try:
        lines = []
        while not lines or lines[-1] != "ready":
            line = process.stdout.readline()
            assert line, f"the process ended: {lines}"
            lines.append(line.strip())
        process.output_lines = lines
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run"


@contextlib.contextmanager
def ring_of(directory):
    ring = RingFile(ring_path(directory, 0), 0)
    try:
        yield ring
    finally:
        ring.close()


def no_request():
    raise AssertionError("a process that can be signalled is not asked otherwise")


def dump(directory, limit_s=30.0):
    """Return what rank 0 writes, and its training thread."""
    with ring_of(directory) as ring:
        target = open_target(stacks_path(directory, 0), 0, ring)
        try:
            return dump_stacks([target], no_request, limit_s=limit_s)[0], ring.training_thread()
        finally:
            target.close()


@pytest.mark.parametrize(
    ("what", "function"),
    [
        ("sleep", "stuck_in_download"),
        ("native", "stuck_in_native"),
        ("without_lock", "stuck_without_lock"),
        ("fork", "stuck_in_download"),
    ],
)
def test_a_process_writes_where_all_its_threads_are(directory, what, function):
    """In Python, in C with the interpreter lock and without it: the training thread comes first, with its function."""
    with job(directory, what) as process:
        written, thread = dump(directory)
        assert process.poll() is None
        stacks, omitted = thread_stacks(parse_stacks(written, where="test"), thread)
        assert omitted == 0
        assert [stack.is_training for stack in stacks] == [True, False]
        file, line, name = stacks[0].frames[0]
        assert (Path(file).name, name) == ("stack_job.py", function)
        assert line > 0
        assert [name for *_, name in stacks[1].frames if name == "helper"] == ["helper"]
        again, _ = dump(directory)
        assert thread_stacks(parse_stacks(again, where="test"), thread)[0][0].frames[0][2] == function
        if what == "fork":
            assert "forked 0" in process.output_lines


def test_a_handler_of_the_training_is_left_alone(directory):
    """There is no pipe then, so nothing is sent; the training's own handler still gets its signal."""
    with job(directory, "handler") as process:
        assert process.output_lines[0] == "the training handles SIGURG"
        with pytest.raises(FileNotFoundError):
            dump(directory)
        process.send_signal(signal.SIGURG)
        assert process.stdout.readline() == "handled\n"


def test_a_stopped_process_is_named_as_such(directory):
    """It writes nothing while it is stopped: that is the answer; later it goes on as if nothing had been asked."""
    with job(directory, "sleep") as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        written, _ = dump(directory, limit_s=0.2)
        assert written == "the process is stopped by a signal"
        process.send_signal(signal.SIGCONT)
        assert isinstance(dump(directory)[0], bytes)


def test_a_dead_process_is_not_signalled(directory):
    """Its pid may be another's: without a holder of the ring and a writer of the pipe there is nothing to send to."""
    with job(directory, "sleep"):
        pass
    assert stacks_path(directory, 0).is_fifo()
    with pytest.raises(MalformedError, match="nothing that writes into it"):
        dump(directory)
    writer = os.open(stacks_path(directory, 0), os.O_RDWR | os.O_NONBLOCK)
    try:
        with pytest.raises(MalformedError, match="it has ended"):
            dump(directory)
    finally:
        os.close(writer)


def test_what_is_no_pipe_of_the_run_is_refused(directory, tmp_path):
    """A file, or a link, in the pipe's place."""
    with job(directory, "sleep"):
        path = stacks_path(directory, 0)
        path.unlink()
        path.write_text("Thread 0x1 (most recent call first):\n")
        with pytest.raises(MalformedError, match="expected a pipe of uid"):
            dump(directory)
        path.unlink()
        os.mkfifo(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError, match="symbolic links"):
            dump(directory)


def test_an_endless_writer_is_cut(directory):
    """The pipe's owner writes without end: reading stops at four times the pipe, and at the limit of time."""
    with job(directory, "sleep"):
        with ring_of(directory) as ring:
            target = open_target(stacks_path(directory, 0), 0, ring)
        writer = os.open(stacks_path(directory, 0), os.O_WRONLY)
        is_over = threading.Event()

        def write():
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                while not is_over.is_set():
                    os.write(writer, b"x" * 4096)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            written = dump_stacks([target], no_request, limit_s=30.0)[0]
            assert len(written) == 1 << 20
            with pytest.raises(MalformedError, match="expected a line of faulthandler"):
                parse_stacks(written + b"\n", where="test")
        finally:
            is_over.set()
            os.set_blocking(writer, False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.read(target.pipe, 1 << 16)
            thread.join()
            os.close(writer)
            target.close()
