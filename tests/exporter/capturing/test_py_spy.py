"""py-spy for processes that write no stacks: a program in its place prints what py-spy 0.4.3 printed of a process here."""

import asyncio
import json
import os
import signal
import sys
import time

import pytest

from exporter.capturing.py_spy import parse_py_spy, read_by_py_spy
from lockstep.contracts.errors import MalformedError
from tests.exporter.capturing.test_stack_dumps import job
from tests.exporter.capturing.test_stacks import Node

FRAME = {
    "name": "stuck", "filename": "/srv/job.py", "module": None, "short_filename": "job.py", "line": 4, "locals": None,
    "is_entry": True, "is_shim_entry": False,
}  # fmt: skip
THREAD = {
    "pid": 31459, "thread_id": 140448887049088, "thread_name": "MainThread", "os_thread_id": 31459, "active": False,
    "owns_gil": False, "frames": [FRAME, FRAME | {"name": "<module>", "line": 5}], "process_info": None,
}  # fmt: skip


@pytest.fixture
def py_spy(tmp_path, monkeypatch):
    """Put a program in py-spy's place; its arguments are in `arguments`."""

    def install(lines):
        program = tmp_path / "bin" / "py-spy"
        program.parent.mkdir(exist_ok=True)
        note = (
            f"import json, os, sys, time\nopen({str(tmp_path / 'arguments')!r}, 'w').write(json.dumps(sys.argv[1:]))\n"
        )
        program.write_text(f"#!{sys.executable}\n{note}{lines}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        return lambda: json.loads((tmp_path / "arguments").read_text())

    return install


def test_what_it_prints_are_threads():
    """Files, lines and functions, innermost first, by the thread's number as Python has it."""
    (thread,) = parse_py_spy(json.dumps([THREAD]).encode(), where="test")
    assert thread.ident == 140448887049088
    assert thread.frames == (("/srv/job.py", 4, "stuck"), ("/srv/job.py", 5, "<module>"))


@pytest.mark.parametrize(
    "value",
    [None, {}, [1], [{}], [THREAD | {"thread_id": "1"}], [THREAD | {"frames": [{}]}], [THREAD | {"thread_id": -1}]],
)
def test_what_is_no_stacks_is_refused(value):
    """py-spy reads the memory of a training, which may hold anything."""
    with pytest.raises(MalformedError, match="expected threads with frames"):
        parse_py_spy(json.dumps(value).encode(), where="test")


def test_texts_are_bounded():
    """They go into a message."""
    odd = FRAME | {"name": "f" * 1000, "filename": "a\nb", "line": -3}
    (thread,) = parse_py_spy(json.dumps([THREAD | {"frames": [odd] * 1000}]).encode(), where="test")
    assert len(thread.frames) == 100
    assert thread.frames[0] == ("?", 0, "f" * 96)


async def test_without_py_spy_nothing_is_read(monkeypatch):
    """It is optional."""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert await read_by_py_spy(os.getpid()) is None


async def test_the_process_is_not_stopped(py_spy):
    """It is called with the flag for that."""
    arguments = py_spy(f"print({json.dumps([THREAD])!r})")
    (thread,) = await read_by_py_spy(17, limit_s=60)
    assert thread.frames[0][2] == "stuck"
    assert arguments() == ["dump", "--pid", "17", "--json", "--nonblocking"]


@pytest.mark.parametrize(
    ("lines", "limit_s", "message"),
    [
        ("sys.exit(1)", 60, "exit status 1"),
        ("print('no JSON')", 60, "expected threads with frames"),
        ("while True: os.write(1, b'x' * 65536)", 60, "expected at most"),
        ("time.sleep(600)", 0.2, "expected an end within 0.2 s"),
    ],
)
async def test_a_py_spy_that_fails_is_an_error_and_is_ended(py_spy, lines, limit_s, message):
    """No rights, another version, output without end, no end."""
    py_spy(lines)
    began_s = time.monotonic()
    with pytest.raises(MalformedError, match=message):
        await read_by_py_spy(17, limit_s=limit_s)
    assert time.monotonic() - began_s < 60


async def test_output_that_no_one_reads_does_not_keep_py_spy(py_spy, monkeypatch):
    """A busy event loop finds more than the stream's limit at once: asyncio stops reading, and misses the pipe's end."""

    async def give_up(process, where):
        while not process.stdout._paused:  # noqa: ASYNC110  (asyncio reports it to no one)
            await asyncio.sleep(0)
        raise MalformedError("stacks", where=where, got="much", expected="at most")

    monkeypatch.setattr("exporter.capturing.py_spy._output", give_up)
    py_spy("while True: os.write(1, b'x' * 65536)")
    async with asyncio.timeout(60):
        with pytest.raises(MalformedError, match="expected at most"):
            await read_by_py_spy(17, limit_s=60)


async def test_a_rank_that_writes_no_stack_is_read_by_py_spy(py_spy, tmp_path):
    """Its training handles the signal: there is no pipe. Without py-spy the reason would be the answer."""
    node = Node(tmp_path)
    try:
        with job(tmp_path / "run", "handler") as process:
            arguments = py_spy(f"print({json.dumps([THREAD])!r})")
            node.rings.scan(1)
            node.submit()
            await node.work(1)
            assert arguments()[2] == str(process.pid)
    finally:
        node.rings.close()
    (sent,) = node.sent
    assert sent.reason == ""
    assert sent.threads[0].frames[0] == ("/srv/job.py", 4, "stuck")


def stop(process):
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


async def test_a_rank_that_cannot_be_read_keeps_its_reason(py_spy, tmp_path):
    """py-spy has no rights: what is known is why the process wrote nothing."""
    node = Node(tmp_path)
    try:
        with job(tmp_path / "run", "sleep") as process:
            py_spy("sys.exit(1)")
            node.rings.scan(1)
            stop(process)
            node.submit()
            await node.work(1)
    finally:
        node.rings.close()
    assert node.sent[0].reason == "the process is stopped by a signal"
