"""Reads the stacks of a process that does not write them itself, using py-spy where it is installed.

This covers ranks whose training handles the signal itself, whose agent has disabled itself, or whose process is
stopped. py-spy reads the process's memory without stopping it (`--nonblocking`), and needs permission to trace it. The
JSON format is that of py-spy 0.4.
"""

import asyncio
import json
import shutil
from typing import Any

from exporter.capturing.stack_text import Thread
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import (
    STACK_FILE_MAX_CHARS,
    STACK_FRAMES_MAX,
    STACK_FUNCTION_MAX_CHARS,
    STACK_THREADS_MAX,
)
from lockstep.contracts.messages import StackFrame

PROGRAM = "py-spy"
LIMIT_S = 2.0
_OUTPUT_MAX_BYTES = 4 << 20
_LINE_MAX = (1 << 31) - 1
_IDENT_MAX = (1 << 64) - 1


async def read_by_py_spy(pid: int, *, limit_s: float = LIMIT_S) -> list[Thread] | None:
    """Return the threads of a process, or None if py-spy is not installed.

    Raises
    ------
    MalformedError
        py-spy failed, took longer than `limit_s`, or printed something other than stacks.
    OSError
        py-spy cannot be started.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    process = await asyncio.create_subprocess_exec(
        *(program, "dump", "--pid", str(pid), "--json", "--nonblocking"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    where = f"{PROGRAM} of process {pid}"
    try:
        async with asyncio.timeout(limit_s):
            output = await _output(process, where)
            code = await process.wait()
    except TimeoutError:
        raise MalformedError("stacks", where=where, got="none", expected=f"an end within {limit_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()  # while a full buffer stops asyncio reading, it reports no end of the process
    if code:
        raise MalformedError("stacks", where=where, got=f"exit status {code}", expected="0")
    return parse_py_spy(output, where=where)


async def _output(process: asyncio.subprocess.Process, where: str) -> bytes:
    assert process.stdout is not None
    output = bytearray()
    while part := await process.stdout.read(_OUTPUT_MAX_BYTES):
        output += part
        if len(output) > _OUTPUT_MAX_BYTES:
            expected = f"at most {_OUTPUT_MAX_BYTES} bytes"
            raise MalformedError("stacks", where=where, got=f"{len(output)} bytes", expected=expected)
    return bytes(output)


def parse_py_spy(data: bytes, *, where: str) -> list[Thread]:
    """Parse the output of `py-spy dump --json`, up to the number of threads and frames that faulthandler would write.

    Raises
    ------
    MalformedError
        It is not such output.
    """
    try:
        found = [_thread(each) for each in json.loads(data)[:STACK_THREADS_MAX]]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        got = f"{type(error).__name__}: {error}"[:200]
        raise MalformedError("stacks", where=where, got=got, expected="threads with frames") from None
    return found


def _thread(value: Any) -> Thread:
    ident = value["thread_id"]
    if type(ident) is not int or not 0 <= ident <= _IDENT_MAX:
        raise ValueError(f"thread {ident!r}"[:100])
    return Thread(ident, tuple(_frame(each) for each in value["frames"][:STACK_FRAMES_MAX]))


def _frame(value: Any) -> StackFrame:
    line = value["line"]
    number = line if type(line) is int and 0 < line <= _LINE_MAX else 0
    return (
        _text(value["filename"])[-STACK_FILE_MAX_CHARS:],
        number,
        _text(value["name"])[:STACK_FUNCTION_MAX_CHARS],
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {type(value).__name__}, expected a text")
    return value.encode("ascii", "replace").decode() if value.isprintable() else "?"
