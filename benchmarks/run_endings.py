"""What becomes of runs that end, or stop, in each way, and who is paged when: the table of docs/endings.md.

    python -m benchmarks.run_endings [--way TEXT]

Real torchrun of two ranks and real Slurm (tests/end_to_end/test_run_endings.py has the ways), exporter, broker,
coordinator, Prometheus with the default rules, Alertmanager and its webhook. The OOM kill needs a control group of its
own, v1 or v2; where this machine makes none, its row reads "not run", and why. Three things differ from the defaults:
the page is for two ranks and more, scrapes and evaluations come every 5 s, and Alertmanager does not wait to group.
Exit code 1 when a row is not as it should be, or anything else is sent. Ten minutes on a quiet machine; on one whose
cores are taken for tens of seconds the exporter misses how processes ended, and scrapes their deadline.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alerts.policy import AlertPolicy
from lockstep.cli.markdown import markdown_table
from tests.agent.launchers.slurm import slurm_cluster
from tests.end_to_end.ending_job import BAD_RANK
from tests.end_to_end.test_run_endings import (
    LIVE_S,
    MEMORY_BYTES,
    OUT_OF_MEMORY,
    ROWS,
    Job,
    Row,
    _over,
    scancel,
)
from tests.support.cgroups import UNAVAILABLE, memory_cgroup
from tests.support.servers import PATIENCE_S
from tests.support.stack import Stack, fault_begin, full_stack

POLICY = AlertPolicy(page_devices_lost=2)
AT_ONCE = 3  # jobs
INTERVAL = "5s"
QUIET_S = POLICY.crashed_for_seconds + 10
"""After the last row: whatever would page for an end has done so by then."""
COLUMNS = ("the training ends by", "state", "incident", "known after", "page", "sent after", "resolved")
CRASHED, HUNG = "LockstepRunCrashed", "LockstepRunHung"
_Act = Callable[[Job], object]


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to end: what the job does itself, what is done to it, and what must come of it.

    `root_cause` and `alert` are empty where none is to be; `repair` is what ends a hang, `resolved_by` what resolves
    the page. `obstacle` is why this machine cannot run it, empty where it can.
    """

    name: str
    how: str
    act: _Act
    state: str
    root_cause: str = ""
    alert: str = ""
    repair: _Act | None = None
    resolved_by: str = "the next attempt trains"
    prefix: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    obstacle: str = ""


@dataclass(kw_only=True)
class Found:
    """What came of it; seconds are since the last process ended, or since the fault where processes live."""

    way: Way
    run: str
    state: str = ""
    incidents: list[dict[str, Any]] = field(default_factory=list)
    known_s: float | None = None
    sent_s: float | None = None
    resolved_s: float | None = None

    @property
    def is_right(self) -> bool:
        """Whether state, incident, page and its end are those of the way."""
        kind = {CRASHED: "crash", HUNG: "hang"}.get(self.way.alert)
        expected = [(kind, [BAD_RANK], self.way.root_cause)] if kind else []
        found = [(each["kind"], each["ranks"], each["root_cause"]) for each in self.incidents]
        paged = self.sent_s is not None and self.resolved_s is not None
        return self.state == self.way.state and found == expected and paged is bool(self.way.alert)

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table, in the order of `COLUMNS`."""
        incident = "; ".join(map(_incident, self.incidents)) or "none"
        if self.way.obstacle:
            return self.way.name, f"not run: {self.way.obstacle}", "", "", "", "", ""
        resolved = f"{_seconds(self.resolved_s)} after {self.way.resolved_by}" if self.way.alert else ""
        page = self.way.alert or "none"
        known, sent = _seconds(self.known_s), _seconds(self.sent_s)
        return self.way.name, self.state, incident, known, page, sent, resolved


def ways(group: Path | None) -> list[Way]:
    """Return every way: those of the tests, SIGSTOP, and data that never come; `group` limits the memory of one."""
    memory = _way(OUT_OF_MEMORY)
    return [
        *map(_way, ROWS),
        replace(memory, environment={"MEMORY_CGROUP": str(group)}) if group else replace(memory, obstacle=UNAVAILABLE),
        Way(
            name="`scancel` of a Slurm job", how="train", act=lambda _: None, state="cancelled",
            prefix=("srun", "--ntasks", "1", "--quiet"),
        ),
        Way(
            name="SIGSTOP of one rank", how="train", act=lambda job: job.kill(signal.SIGSTOP, BAD_RANK), state="hung",
            alert=HUNG, repair=lambda job: job.kill(signal.SIGCONT, BAD_RANK), resolved_by="SIGCONT",
        ),
        Way(
            name="no end: one rank reads from a connection that never answers", how="hang", act=lambda _: None,
            state="hung", alert=HUNG, resolved_by="the job is ended",
        ),
    ]  # fmt: skip


def _way(row: Row) -> Way:
    alert = CRASHED if row.state == "crashed" else ""
    return Way(name=row.way, how=row.how, act=row.act, state=row.state, root_cause=row.culprit, alert=alert)


async def observed(way: Way, number: int, stack: Stack, directory: Path, cluster: dict[str, str]) -> Found:
    """Let one job end, and return what came of it."""
    found = Found(way=way, run=f"job-{number}")
    if way.how == "hang":
        await _observe_stuck(found, stack)
        return found
    environment = {**way.environment, **(cluster if way.prefix else {})}
    job = Job(found.run, way.how, directory, stack.shared, environment, way.prefix)
    async with _ended(job):
        await job.start()
        await job.trains()
        await _reached(lambda: stack.run(found.run), PATIENCE_S)
        if way.prefix:
            await scancel(cluster)
        way.act(job)
        if way.state in ("healthy", "hung"):
            since_s = time.time()
        else:
            await _reached(lambda: _over(job), PATIENCE_S)
            since_s = time.time()
        await _observe(found, stack, since_s)
        if way.repair is not None:
            way.repair(job)
            await _observe_resolved(found, stack, time.time())
    if way.alert and way.repair is None:
        again = Job(found.run, "train", directory / "again", stack.shared)
        async with _ended(again):
            await again.start()
            await again.trains()
            await _observe_resolved(found, stack, time.time())
    return found


async def _observe_stuck(found: Found, stack: Stack) -> None:
    """Train as the demonstration does, with one rank that waits for data forever."""
    with contextlib.ExitStack() as running:
        log = await asyncio.to_thread(running.enter_context, stack.job(found.run, "hang", BAD_RANK))
        await _reached(lambda: fault_begin(log), PATIENCE_S)
        began = fault_begin(log)
        if began is None:
            raise TimeoutError("the fault did not begin")
        await _observe(found, stack, began[1])
        since_s = time.time()
        await asyncio.to_thread(running.close)
        await _observe_resolved(found, stack, since_s)


async def _observe(found: Found, stack: Stack, since_s: float) -> None:
    """Note state and incident, and the page where there is to be one."""
    if found.way.state == "healthy":
        await asyncio.sleep(LIVE_S)
        await _reached(lambda: _note_state(found, stack), PATIENCE_S)
    else:
        await _reached(lambda: _note_state(found, stack) == found.way.state, PATIENCE_S)
        found.known_s = time.time() - since_s
    if found.way.alert:
        await _reached(lambda: _incidents(stack, found.run), PATIENCE_S)
    found.incidents = await asyncio.to_thread(_incidents, stack, found.run)
    if found.way.alert:
        await _reached(lambda: _notified(stack, found, "firing"), PATIENCE_S)
        found.sent_s = _first(_notified(stack, found, "firing"), since_s)


async def _observe_resolved(found: Found, stack: Stack, since_s: float) -> None:
    await _reached(lambda: _notified(stack, found, "resolved"), PATIENCE_S)
    found.resolved_s = _first(_notified(stack, found, "resolved"), since_s)


def _incidents(stack: Stack, run: str) -> list[dict[str, Any]]:
    return [each for each in stack.incidents(run) if each["kind"] in ("crash", "hang")]


def _notified(stack: Stack, found: Found, status: str) -> list[float]:
    """Return when the alert of this way was delivered with this status, in Unix time."""
    alerts = stack.pager.alerts(alertname=found.way.alert, run=found.run)
    return [unix_s for unix_s, alert in alerts if alert["status"] == status]


def _first(times_s: list[float], since_s: float) -> float | None:
    return times_s[0] - since_s if times_s else None


def _note_state(found: Found, stack: Stack) -> str:
    """Note the run's state, and return it; a coordinator that did not answer in time is asked again."""
    run = stack.run(found.run)
    if run is not None:
        found.state = str(run["state"])
    return "" if run is None else found.state


def _incident(incident: dict[str, Any]) -> str:
    where = f" in {incident['function'].rpartition(' ')[2]}" if incident["function"] else ""
    return f"{incident['kind']}: rank {incident['ranks'][0]}, {incident['root_cause'] or incident['cause']}{where}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


async def _reached(condition: Callable[[], Any], seconds: float) -> None:
    """Wait until a condition, which may block, is true, or until so many seconds are over: the row then shows it."""
    end = time.monotonic() + seconds
    while not await asyncio.to_thread(condition) and time.monotonic() < end:  # noqa: ASYNC110  (other processes set it)
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def _ended(job: Job) -> AsyncIterator[None]:
    """End a job at the end, and remove its rings: a node has room for four runs."""
    job.directory.mkdir(exist_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            await job.end()


async def observed_all(chosen: list[Way], stack: Stack, directory: Path, cluster: dict[str, str]) -> list[Found]:
    """Return what came of each of these ways, several jobs at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, way: Way) -> Found:
        if way.obstacle:
            return Found(way=way, run="")
        async with turns:
            try:
                return await observed(way, number, stack, directory, cluster)
            except (AssertionError, TimeoutError) as error:  # it never trained: the other rows are of use
                return Found(way=way, run=f"job-{number}", state=f"not seen: {error}")

    found = await asyncio.gather(*(one(number, way) for number, way in enumerate(chosen)))
    await asyncio.sleep(QUIET_S)
    return found


def unexpected(stack: Stack, found: list[Found]) -> list[str]:
    """Return what was delivered that is not the page of its run, once firing and once resolved."""
    sent = sorted(
        (alert["labels"].get("run", ""), alert["labels"]["alertname"], alert["status"])
        for delivery in stack.pager.deliveries
        for alert in delivery.body["alerts"]
    )
    expected = sorted((e.run, e.way.alert, s) for e in found if e.run and e.way.alert for s in ("firing", "resolved"))
    wrong = [each for each in dict.fromkeys(sent) if each not in expected]
    wrong += [each for each in expected if sent.count(each) != 1]
    return [
        f"{sent.count(each)} times {name} {status} of {run}: {_history(stack, run)}"
        for each in wrong
        for run, name, status in [each]
    ]


def _history(stack: Stack, run: str) -> str:
    """Return all notifications and incidents of a run, in the order of their times."""
    sent = [
        (unix_s, f"{alert['labels']['alertname']} {alert['status']}") for unix_s, alert in stack.pager.alerts(run=run)
    ]
    sent += [
        (
            each["opened_unix_ns"] * 1e-9,
            f"{each['kind']} of ranks {each['ranks']} opened: {'; '.join(each['evidence'])}",
        )
        for each in stack.incidents(run)
    ]
    return ", then ".join(f"{datetime.fromtimestamp(unix_s, UTC):%H:%M:%S} {text}" for unix_s, text in sorted(sent))


def main() -> int:
    """End every run and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run_endings", description=__doc__.splitlines()[0])
    parser.add_argument("--way", default="", help="only the ways whose name holds this")
    text = parser.parse_args().way
    with (
        tempfile.TemporaryDirectory() as directory,
        tempfile.TemporaryDirectory(prefix="slurm") as slurm,
        memory_cgroup(MEMORY_BYTES) as group,
        slurm_cluster(Path(slurm)) as cluster,
        full_stack(Path(directory), policy=POLICY, interval=INTERVAL) as stack,
    ):
        chosen = [way for way in ways(group) if text in way.name]
        found = asyncio.run(observed_all(chosen, stack, Path(directory), dict(cluster)))
        more = unexpected(stack, found)
    sys.stdout.write(markdown_table(COLUMNS, [each.cells() for each in found]))
    run = [each for each in found if not each.way.obstacle]
    wrong = [each.way.name for each in run if not each.is_right]
    sys.stdout.write("".join(f"not as it should be: {each}\n" for each in (*wrong, *more)))
    sys.stdout.write(
        f"{len(run) - len(wrong)} of {len(run)} rows as they should be, {len(found) - len(run)} not run, "
        f"{len(more)} other notifications\n"
    )
    return 1 if wrong or more else 0


if __name__ == "__main__":
    sys.exit(main())
