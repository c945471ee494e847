"""A persistent worker process: started by the first job, given one job at a time, killed on an error or a timeout.

Its output is untrusted: lengths are checked before anything is read. `summarise_worker` defines the protocol.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Sequence
from typing import Any, NamedTuple

from lockstep.contracts.errors import MalformedError

_COMPLAINT_MAX_BYTES = 4 << 10
_HEAD_PARTS = 3
_WHERE = "summaries"


class JobOutput(NamedTuple):
    """The exit status of the process that did the job, its output, and the last line of its standard error."""

    code: int
    output: bytes
    complaint: str


class PersistentWorker:
    """Runs on the event loop. `command` starts the process, which leads its own process group."""

    def __init__(self, command: tuple[str, ...], output_max_bytes: int) -> None:
        self._command = command
        self._output_max_bytes = output_max_bytes
        self._process: asyncio.subprocess.Process | None = None
        self._complaints: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process is running and can take a job."""
        return self._process is not None and self._process.returncode is None

    async def ask(self, job: Sequence[Any]) -> JobOutput:
        """Run a job and return its result; its parts must be serialisable as JSON.

        Cancelling the call ends the process.

        Raises
        ------
        MalformedError
            The process cannot be started, died, or violated the protocol.
        """
        is_answered = False
        try:
            try:
                await self._start()
            except OSError as error:
                raise MalformedError("worker", where=_WHERE, got=repr(error), expected="a process") from error
            answer = await self._exchange(json.dumps(list(job)).encode() + b"\n")
            is_answered = True
        finally:
            if not is_answered:
                await self.end()
        return answer

    async def end(self) -> None:
        """Kill the process and all that it started; the next job starts another one.

        If this call is cancelled, the next call completes it.
        """
        process = self._process
        if process is not None:
            if process.returncode is None:  # otherwise the pid may belong to another process by now
                with contextlib.suppress(ProcessLookupError):  # it was reaped in between
                    os.killpg(process.pid, signal.SIGKILL)
            assert process.stdin is not None
            process.stdin.close()
            await process.communicate()  # asyncio closes pipes only at end of file
            with contextlib.suppress(ConnectionError):
                # Shielded: a cancelled wait would cancel the future that asyncio still has to set.
                await asyncio.shield(process.stdin.wait_closed())
            self._process = None
        if self._complaints is not None:
            os.close(self._complaints)
            self._complaints = None

    async def _start(self) -> None:
        if self.is_running:
            return
        await self.end()
        pipe = asyncio.subprocess.PIPE
        self._complaints = os.memfd_create("complaints")
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=self._complaints, process_group=0
        )

    async def _exchange(self, line: bytes) -> JobOutput:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):  # the process has died; its last output shows why
            process.stdin.write(line)
            await process.stdin.drain()
        try:
            head = await process.stdout.readline()
            if head:
                code, size, complaint = self._head(head)
                return JobOutput(code, await process.stdout.readexactly(size), complaint)
        except (ConnectionError, asyncio.IncompleteReadError, ValueError) as error:
            raise MalformedError("worker", where=_WHERE, got=repr(error), expected="an answer") from error
        got = f"ended with {await process.wait()}: {self._last_complaint()}"
        raise MalformedError("worker", where=_WHERE, got=got, expected="an answer")

    def _head(self, head: bytes) -> tuple[int, int, str]:
        reply = json.loads(head)
        if not isinstance(reply, list) or len(reply) != _HEAD_PARTS:
            raise ValueError(f"an answer that begins with {head[:64]!r}")
        code, size, complaint = reply
        if not (isinstance(code, int) and isinstance(size, int) and 0 <= size <= self._output_max_bytes + 1):
            raise ValueError(f"an answer that begins with {head[:64]!r}")
        return code, size, str(complaint)

    def _last_complaint(self) -> str:
        assert self._complaints is not None
        size = os.fstat(self._complaints).st_size
        tail = os.pread(self._complaints, _COMPLAINT_MAX_BYTES, max(0, size - _COMPLAINT_MAX_BYTES))
        return tail.decode(errors="replace").strip().rpartition("\n")[2]
