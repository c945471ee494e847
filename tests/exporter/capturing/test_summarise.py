import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.capturing.summarise import Summariser, TraceJob
from exporter.config import ExporterConfig
from exporter.counts import ExporterCounters
from exporter.host_watch import HostWatch
from exporter.host_watch.host_reading import Target
from exporter.shared_directory import prepare_run
from lockstep.contracts.messages import HostSpan
from lockstep.contracts.node_samples import NodeSamples, ResourceSeries
from lockstep.contracts.paths import incoming_directory, trace_name, traces_directory
from lockstep.serving.fault_isolation import FaultIsolation
from lockstep.trace.patterns import patterns_of
from tests.exporter.conftest import make_config, until
from tests.exporter.host_watch.looks import interval, look

ECHO = """
import os, signal, sys, time
from exporter.capturing.summarise_worker import serve
from lockstep.contracts.codec import encode
from lockstep.contracts.messages import TraceSummary
def work(job):
    path, run, node, rank, request, steps = job
    {change}
    return encode(TraceSummary(run=run, node=node, rank=rank, request_id=request, window_ns=1, steps=steps,
        trace_bytes=len(open(path, "rb").read()), event_count=os.getppid(), tree=[]))
sys.exit(serve(work))
"""


def worker(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", script)


def write_trace(directory: Path, content: bytes, request: int = 5, rank: int = 1) -> TraceJob:
    directory.mkdir(exist_ok=True)
    prepare_run(directory)
    (incoming_directory(directory) / trace_name(request, rank)).write_bytes(content)
    return TraceJob("run", directory, rank, request, 2)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, even if its parent has yet to ask for its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def summarise(root: Path, jobs: list[TraceJob], counts: ExporterCounters, **values: Any) -> list:
    """Run a summariser until it has answered every job."""
    done = asyncio.Event()
    summaries: list = []

    def take(summary: Any) -> None:
        summaries.append(summary)
        if len(summaries) == len(jobs):
            done.set()

    command = {"worker": values.pop("worker")} if "worker" in values else {}
    running_id = values.pop("running_id", lambda _: None)
    command |= {"host_watch": values.pop("host_watch")} if "host_watch" in values else {}
    summariser = Summariser(
        make_config(root, root, **values),
        counts=counts,
        isolation=FaultIsolation(("trace",)),
        on_summary=take,
        running_id=running_id,
        **command,
    )
    for job in jobs:
        summariser.submit(job)
    task = asyncio.create_task(summariser.run())
    await asyncio.wait_for(done.wait(), 60)
    await asyncio.sleep(0)  # lets the task trim behind its last summary
    task.cancel()
    await asyncio.wait([task])
    return summaries


async def test_a_trace_is_summarised_in_its_own_process(root: Path):
    """The worker gets path, names and numbers, and its summary comes back whole."""
    job = write_trace(root / "run", b"x" * 123)
    (summary,) = await summarise(root, [job], counts := ExporterCounters(), worker=worker(ECHO.format(change="pass")))
    assert (summary.run, summary.node, summary.rank, summary.request_id) == ("run", "node-1", 1, 5)
    assert (summary.trace_bytes, summary.steps, summary.error) == (123, 2, "")
    assert counts.rejected["trace"] == 0


async def test_what_the_node_counted_goes_with_the_summary(root: Path):
    """Of the rank, in the looks around the span of the answer, with a good summary and with a failed one alike."""
    watch = HostWatch(list)
    watch.take(look(0))
    watch.take(look(1, interval(0, 1, run_queue_wait_ns=3)))
    jobs = [replace(write_trace(root / "run", b"x", request=request, rank=0), span_ns=(10, 20)) for request in (1, 2)]
    (incoming_directory(root / "run") / "2-0.json").unlink()
    echo = worker(ECHO.format(change="pass"))
    good, failed = await summarise(root, jobs, ExporterCounters(), worker=echo, host_watch=watch)
    assert (good.error, bool(failed.error)) == ("", True)
    assert good.host == failed.host == HostSpan(span_ns=10**9, run_queue_wait_ns=3)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise SystemExit('no memory left')", "no memory left"),  # the worker itself
        ("raise SystemExit", "ended with 0"),
        ("print('not an answer', flush=True); input()", "expected an answer"),
        ("print('[0, 999999999, \"\"]', flush=True); input()", "expected an answer"),
        ("print('[0, 99, \"\"]', flush=True)", "expected an answer"),
        ("print('x' * 10_000_000, flush=True)", "expected an answer"),
        ("import time; time.sleep(60)", "within 2 s"),
        (ECHO.format(change="raise SystemExit('too many events')"), "ended with 1: too many events"),  # its child
        (ECHO.format(change="raise ValueError('a bug')"), "ValueError: a bug"),
        (ECHO.format(change="os.kill(os.getpid(), signal.SIGSEGV)"), "ended with -11"),
        (ECHO.format(change="return b'not a message'"), "expected deflated data"),
        (ECHO.format(change="return b'x' * 10_000_000"), "message size"),
        (ECHO.format(change="time.sleep(60)"), "within 2 s"),
        (ECHO.format(change="rank = 9"), "rank, request"),
        (ECHO.format(change="run = 'other'"), "other"),
    ],
)
async def test_a_worker_that_fails_gives_a_summary_with_the_error(root: Path, script: str, reason: str):
    """Whatever becomes of the worker, the asker gets one summary that states why there is none, and it is counted."""
    job = write_trace(root / "run", b"x")
    limit_s = 2.0 if "within 2 s" in reason else 30.0
    (summary,) = await summarise(
        root, [job], counts := ExporterCounters(), worker=worker(script), summarise_seconds=limit_s
    )
    assert summary.tree == []
    assert reason in summary.error
    assert (summary.run, summary.rank, summary.request_id) == ("run", 1, 5)
    assert (summary.steps, summary.trace_bytes) == (2, 1)  # known all the same
    assert counts.rejected["trace"] == 1


async def test_one_process_reads_all_traces_and_dies_with_none_of_them(root: Path):
    """What is imported is imported once; a child that fails costs its own summary, and a process that dies one, too."""
    jobs = [write_trace(root / "run", b"x", request=request) for request in range(1, 7)]
    change = "request == 2 and os._exit(3); request == 4 and os.kill(os.getppid(), signal.SIGKILL)"
    found = await summarise(root, jobs, counts := ExporterCounters(), worker=worker(ECHO.format(change=change)))
    assert [bool(each.error) for each in found] == [False, True, False, True, False, False]
    first, second = ({found[place].event_count for place in places} for places in ((0, 2), (4, 5)))
    assert len(first) == len(second) == 1
    assert first != second
    assert counts.rejected["trace"] == 2
    for pid in first | second:
        assert is_gone(pid)


async def test_a_worker_is_ready_when_a_capture_is_ordered_and_ends_when_none_comes(root: Path):
    """What it imports takes longer than a trace, and is kept no longer than traces may come; the next starts another."""
    summaries: list = []
    note = root / "started"
    script = f"import os; open({str(note)!r}, 'w').write(f'{{os.getpid()}} ')\n" + ECHO.format(change="pass")
    summariser = Summariser(
        make_config(root, root),
        counts=ExporterCounters(),
        isolation=FaultIsolation(("trace",)),
        on_summary=summaries.append,
        running_id=lambda _: None,
        worker=worker(script),
        idle_s=0.01,
    )
    task = asyncio.create_task(summariser.run())
    summariser.prepare()
    await until(lambda: note.exists() and note.read_text().endswith(" "))
    prepared = int(note.read_text())
    await until(lambda: is_gone(prepared))
    assert summaries == []
    for request in (1, 2):
        summariser.submit(write_trace(root / "run", b"x", request=request))
        await until(lambda request=request: len(summaries) == request)
        pid = summaries[-1].event_count
        await until(lambda pid=pid: is_gone(pid))
    task.cancel()
    await asyncio.wait([task])
    assert len({prepared, summaries[0].event_count, summaries[1].event_count}) == 3


async def test_a_worker_that_cannot_be_started_costs_each_trace_its_summary(root: Path):
    """And the exporter nothing."""
    jobs = [write_trace(root / "run", b"x", request=request) for request in (1, 2)]
    found = await summarise(root, jobs, counts := ExporterCounters(), worker=("/nowhere/at/all",))
    assert all("FileNotFoundError" in each.error for each in found)
    assert counts.rejected["trace"] == 2


async def test_a_trace_that_is_not_there_is_an_error_without_a_worker(root: Path):
    """A rank that reports done without a trace is answered by the supervisor."""
    job = TraceJob("run", root / "run", 1, 5, 2)
    (summary,) = await summarise(root, [job], counts := ExporterCounters(), worker=("/nowhere/at/all",))
    assert "5-1.json" in summary.error
    assert counts.rejected["trace"] == 1


def watch_of_this_process() -> HostWatch:
    """Return a watch of ranks that are this process: the worker's priority is all that holds it back next to them."""
    return HostWatch(lambda: [Target(run="run", rank=1, ring="/nowhere", pid=os.getpid())])


async def test_the_real_worker_refuses_what_is_no_trace(root: Path):
    """A hostile file costs one process and gives the reason."""
    jobs = [
        write_trace(root / "run", b"this is no trace", request=1),
        write_trace(root / "run", b"[" * 100_000, request=2),
        write_trace(root / "run", b"", request=3),
    ]
    summaries = await summarise(root, jobs, counts := ExporterCounters(), host_watch=watch_of_this_process())
    assert [summary.request_id for summary in summaries] == [1, 2, 3]
    assert all(summary.error and summary.tree == [] for summary in summaries)
    assert counts.rejected["trace"] == 3


async def test_the_real_worker_summarises_a_trace(root: Path):
    """A small trace of one thread comes back as a call tree."""
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    events = [
        {"ph": "i", "cat": "user_annotation", "name": "lockstep.step#0", "pid": 1, "tid": 1, "ts": 0.0, "s": "t"},
        {**event, "name": "aten::mm", "ts": 10.0, "dur": 500.0},
        {**event, "name": "aten::add", "ts": 600.0, "dur": 300.0},
        {**event, "name": "Optimizer.step#SGD.step", "cat": "user_annotation", "ts": 905.0, "dur": 90.0},
    ]
    job = write_trace(root / "run", json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())
    (summary,) = await summarise(root, [job], counts := ExporterCounters(), host_watch=watch_of_this_process())
    assert summary.error == ""
    assert "aten::mm" in {node.name for node in summary.tree}
    assert counts.rejected["trace"] == 0


class Sampled(HostWatch):
    """A watch whose samples state that the training thread had half of its core, in and around the trace."""

    def samples(self, *_: Any) -> NodeSamples:
        return NodeSamples(resources={"cpu": ResourceSeries(start_ns=0, period_ns=10_000, ratios=[0.5] * 200)})


async def test_the_nodes_samples_become_mu_of_the_patterns(root: Path):
    """The file is left next to the trace, and the real worker reads it."""
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1}
    events = [
        {**event, "name": "aten::mm", "ts": 10.0, "dur": 500.0},
        {**event, "name": "aten::add", "ts": 600.0, "dur": 300.0},
    ]
    job = write_trace(root / "run", json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())
    watch = Sampled(lambda: [Target(run="run", rank=1, ring="/nowhere", pid=os.getpid())])
    (summary,) = await summarise(root, [job], ExporterCounters(), host_watch=watch)
    patterns = patterns_of(summary.patterns).patterns
    assert {each.function: each.mu for each in patterns if each.mu is not None} == {"aten::mm": 0.5, "aten::add": 0.5}
    assert (traces_directory(root / "run") / "5-1.samples.json").is_file()


async def test_the_worker_stands_behind_training(root: Path, tmp_path: Path):
    """It lowers its priority, limits its memory and looks after each slice of its time before it reads anything."""
    script = (
        "import sys, os, resource, signal, types\n"
        "module = types.ModuleType('lockstep.analysis.capture_summary')\n"
        "def summarise(path, **names):\n"
        "    from exporter.capturing.summarise_worker import SummaryRequest, failed_summary\n"
        "    slice_s = signal.getitimer(signal.ITIMER_PROF)[1]\n"
        "    text = f'{os.nice(0)} {resource.getrlimit(resource.RLIMIT_AS)[0]} {slice_s:.3f}'\n"
        "    return failed_summary(SummaryRequest(str(path), **names), text)\n"
        "module.summarise = summarise\n"
        "sys.modules['lockstep.analysis.capture_summary'] = module\n"
        "from exporter.capturing.summarise_worker import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    job = write_trace(root / "run", b"x")
    limits = {"summarise_memory_bytes": 1 << 30, "summarise_burst_ratio": ExporterConfig().summarise_burst_ratio}
    (summary,) = await summarise(root, [job], ExporterCounters(), worker=worker(script), **limits)
    assert summary.error == f"{max(os.nice(0), 5)} {1 << 30} 0.008"


async def test_jobs_that_wait_at_the_end_are_answered(root: Path):
    """A summariser that is stopped answers what it did not do, and leaves no process behind."""
    summaries: list = []
    note = root / "pid"
    script = ECHO.format(change=f"open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    summariser = Summariser(
        make_config(root, root),
        counts=ExporterCounters(),
        isolation=FaultIsolation(("trace",)),
        on_summary=summaries.append,
        running_id=lambda _: None,
        worker=worker(script),
    )
    for request in (1, 2):
        summariser.submit(write_trace(root / "run", b"x", request=request))
    task = asyncio.create_task(summariser.run())
    await until(lambda: note.exists() and note.read_text())
    task.cancel()
    await asyncio.wait([task])
    assert [(summary.request_id, "stopped" in summary.error) for summary in summaries] == [(1, True), (2, True)]
    await until(lambda: is_gone(int(note.read_text())))


async def test_too_many_jobs_are_answered_at_once(root: Path):
    """A queue that is full answers instead of growing."""
    summaries: list = []
    summariser = Summariser(
        make_config(root, root),
        counts=ExporterCounters(),
        isolation=FaultIsolation(("trace",)),
        on_summary=summaries.append,
        running_id=lambda _: None,
    )
    for request in range(300):
        summariser.submit(TraceJob("run", root / "run", 0, request, 1))
    assert [summary.request_id for summary in summaries] == list(range(256, 300))


async def test_old_traces_are_deleted_behind_the_summary(root: Path):
    """Traces stay within their bytes per run; those of the running capture are left."""
    jobs = [write_trace(root / "run", b"x" * 1000, request=request) for request in (1, 2, 3)]
    quiet = worker(ECHO.format(change="pass"))
    await summarise(root, jobs, ExporterCounters(), worker=quiet, trace_keep_bytes=1500, running_id=lambda _: 2)
    assert [path.name for path in sorted(traces_directory(root / "run").iterdir())] == ["2-1.json"]


async def test_a_surprise_while_summarising_is_answered_like_any_failure(root: Path, monkeypatch):
    """The task goes on, and the job has its one summary."""
    jobs = [write_trace(root / "run", b"x", request=request) for request in (1, 2)]
    original = Summariser._work

    async def raising(self: Summariser, job: TraceJob, path: Path):
        if job.request_id == 1:
            raise OverflowError("a surprise")
        return await original(self, job, path)

    monkeypatch.setattr(Summariser, "_work", raising)
    quiet = worker(ECHO.format(change="pass"))
    first, second = await summarise(root, jobs, counts := ExporterCounters(), worker=quiet)
    assert (first.request_id, first.error) == (1, "the exporter failed to summarise the trace, its log has the reason")
    assert (second.request_id, second.error) == (2, "")
    assert counts.rejected["trace"] == 1
