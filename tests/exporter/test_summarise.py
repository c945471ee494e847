import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.counts import Counts
from exporter.host_watch import HostWatch
from exporter.summarise import Summariser, TraceJob
from lockstep.contracts.messages import HostSpan
from tests.exporter.conftest import make_config, until
from tests.exporter.host_watch.looks import interval, look

ECHO = """
import sys
from lockstep.contracts.codec import encode
from lockstep.contracts.messages import TraceSummary
path, run, node, rank, request, steps, memory = sys.argv[1:]
rank, request, steps = int(rank), int(request), int(steps)
{change}
sys.stdout.buffer.write(encode(TraceSummary(run=run, node=node, rank=rank, request_id=request, window_ns=1, steps=steps,
    trace_bytes=len(open(path, "rb").read()), event_count=0, tree=[])))
"""


def worker(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", script)


def write_trace(directory: Path, content: bytes, request: int = 5, rank: int = 1) -> TraceJob:
    path = directory / "traces" / f"{request}-{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return TraceJob("run", directory, rank, request, 2)


async def summarise(root: Path, jobs: list[TraceJob], counts: Counts, **values: Any) -> list:
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
        make_config(root, root, **values), counts=counts, on_summary=take, running_id=running_id, **command
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
    (summary,) = await summarise(root, [job], counts := Counts(), worker=worker(ECHO.format(change="")))
    assert (summary.run, summary.node, summary.rank, summary.request_id) == ("run", "node-1", 1, 5)
    assert (summary.trace_bytes, summary.steps, summary.error) == (123, 2, "")
    assert counts.rejected["trace"] == 0


async def test_what_the_node_counted_goes_with_the_summary(root: Path):
    """Of the rank, in the looks around the span of the answer, with a good summary and with a failed one alike."""
    watch = HostWatch(list)
    watch.take(look(0))
    watch.take(look(1, interval(0, 1, run_queue_wait_ns=3)))
    jobs = [replace(write_trace(root / "run", b"x", request=request, rank=0), span_ns=(10, 20)) for request in (1, 2)]
    (root / "run" / "traces" / "2-0.json").unlink()
    echo = worker(ECHO.format(change=""))
    good, failed = await summarise(root, jobs, Counts(), worker=echo, host_watch=watch)
    assert (good.error, bool(failed.error)) == ("", True)
    assert good.host == failed.host == HostSpan(span_ns=10**9, run_queue_wait_ns=3)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise SystemExit('no memory left')", "no memory left"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "-11"),
        ("print('not a message')", "message"),
        ("print('x' * 10_000_000)", "message|no end"),
        ("import time; time.sleep(60)", "within 2 s"),
        (ECHO.format(change="rank = 9"), "rank, request"),
        (ECHO.format(change="run = 'other'"), "other"),
    ],
)
async def test_a_worker_that_fails_gives_a_summary_with_the_error(root: Path, script: str, reason: str):
    """Whatever becomes of the worker, the asker gets one summary that says why there is none, and it is counted."""
    job = write_trace(root / "run", b"x")
    (summary,) = await summarise(root, [job], counts := Counts(), worker=worker(script), summarise_seconds=2.0)
    assert summary.tree == []
    assert any(part in summary.error for part in reason.split("|"))
    assert (summary.run, summary.rank, summary.request_id) == ("run", 1, 5)
    assert counts.rejected["trace"] == 1


async def test_a_trace_that_is_not_there_is_an_error_without_a_worker(root: Path):
    """A rank that says done without a trace is answered by the supervisor."""
    job = TraceJob("run", root / "run", 1, 5, 2)
    (summary,) = await summarise(root, [job], counts := Counts(), worker=("/nowhere/at/all",))
    assert "5-1.json" in summary.error
    assert counts.rejected["trace"] == 1


async def test_the_real_worker_refuses_what_is_no_trace(root: Path):
    """A hostile file costs one process and gives the reason."""
    jobs = [
        write_trace(root / "run", b"this is no trace", request=1),
        write_trace(root / "run", b"[" * 100_000, request=2),
        write_trace(root / "run", b"", request=3),
    ]
    summaries = await summarise(root, jobs, counts := Counts())
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
    (summary,) = await summarise(root, [job], counts := Counts())
    assert summary.error == ""
    assert "aten::mm" in {node.name for node in summary.tree}
    assert counts.rejected["trace"] == 0


async def test_the_worker_stands_behind_training(root: Path, tmp_path: Path):
    """The worker lowers its priority and limits its memory before it reads anything."""
    script = (
        "import sys, os, resource, types\n"
        "module = types.ModuleType('lockstep.analysis.capture_summary')\n"
        "def summarise(path, **names):\n"
        "    from exporter.summarise_worker import failed_summary\n"
        "    text = f'{os.nice(0)} {resource.getrlimit(resource.RLIMIT_AS)[0]}'\n"
        "    return failed_summary(names['run'], names['node'], names['rank'], names['request_id'], text)\n"
        "module.summarise = summarise\n"
        "sys.modules['lockstep.analysis.capture_summary'] = module\n"
        "from exporter.summarise_worker import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    job = write_trace(root / "run", b"x")
    (summary,) = await summarise(root, [job], Counts(), worker=worker(script), summarise_memory_bytes=1 << 30)
    assert summary.error == f"19 {1 << 30}"


async def test_jobs_that_wait_at_the_end_are_answered(root: Path):
    """A summariser that is stopped answers what it did not do, and leaves no process behind."""
    summaries: list = []
    note = root / "pid"
    script = f"import os, pathlib, time; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(60)"
    summariser = Summariser(
        make_config(root, root),
        counts=Counts(),
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
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


async def test_too_many_jobs_are_answered_at_once(root: Path):
    """A queue that is full answers instead of growing."""
    summaries: list = []
    summariser = Summariser(
        make_config(root, root), counts=Counts(), on_summary=summaries.append, running_id=lambda _: None
    )
    for request in range(300):
        summariser.submit(TraceJob("run", root / "run", 0, request, 1))
    assert [summary.request_id for summary in summaries] == list(range(256, 300))


async def test_old_traces_are_deleted_behind_the_summary(root: Path):
    """Traces stay within their bytes per run; those of the running capture are left."""
    jobs = [write_trace(root / "run", b"x" * 1000, request=request) for request in (1, 2, 3)]
    quiet = worker(ECHO.format(change=""))
    await summarise(root, jobs, Counts(), worker=quiet, trace_keep_bytes=1500, running_id=lambda _: 2)
    assert [path.name for path in sorted((root / "run" / "traces").iterdir())] == ["2-1.json"]
