"""Supervises the summaries: one worker process at a time, with a limit of time, its output checked like any input."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.config import ExporterConfig
from exporter.counts import Counts
from exporter.host_watch import HostWatch
from exporter.summarise_worker import failed_summary
from exporter.traces import check_trace, trim_traces
from lockstep.contracts import topics
from lockstep.contracts.codec import decode_as
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import SUMMARY_WIRE_MAX_BYTES
from lockstep.contracts.messages import TraceSummary

_JOBS_MAX = 256  # 4 runs of 64 ranks, each with one trace
_OUTPUT_MAX_BYTES = SUMMARY_WIRE_MAX_BYTES
_COMPLAINT_MAX_BYTES = 64 << 10
WORKER = (sys.executable, "-P", "-m", "exporter.summarise_worker")  # -P: nothing from the directory we happen to be in


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A trace that a rank says it has written, and from when to when (CLOCK_MONOTONIC ns) it says that it reaches."""

    run: str
    directory: Path
    rank: int
    request_id: int
    steps: int
    span_ns: tuple[int, int] = (0, 0)


class Summariser:
    """A queue of traces and the task that works it off; belongs to the event loop.

    `on_summary` gets exactly one summary per job, with `error` where there is none to give. `running_id` tells which
    request of a run is being captured, so that traces still being written are not deleted. `host_watch` tells what the
    node counted meanwhile.
    """

    def __init__(
        self,
        config: ExporterConfig,
        *,
        counts: Counts,
        on_summary: Callable[[TraceSummary], None],
        running_id: Callable[[str], int | None],
        host_watch: HostWatch | None = None,
        worker: tuple[str, ...] = WORKER,
    ) -> None:
        self._config = config
        self._counts = counts
        self._on_summary = on_summary
        self._running_id = running_id
        self._host_watch = host_watch
        self._worker = worker
        self._jobs: asyncio.Queue[TraceJob] = asyncio.Queue(_JOBS_MAX)
        self._waiting: list[TraceJob] = []

    def submit(self, job: TraceJob) -> None:
        """Queue a trace."""
        try:
            self._jobs.put_nowait(job)
        except asyncio.QueueFull:
            self._fail(job, f"more than {_JOBS_MAX} traces wait to be summarised")
        else:
            self._waiting.append(job)

    async def run(self) -> None:
        """Work the queue off until cancelled; what waits then is answered with an error."""
        try:
            while True:
                job = await self._jobs.get()
                await self._summarise(job)
                self._waiting.remove(job)
                self._trim(job)
        finally:
            for job in self._waiting:
                self._fail(job, "the exporter stopped before the trace was summarised")
            self._waiting.clear()

    async def _summarise(self, job: TraceJob) -> None:
        if self._host_watch is not None:
            await self._host_watch.reach(job.span_ns[1])
        try:
            path, _ = check_trace(job.directory, job.request_id, job.rank)
            summary = await self._work(job, path)
        except MalformedError as error:
            self._fail(job, str(error))
            return
        if summary.error:
            self._counts.reject("trace", f"run {job.run}, rank {job.rank}: {summary.error}")
        self._send(job, summary)

    def _send(self, job: TraceJob, summary: TraceSummary) -> None:
        """Hand a summary on, with what the node counted: true of a capture whose trace cannot be read, too."""
        if self._host_watch is not None:
            summary = replace(summary, host=self._host_watch.span(job.run, job.rank, *job.span_ns))
        self._on_summary(summary)

    async def _work(self, job: TraceJob, path: Path) -> TraceSummary:
        """Run the worker and return its checked output.

        Raises
        ------
        MalformedError
            The worker failed, or said something else than a summary of this trace.
        """
        node, where = self._config.node_name, str(path)
        numbers = (job.rank, job.request_id, job.steps, self._config.summarise_memory_bytes)
        try:
            async with asyncio.timeout(self._config.summarise_seconds):
                code, output, complaint = await _run((*self._worker, where, job.run, node, *map(str, numbers)))
        except TimeoutError:
            limit = f"a summary within {self._config.summarise_seconds:g} s"
            raise MalformedError("trace", where=where, got="no end", expected=limit) from None
        if code != 0:
            raise MalformedError(
                "trace", where=where, got=f"worker ended with {code}: {complaint}", expected="a summary"
            )
        summary = decode_as(TraceSummary, topics.run_topic(job.run, topics.SUMMARY, node), output)
        asked, got = (job.rank, job.request_id), (summary.rank, summary.request_id)
        if got != asked:
            raise MalformedError("rank, request", where=where, got=got, expected=asked)
        return summary

    def _fail(self, job: TraceJob, reason: str) -> None:
        self._counts.reject("trace", f"run {job.run}, rank {job.rank}: {reason}")
        self._send(job, failed_summary(job.run, self._config.node_name, job.rank, job.request_id, reason))

    def _trim(self, job: TraceJob) -> None:
        in_use = {waiting.request_id for waiting in self._waiting if waiting.run == job.run}
        running = self._running_id(job.run)
        if running is not None:
            in_use.add(running)
        try:
            trim_traces(job.directory, self._config.trace_keep_bytes, in_use)
        except OSError as error:
            self._counts.reject("trace", error)


async def _run(command: tuple[str, ...]) -> tuple[int, bytes, str]:
    """Run a process; return its exit code, its output and its last line on standard error. Killed when cancelled."""
    pipe = asyncio.subprocess.PIPE
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdin=null, stdout=pipe, stderr=pipe)
    try:
        output, complaint = await asyncio.gather(
            _read(process.stdout, _OUTPUT_MAX_BYTES), _read(process.stderr, _COMPLAINT_MAX_BYTES)
        )
        code = await process.wait()
    finally:
        await _end(process)
    return code, output, complaint.decode(errors="replace").strip().rpartition("\n")[2]


async def _read(stream: asyncio.StreamReader | None, limit_bytes: int) -> bytes:
    """Read to the end, or a little over the limit: the decoder refuses that by its size."""
    assert stream is not None
    data = bytearray()
    while len(data) <= limit_bytes and (part := await stream.read(64 << 10)):
        data += part
    return bytes(data)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what still runs, and read its pipes to their end: asyncio closes them only there."""
    if process.returncode is None:
        process.kill()
        await process.communicate()
