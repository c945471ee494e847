"""The process that reads traces: `python -P -m exporter.capturing.summarise_worker MEMORY BUSY BURST SECONDS`.

It runs at low priority on the nodes where training runs, within MEMORY bytes of address space. Importing the analysis
takes most of the CPU time of a small summary, so it is imported once and each trace is read by a fork; if a fork dies,
one summary is lost. A request is a line of standard input, a JSON list (`SummaryRequest`). Its answer is a JSON list of
exit status, number of bytes and last error line, followed by the summary as it goes on the bus. An unreadable trace
yields a summary with the error. `worker_share.Share(BUSY, BURST, SECONDS)` limits the CPU time that the process takes
from others.
"""

import atexit
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from exporter.capturing.worker_share import BurstBudget, CpuShare, govern, niceness_of
from lockstep.contracts.codec import encode
from lockstep.contracts.errors import LocalError, MalformedError
from lockstep.contracts.limits import SUMMARY_WIRE_MAX_BYTES
from lockstep.contracts.messages import TraceSummary

_ERROR_CHARS = 1024
_COMPLAINT_MAX_BYTES = 4 << 10
_COMPLAINT_CHARS = 500
# One thread per library: the worker must not spread over cores that training uses.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class SummaryRequest(NamedTuple):
    """A trace to summarise; an empty path only prepares the worker."""

    path: str
    run: str
    node: str
    rank: int
    request_id: int
    steps: int


def main(arguments: list[str]) -> int:
    """Summarise traces until end of file on standard input."""
    memory_bytes, share = int(arguments[0]), CpuShare(*map(float, arguments[1:]))
    os.environ.update(_ONE_THREAD)
    niceness = max(niceness_of(share.burst_ratio), os.getpriority(os.PRIO_PROCESS, 0))  # niceness may only grow
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))

    def prepare() -> None:
        import_module("lockstep.analysis.capture_summary")

    def work(job: SummaryRequest) -> bytes:
        # Imported after the limits are set, so that they cover the import too.
        from lockstep.analysis.capture_summary import summarise  # noqa: PLC0415

        path, run, node, rank, request_id, steps = job
        try:
            return encode(summarise(Path(path), run=run, node=node, rank=rank, request_id=request_id, steps=steps))
        except (MalformedError, LocalError) as error:
            reason = str(error)
        except MemoryError:
            reason = f"trace {job.path}: got more than {memory_bytes} bytes to work on, expected less"
        return encode(failed_summary(job, reason))

    return serve(work, prepare, share)


def serve(
    work: Callable[[SummaryRequest], bytes], prepare: Callable[[], None] = lambda: None, share: CpuShare | None = None
) -> int:
    """Answer jobs from standard input in order, each in its own process; call `prepare` before the first one."""
    share = share or CpuShare()
    budget = BurstBudget(share)
    atexit.register(signal.setitimer, signal.ITIMER_PROF, 0.0)  # handlers go away before the interpreter does
    for line in sys.stdin.buffer:
        job = SummaryRequest(*json.loads(line))
        budget.refill()
        govern(share, budget)
        prepare()  # throttled like a trace
        output, complaints = os.memfd_create("summary"), os.memfd_create("complaints")
        child = os.fork()
        if child == 0:
            os.dup2(output, sys.stdout.fileno())
            os.dup2(complaints, sys.stderr.fileno())
            govern(share, budget)
            sys.stdout.buffer.write(work(job) if job.path else b"")
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        data = os.pread(output, SUMMARY_WIRE_MAX_BYTES + 1, 0)
        size = os.fstat(complaints).st_size
        complaint = os.pread(complaints, _COMPLAINT_MAX_BYTES, max(0, size - _COMPLAINT_MAX_BYTES))
        os.close(output)
        os.close(complaints)
        last = complaint.decode(errors="replace").strip().rpartition("\n")[2][:_COMPLAINT_CHARS]
        sys.stdout.buffer.write(
            json.dumps([os.waitstatus_to_exitcode(status), len(data), last]).encode() + b"\n" + data
        )
        sys.stdout.flush()
    return 0


def failed_summary(job: SummaryRequest, error: str, *, trace_bytes: int = 0) -> TraceSummary:
    """Return a summary that states why there is none, along with what is known."""
    return TraceSummary(
        run=job.run,
        node=job.node,
        rank=job.rank,
        request_id=job.request_id,
        window_ns=0,
        steps=job.steps,
        trace_bytes=trace_bytes,
        event_count=0,
        tree=[],
        error=error[:_ERROR_CHARS],
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
