"""Supervises the summary worker: one trace at a time, within a time limit, its output checked like any other input."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.capturing.persistent_worker import PersistentWorker
from exporter.capturing.summarise_worker import SummaryRequest, failed_summary
from exporter.capturing.traces import take_over_trace, trim_traces, write_samples
from exporter.capturing.worker_share import CpuShare
from exporter.config import ExporterConfig
from exporter.counts import ExporterCounters
from exporter.host_watch import HostWatch
from lockstep.contracts import topics
from lockstep.contracts.codec import decode_as
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import PROFILE_STEPS_MAX, SUMMARY_WIRE_MAX_BYTES
from lockstep.contracts.messages import HostSpan, TraceSummary
from lockstep.serving.fault_isolation import FaultIsolation

_IDLE_S = 600.0  # then the worker ends and frees its 40 MB; captures of one incident follow faster
_JOBS_MAX = 256  # four captures of all 64 ranks of a node
WORKER = (sys.executable, "-P", "-m", f"{__package__}.summarise_worker")
"""-P: do not import from the current directory."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A trace that a rank reported as written, and the time that the trace covers as reported (CLOCK_MONOTONIC ns)."""

    run: str
    directory: Path
    rank: int
    request_id: int
    steps: int
    span_ns: tuple[int, int] = (0, 0)


class Summariser:
    """A queue of traces and the task that processes it; runs on the event loop.

    `on_summary` receives exactly one summary per job, with `error` set if there is none. `running_id` returns the
    request of a run that is being captured: traces still being written are not deleted. `host_watch` returns what the
    node counted meanwhile. The worker ends `idle_s` after the last trace.
    """

    def __init__(
        self,
        config: ExporterConfig,
        *,
        counts: ExporterCounters,
        isolation: FaultIsolation,
        on_summary: Callable[[TraceSummary], None],
        running_id: Callable[[str], int | None],
        host_watch: HostWatch | None = None,
        worker: tuple[str, ...] = WORKER,
        idle_s: float = _IDLE_S,
    ) -> None:
        self._config = config
        self._counts = counts
        self._isolation = isolation
        self._on_summary = on_summary
        self._running_id = running_id
        self._host_watch = host_watch
        share = CpuShare(config.summarise_busy_ratio, config.summarise_burst_ratio, config.summarise_burst_seconds)
        limits = (config.summarise_memory_bytes, *share)
        self._worker = PersistentWorker((*worker, *map(str, limits)), SUMMARY_WIRE_MAX_BYTES)
        self._idle_s = idle_s
        self._jobs: asyncio.Queue[TraceJob | None] = asyncio.Queue(_JOBS_MAX)
        """A None in the queue starts the worker before the first trace."""
        self._waiting: list[TraceJob] = []

    def prepare(self) -> None:
        """Start the worker before traces arrive: its imports take longer than reading a trace."""
        with contextlib.suppress(asyncio.QueueFull):
            self._jobs.put_nowait(None)

    def submit(self, job: TraceJob) -> None:
        """Queue a trace."""
        try:
            self._jobs.put_nowait(job)
        except asyncio.QueueFull:
            self._fail(job, f"more than {_JOBS_MAX} traces wait to be summarised", self._host(job))
        else:
            self._waiting.append(job)

    async def run(self) -> None:
        """Process the queue until cancelled; answer the remaining jobs with an error."""
        try:
            while True:
                job = await self._next()
                if job is None:
                    await self._prepare()
                    continue
                await self._answer(job)
                self._waiting.remove(job)
                self._trim(job)
        finally:
            for job in self._waiting:
                self._fail(job, "the exporter stopped before the trace was summarised", self._host(job))
            self._waiting.clear()
            await self._worker.end()

    async def _next(self) -> TraceJob | None:
        if self._worker.is_running:
            try:
                async with asyncio.timeout(self._idle_s):
                    return await self._jobs.get()
            except TimeoutError:
                await self._worker.end()
        return await self._jobs.get()

    async def _prepare(self) -> None:
        with contextlib.suppress(MalformedError, TimeoutError):  # the first trace reports it
            async with asyncio.timeout(self._config.summarise_seconds):
                await self._worker.ask(SummaryRequest("", "", self._config.node_name, 0, 0, 0))

    async def _answer(self, job: TraceJob) -> None:
        """Produce exactly one summary for the job, whatever happens."""
        with self._isolation.guard("trace", job.run, asyncio.get_running_loop().time()):
            await self._summarise(job)
            return
        self._fail(job, "the exporter failed to summarise the trace, its log has the reason", None)

    async def _summarise(self, job: TraceJob) -> None:
        if self._host_watch is not None:
            await self._host_watch.reach(job.span_ns[1])
        host, trace_bytes = self._host(job), 0  # read now: host watch drops old intervals while a large trace is read
        try:
            path, trace_bytes = take_over_trace(job.directory, job.request_id, job.rank)
            self._leave_samples(job, path)
            summary = await self._work(job, path)
        except MalformedError as error:
            self._fail(job, str(error), host, trace_bytes)
            return
        if summary.error:
            self._counts.reject("trace", f"run {job.run}, rank {job.rank}: {summary.error}")
            summary = replace(summary, trace_bytes=summary.trace_bytes or trace_bytes)
        self._on_summary(replace(summary, host=host))

    def _leave_samples(self, job: TraceJob, trace: Path) -> None:
        """Write what the node sampled next to the trace, for this summary and for later analyses of the trace."""
        if self._host_watch is None:
            return
        try:
            write_samples(trace, self._host_watch.samples(job.run, job.rank, *job.span_ns))
        except OSError as error:
            self._counts.reject("trace", f"run {job.run}, rank {job.rank}: samples: {error}")

    def _host(self, job: TraceJob) -> HostSpan | None:
        """Return what the node counted; it is also valid for a capture whose trace cannot be read."""
        return None if self._host_watch is None else self._host_watch.span(job.run, job.rank, *job.span_ns)

    async def _work(self, job: TraceJob, path: Path) -> TraceSummary:
        """Run the worker and return its checked output.

        Raises
        ------
        MalformedError
            The worker failed, or returned something other than a summary of this trace.
        """
        node, where = self._config.node_name, str(path)
        try:
            async with asyncio.timeout(self._config.summarise_seconds):
                answer = await self._worker.ask(self._request_for(job, where))
        except TimeoutError:
            limit = f"a summary within {self._config.summarise_seconds:g} s"
            raise MalformedError("trace", where=where, got="no end", expected=limit) from None
        if answer.code != 0:
            got = f"worker ended with {answer.code}: {answer.complaint}"
            raise MalformedError("trace", where=where, got=got, expected="a summary")
        summary = decode_as(TraceSummary, topics.run_topic(job.run, topics.SUMMARY, node), answer.output)
        about, asked = (summary.rank, summary.request_id), (job.rank, job.request_id)
        if about != asked:
            raise MalformedError("rank, request", where=where, got=about, expected=asked)
        return summary

    def _fail(self, job: TraceJob, reason: str, host: HostSpan | None, trace_bytes: int = 0) -> None:
        """Answer with the reason and whatever else is known of the capture."""
        self._counts.reject("trace", f"run {job.run}, rank {job.rank}: {reason}")
        self._on_summary(replace(failed_summary(self._request_for(job), reason, trace_bytes=trace_bytes), host=host))

    def _request_for(self, job: TraceJob, path: str = "") -> SummaryRequest:
        steps = min(max(job.steps, 0), PROFILE_STEPS_MAX)  # as the rank reported; a receiver accepts no more
        return SummaryRequest(path, job.run, self._config.node_name, job.rank, job.request_id, steps)

    def _trim(self, job: TraceJob) -> None:
        in_use = {waiting.request_id for waiting in self._waiting if waiting.run == job.run}
        running = self._running_id(job.run)
        if running is not None:
            in_use.add(running)
        try:
            trim_traces(job.directory, self._config.trace_keep_bytes, in_use)
        except OSError as error:
            self._counts.reject("trace", error)
