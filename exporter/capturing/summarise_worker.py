"""The process that reads traces: `python -P -m exporter.capturing.summarise_worker MEMORY BUSY_RATIO`.

It stands at a low priority beside the training it describes, within MEMORY bytes of address space. What summaries
import takes most of the processor time of a small one, so it is imported once, and each trace is read by a fork, whose
death costs one summary. A job is a line of standard input, a JSON list (`Job`). Its answer is a JSON list, exit status,
number of bytes and last complaint, and behind it the summary as on the bus. A trace that is none gives one with the
error.

On a host whose cores are all busy it takes BUSY_RATIO of one; what nobody wants it takes whole. A priority alone
does that beside a rank of the worker's own control group and session only: another group gets half a core and more,
however low its processes stand. There the worker looks, every few milliseconds of its own, whether it had to wait for a
processor, and then pauses until it has had no more than its share.
"""

import atexit
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from lockstep.contracts.codec import encode
from lockstep.contracts.errors import LocalError, MalformedError
from lockstep.contracts.limits import SUMMARY_WIRE_MAX_BYTES
from lockstep.contracts.messages import TraceSummary

BUSY_RATIO = 0.02
"""Of a core that others want: ranks that are slower by 2.5 % and more are what detectors look for."""
SLICE_CPU_SECONDS = 0.008
"""Of the worker's own, between two looks: what one step of a rank may lose at once. Two ticks of a kernel's clock."""
_WAITED_RATIO = 0.1  # of a slice's time: less is a wake-up or an interrupt, not somebody who wants the core
_PAUSE_MAX_S = 5.0
_NICENESS_MAX, _NICENESS_FACTOR, _RATIO_MIN = 19, 1.25, 1e-3
_NS = 1e9
_ERROR_CHARS = 1024
_COMPLAINT_MAX_BYTES = 4 << 10
_COMPLAINT_CHARS = 500
# One thread per library: the worker must not spread over cores that training uses.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Job(NamedTuple):
    """A trace to summarise; without a path, only what every trace needs is made ready."""

    path: str
    run: str
    node: str
    rank: int
    request_id: int
    steps: int
    pid: int = 0
    """The rank's process, 0 where it is not known."""


def main(arguments: list[str]) -> int:
    """Summarise traces until standard input ends."""
    memory_bytes, busy_ratio = int(arguments[0]), float(arguments[1])
    os.environ.update(_ONE_THREAD)
    niceness = max(niceness_of(busy_ratio), os.getpriority(os.PRIO_PROCESS, 0))  # a priority may never rise
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))

    def prepare() -> None:
        import_module("lockstep.analysis.capture_summary")

    def work(job: Job) -> bytes:
        # Behind the limits, so that they hold for what the import takes, too.
        from lockstep.analysis.capture_summary import summarise  # noqa: PLC0415

        path, run, node, rank, request_id, steps, _ = job
        try:
            return encode(summarise(Path(path), run=run, node=node, rank=rank, request_id=request_id, steps=steps))
        except (MalformedError, LocalError) as error:
            reason = str(error)
        except MemoryError:
            reason = f"trace {job.path}: got more than {memory_bytes} bytes to work on, expected less"
        return encode(failed_summary(job, reason))

    return serve(work, prepare, busy_ratio)


def niceness_of(busy_ratio: float) -> int:
    """Return the niceness that leaves so much of a core beside one busy process: a fifth less for each 1 (kernel)."""
    least = max(busy_ratio, _RATIO_MIN)
    return min(_NICENESS_MAX, max(0, round(math.log((1 - least) / least, _NICENESS_FACTOR)))) if least < 1 else 0


def serve(
    work: Callable[[Job], bytes], prepare: Callable[[], None] = lambda: None, busy_ratio: float = BUSY_RATIO
) -> int:
    """Answer jobs from standard input one after the other, each in a process of its own; `prepare` before the first."""
    atexit.register(signal.setitimer, signal.ITIMER_PROF, 0.0)  # handlers end before the interpreter does
    for line in sys.stdin.buffer:
        job = Job(*json.loads(line))
        pause_where_wanted(busy_ratio, is_on=not shares_group(job.pid))
        prepare()  # at the pace of the first trace
        output, complaints = os.memfd_create("summary"), os.memfd_create("complaints")
        child = os.fork()
        if child == 0:
            os.dup2(output, sys.stdout.fileno())
            os.dup2(complaints, sys.stderr.fileno())
            pause_where_wanted(busy_ratio, is_on=not shares_group(job.pid))  # timers are not inherited
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


def shares_group(pid: int, root: Path = Path("/proc")) -> bool:
    """Whether the priority of this process counts beside process `pid`: the kernel shares processors by groups first.

    Groups are those of control groups, and of sessions where the kernel makes groups of them.
    """
    pair = (root / "self", root / str(pid))
    try:
        ours, theirs = ((folder / "cgroup").read_bytes() for folder in pair)
        if ours != theirs:
            return False
        if not groups_by_sessions(root):
            return True
        # The name comes before the niceness; sessions older than the grouping have none, and one group in common.
        ours, theirs = ((folder / "autogroup").read_bytes().partition(b" ")[0] for folder in pair)
    except OSError:
        return False
    return ours == theirs


def groups_by_sessions(root: Path = Path("/proc")) -> bool:
    """Whether the kernel shares processors between sessions first (sched(7), autogroup)."""
    try:
        return (root / "sys/kernel/sched_autogroup_enabled").read_bytes().strip() != b"0"
    except OSError:
        return False  # a kernel without it


def pause_where_wanted(busy_ratio: float, *, is_on: bool) -> None:
    """Look after each slice from now on whether somebody wants the processor, or no longer."""
    governor = Governor(busy_ratio)
    signal.signal(signal.SIGPROF, lambda *_: governor.look())
    slice_s = SLICE_CPU_SECONDS if is_on else 0.0
    signal.setitimer(signal.ITIMER_PROF, slice_s, slice_s)


class Governor:
    """Pauses a process that others wait for until it has had `busy_ratio` of the time since it last looked."""

    def __init__(
        self,
        busy_ratio: float = BUSY_RATIO,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], "Spent"] | None = None,
    ) -> None:
        self._busy_ratio = busy_ratio
        self._sleep = sleep
        self._clock = clock or spent
        self._last = self._clock()

    def look(self) -> None:
        """To be called after each slice; sleeps if it must."""
        now = self._clock()
        cpu_s, waited_s, wall_s = (after - before for after, before in zip(now, self._last, strict=True))
        if waited_s > _WAITED_RATIO * wall_s:
            pause_s = cpu_s / self._busy_ratio - wall_s
            if pause_s > 0:
                self._sleep(min(pause_s, _PAUSE_MAX_S))
        self._last = self._clock()


class Spent(NamedTuple):
    """What a process has had of a processor, how long it waited for one, and the time; seconds."""

    cpu_s: float
    waited_s: float
    clock_s: float


def spent() -> Spent:
    """Return it of this process' only thread; where the kernel does not count waits, all but computing is one."""
    clock_s = time.monotonic()
    try:
        cpu_ns, waited_ns, *_ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    except (OSError, ValueError):
        cpu_s = time.process_time()
        return Spent(cpu_s, clock_s - cpu_s, clock_s)
    return Spent(cpu_ns / _NS, waited_ns / _NS, clock_s)


def failed_summary(job: Job, error: str, *, trace_bytes: int = 0) -> TraceSummary:
    """Return a summary that says why there is none, with what is known all the same."""
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
