"""Answers stack requests one at a time, on a worker thread, because a process may take a while to write its stacks.

Several coordinators may send the same request, so each is answered once, by its id. A request is refused for all its
ranks if its term is over, if its id belongs to a different request, or if it follows the last one too soon.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from exporter.capturing.flight_dumps import FileVersion, FlightDump, issued_bytes, wait_written
from exporter.capturing.py_spy import read_by_py_spy
from exporter.capturing.stack_dumps import DumpTarget, dump_stacks, open_target
from exporter.capturing.stack_request_pipe import RequestPipes
from exporter.capturing.stack_text import Thread, parse_stacks, thread_stacks
from exporter.counts import ExporterCounters
from exporter.reading.run_state import ENDED, RankState, RunState
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import RankStacks, RecordedCollective, StackRequest
from lockstep.contracts.stacks import stacks_path
from lockstep.serving.fault_isolation import FaultIsolation

_log = logging.getLogger(__name__)

MIN_INTERVAL_NS = 3_000_000_000
"""Least time between two requests of one run: an incident needs one, and a forged one costs each process a millisecond.
"""
_REQUESTS_MAX = 64  # requests remembered
_WAITING_MAX = 4  # one for each run of a node
_REASON_MAX = 500


class StackRequests:
    """A queue of requests and the task that processes it; runs on the event loop.

    `on_stacks` receives exactly one message for each rank of an admitted request. `check_term` returns why a term is
    not the current leader's, empty if it is. `run_of` returns the run of a name, or None if this node does not know it.
    """

    def __init__(
        self,
        node: str,
        *,
        counts: ExporterCounters,
        isolation: FaultIsolation,
        check_term: Callable[[int], str],
        run_of: Callable[[str], RunState | None],
        on_stacks: Callable[[RankStacks], None],
    ) -> None:
        self._node = node
        self._counts = counts
        self._isolation = isolation
        self._check_term = check_term
        self._run_of = run_of
        self._on_stacks = on_stacks
        self._known: dict[tuple[str, int], StackRequest] = {}
        self._due_ns: dict[str, int] = {}
        self._waiting: asyncio.Queue[StackRequest] = asyncio.Queue(_WAITING_MAX)
        self._pipes = RequestPipes()

    def submit(self, request: StackRequest, now_ns: int) -> None:
        """Queue a request, or refuse it; `now_ns` is CLOCK_MONOTONIC."""
        key, content = (request.run, request.request_id), replace(request, term=0)
        if self._known.get(key) == content:
            return
        reason = self._refusal(request, now_ns)
        if reason:
            self._counts.reject("request", f"stacks, request {request.request_id}: {reason}")
            self._refuse(request, reason)
            return
        self._known[key] = content
        if len(self._known) > _REQUESTS_MAX:
            del self._known[next(iter(self._known))]
        self._due_ns = {run: due for run, due in self._due_ns.items() if due > now_ns}
        self._due_ns[request.run] = now_ns + MIN_INTERVAL_NS
        self._waiting.put_nowait(request)

    def _refusal(self, request: StackRequest, now_ns: int) -> str:
        if (request.run, request.request_id) in self._known:
            return f"request {request.request_id} of run {request.run!r} had different content"
        if reason := self._check_term(request.term):
            return reason
        if now_ns < self._due_ns.get(request.run, 0):
            return f"the last request was less than {MIN_INTERVAL_NS / 1e9:g} s ago"
        return "too many requests wait" if self._waiting.full() else ""

    async def run(self) -> None:
        """Process the queue until cancelled."""
        try:
            await self._work()
        finally:
            self._pipes.close()

    def forget(self, directory: Path) -> None:
        """Release what is held for a run that is gone."""
        self._pipes.drop(directory)

    async def _work(self) -> None:
        while True:
            request = await self._waiting.get()
            with self._isolation.guard("message", request.run, asyncio.get_running_loop().time()):
                await self._answer(request)
                continue
            self._refuse(request, "the exporter failed to read the stacks, its log has the reason")

    async def _answer(self, request: StackRequest) -> None:
        run = self._run_of(request.run)
        if run is None:
            self._refuse(request, f"run {request.run!r} is unknown on node {self._node!r}")
            return
        targets: list[DumpTarget] = []
        threads: dict[int, int] = {}
        dumps: dict[int, FlightDump] = {}
        found: dict[int, bytes | str] = {}
        try:
            for rank in dict.fromkeys(request.ranks):
                try:
                    threads[rank], dumps[rank], target = _open(run, rank)
                    targets.append(target)
                except (MalformedError, OSError) as error:
                    found[rank] = str(error)
        except BaseException:
            _close(targets)
            raise
        ask = partial(self._pipes.signal, run.directory)
        stacks = asyncio.shield(asyncio.to_thread(_dump, targets, ask))
        written, _ = await asyncio.gather(stacks, wait_written(self._request_dumps(dumps)))
        found |= written
        issued = await asyncio.to_thread(self._read_issued, dumps)
        seen = await self._read_others(run, [rank for rank, each in found.items() if isinstance(each, str)])
        unix_ns = time.time_ns()
        for rank in dict.fromkeys(request.ranks):
            message = replace(self._message(request, rank, "", unix_ns), collectives=issued.get(rank, []))
            thread, own = seen.get(rank, (threads.get(rank, 0), found[rank]))
            self._on_stacks(self._stacks(message, own, thread))

    async def _read_others(self, run: RunState, ranks: list[int]) -> dict[int, tuple[int, list[Thread]]]:
        """Return training thread and threads of ranks that wrote no stacks, as far as py-spy can read them."""
        found = await asyncio.gather(*(self._read_other(run, rank) for rank in ranks))
        return {rank: each for rank, each in zip(ranks, found, strict=True) if each is not None}

    async def _read_other(self, run: RunState, rank: int) -> tuple[int, list[Thread]] | None:
        rank_state = _living(run.ranks, rank)
        if rank_state is None or rank_state.ring is None:
            return None
        ring = rank_state.ring
        try:
            pid = ring.holder().pid
            threads = None if pid is None else await read_by_py_spy(pid)
            if not threads or ring.holder().pid != pid:  # another process may have the pid by now
                return None
            return ring.training_thread(), threads
        except (MalformedError, OSError) as error:
            _log.info("run %s, rank %d: %s", run.name, rank, error)
            return None

    def _request_dumps(self, dumps: Mapping[int, FlightDump]) -> dict[FlightDump, FileVersion | None]:
        """Request Flight Recorder dumps; return the former versions of the files of those that accept requests."""
        former = {}
        for dump in dumps.values():
            version = dump.version()
            try:
                if dump.request():
                    former[dump] = version
            except (MalformedError, OSError) as error:
                self._counts.reject("ring", error)
        return former

    def _read_issued(self, dumps: Mapping[int, FlightDump]) -> dict[int, list[RecordedCollective]]:
        """Return the collectives of each rank that has a Flight Recorder dump."""
        found = {}
        for rank, dump in dumps.items():
            try:
                found[rank] = dump.read()
            except (MalformedError, OSError) as error:
                self._counts.reject("ring", error)
        return found

    def _stacks(self, message: RankStacks, found: bytes | str | list[Thread], thread: int) -> RankStacks:
        if isinstance(found, str):
            return replace(message, reason=found[:_REASON_MAX])
        try:
            where = f"run {message.run}, rank {message.rank}"
            threads = found if isinstance(found, list) else parse_stacks(found, where=where)
        except MalformedError as error:
            self._counts.reject("ring", error)
            return replace(message, reason=str(error)[:_REASON_MAX])
        stacks, omitted = thread_stacks(threads, thread, issued_bytes(message.collectives))
        return replace(message, threads=stacks, omitted_frames=omitted)

    def _refuse(self, request: StackRequest, reason: str) -> None:
        unix_ns = time.time_ns()
        for rank in dict.fromkeys(request.ranks):
            self._on_stacks(self._message(request, rank, reason, unix_ns))

    def _message(self, request: StackRequest, rank: int, reason: str, unix_ns: int) -> RankStacks:
        return RankStacks(
            run=request.run,
            node=self._node,
            rank=rank,
            request_id=request.request_id,
            unix_ns=unix_ns,
            threads=[],
            reason=reason[:_REASON_MAX],
        )


def _open(run: RunState, rank: int) -> tuple[int, FlightDump, DumpTarget]:
    """Return a rank's training thread, its Flight Recorder dump, and its process.

    Raises
    ------
    MalformedError, OSError
        The rank is not here, has ended, or cannot be reached.
    """
    rank_state = _living(run.ranks, rank)
    if rank_state is None or rank_state.ring is None:
        got = "none" if rank_state is None else rank_state.state
        raise MalformedError("rank", where=f"run {run.name}", got=got, expected=f"rank {rank}, running here")
    dump = FlightDump(
        rank=rank,
        prefix="" if rank_state.facts is None else rank_state.facts.flight_recorder,
        pipe_prefix="" if rank_state.facts is None else rank_state.facts.flight_recorder_pipe,
        owner_uid=rank_state.ring.owner_uid,
        since_unix_ns=rank_state.ring.header.attempt,
    )
    try:
        target = open_target(stacks_path(run.directory, rank), rank, rank_state.ring)
        return rank_state.ring.training_thread(), dump, target
    except FileNotFoundError:
        facts = rank_state.facts
        got = (facts.stacks if facts is not None else "") or "no pipe: its agent is of another version"
        raise MalformedError("stacks", where=f"rank {rank}", got=got, expected="a pipe that its agent made") from None


def _dump(targets: list[DumpTarget], ask: Callable[[], None]) -> dict[int, bytes | str]:
    """Return what processes wrote; this thread closes their descriptors, even if the caller no longer waits."""
    try:
        return dump_stacks(targets, ask)
    finally:
        _close(targets)


def _close(targets: list[DumpTarget]) -> None:
    for target in targets:
        target.close()


def _living(ranks: Mapping[int, RankState], rank: int) -> RankState | None:
    rank_state = ranks.get(rank)
    return None if rank_state is None or rank_state.state in ENDED else rank_state
