"""The agent of one training process: its states, and what ties hooks, recorder, ring and capture together.

    dormant ──first backward, optimizer step or collective──► recording ──failure──► null
       └────────────── no ring can be made ──► null          │    ▲ └──exit──► finished
                                                             └────┘ a process group shows another rank

Recording, it knows one training thread, which may change: `adopt` says when.

Hooks are in place from the start, but identity is read and the ring appears only when the process is seen to train:
torchrun's own process, compile workers and spawned data workers import torch and inherit RANK too, and must not take
the rank's place; and many launchers set the rank late, or only as an argument of `init_process_group`.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, Any

from lockstep.agent import backend_threads, process_end, unwatched
from lockstep.agent.boundary import Boundary
from lockstep.agent.device import make_timeline
from lockstep.agent.groups import Groups
from lockstep.agent.identity import Identity, make_header, process_group, read_identity
from lockstep.agent.lineage import may_be_rank, note_rank
from lockstep.agent.profiler import Capture
from lockstep.agent.recorder import Recorder
from lockstep.agent.ring import RingWriter
from lockstep.agent.run_claim import claim_run
from lockstep.agent.shared_directory import check_root, trusted_uids
from lockstep.agent.thread_exit import ThreadExit
from lockstep.agent.throughput.facts import collect
from lockstep.contracts.errors import LockstepError
from lockstep.contracts.ring import STATE_FAILED, STATE_FINISHED

if TYPE_CHECKING:
    from lockstep.agent.account import Collective

_LAST_CALLBACKS_MS = 10_000
SETTLING_STEPS = 8
"""Boundaries at which a device is looked for: some jobs touch theirs only after a first step on the host."""


class Agent:
    """One per process. `hooks` are functions that take the agent, put a hook in place and return its removal."""

    def __init__(self, hooks: list[Callable[["Agent"], Callable[[], None]]]) -> None:
        self.boundary = Boundary(self._fail)
        self.recorder = Recorder(self._store, self._at_boundary, self.adopt)
        self._thread_exit = ThreadExit(self.recorder.vacate)
        self.ring: RingWriter | None = None
        self.groups = Groups(self._store_groups, clear=self._clear_issues, at_first_use=self._check_rank)
        self._place = (0, 1)  # rank and world size as the ring has them
        self.capture: Capture | None = None
        self.in_flight: dict[Collective, Any] = {}
        """The futures whose end is still to be told to us on a thread of the backend."""
        self._dormant = True
        self._removals: list[Callable[[], None]] = []
        try:
            for hook in hooks:
                self._removals.append(hook(self))
        except BaseException:
            self.remove()
            raise

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` behind the failure boundary."""
        return self.boundary.guard(function)

    def guard_mark(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Return a function without arguments behind it."""
        return self.boundary.guard_mark(function)

    def adopt(self) -> bool:
        """Whether the calling thread, which trains, is the training thread from now on.

        The first thread that trains wakes the agent. Another one takes its place as long as it has completed no step,
        since a collective or a backward can come from a thread that only sets the job up, and once it has ended.
        Autograd's own threads never do: they work for the thread that called backward.
        """
        if self._dormant:
            return self.wake()
        recorder = self.recorder
        if recorder.in_graph_task() or not recorder.may_change_thread:
            return False
        if self.capture is not None:
            self.capture.disown("the training thread ended during the capture")
        self._thread_exit.watch()
        recorder.change_thread()
        return True

    def wake(self) -> bool:
        """Begin to record if that did not happen yet and can; the calling thread is the training thread then."""
        if not self._dormant or self.recorder.in_graph_task():
            return False
        self._dormant = False
        try:
            return self._begin()
        except BaseException:  # a signal handler of the training raised: the next mark begins again
            self._dormant = True
            raise

    def _begin(self) -> bool:
        group = process_group()
        if not may_be_rank(os.environ, group and group[1]):
            return False
        try:
            ring = self._make_ring(read_identity(os.environ, group))
        except (OSError, LockstepError) as error:
            unwatched.report(error, os.environ)
            return False
        process_end.watch_child_end(self.end)
        self.recorder.begin_attempt(monotonic_ns(), ring.beat, ring.note_issue, ring.set_flags)
        self._thread_exit.watch()
        self.recorder.thread = get_ident()
        return True

    def _make_ring(self, identity: Identity) -> RingWriter:
        trusted = trusted_uids(os.environ)
        check_root(identity.directory.parent, trusted)
        with claim_run(identity, os.environ) as claimed:
            self.ring = ring = RingWriter(claimed.directory, make_header(claimed))
        self.capture = Capture(claimed.directory, claimed.rank, ring.write_answer, trusted)
        self._place = (claimed.rank, claimed.world_size)
        note_rank(os.environ, claimed.world_size)
        return ring

    def _check_rank(self) -> None:
        """Begin again, as another rank, where a new process group shows that this process is not the rank it was.

        So do processes that train before they create their group, and restarts inside a process.
        """
        ring, group = self.ring, process_group()
        if ring is None or group in (None, self._place) or get_ident() != self.recorder.thread:
            return
        identity = read_identity(os.environ, group)
        if (identity.rank, identity.world_size) == self._place:
            return
        self._dormant = True  # a signal handler of the training may raise anywhere below: the next mark begins again
        self.recorder.thread = 0
        self._end_capture()
        self.groups.clear()
        ring.withdraw()
        self.wake()

    @property
    def alive(self) -> bool:
        """Whether the agent records or will once training begins."""
        return self._dormant or self.recorder.thread != 0

    def forked(self) -> None:
        """Make every hook inert in a forked child, whose parent goes on writing.

        A child of a process that does not train yet stays dormant: launchers fork their ranks. One of a process that
        records becomes so again: it is a rank if it trains in a larger world (lineage.py).
        """
        if self.ring is not None and self.recorder.thread != 0:
            self._disable()
            self.groups.clear()
            self._dormant = True
        self.in_flight.clear()  # the threads that would tell are not there

    def _disable(self) -> None:
        self._dormant = False
        self.recorder.thread = 0
        self.ring = self.capture = None

    def end(self, ended_well: bool = True) -> None:  # noqa: FBT001, FBT002  (at exit nothing else is known)
        """Finish and drain, behind the failure boundary; only the first call does anything."""
        self.guard(self.finish)(ended_well)
        self.guard(self.drain)()

    def finish(self, ended_well: bool = True) -> None:  # noqa: FBT001, FBT002  (as above)
        """Mark the rank as finished; one that dies of an exception is not, and its lock shows that it is gone."""
        if self.ring is None or self.recorder.thread == 0:
            return
        self.recorder.finish()
        self._end_capture()
        if ended_well and not hasattr(sys, "last_type"):
            self.ring.set_state(STATE_FINISHED)

    def drain(self) -> None:
        """Wait, at the very end, until every collective in flight has told its end here.

        One that wants to when the interpreter is gone aborts the process: its thread cannot be ended cleanly any more.
        torch waits for the same collectives, later, when it destroys its process groups.
        """
        self.recorder.thread = 0
        for future in list(self.in_flight.values()):
            with suppress(RuntimeError):  # that it failed is the training's to hear
                future.wait()
        for _ in range(_LAST_CALLBACKS_MS):  # waiting ends just before the callback runs
            if not self.in_flight:
                break
            sleep(0.001)
        if self.ring is not None:
            backend_threads.let_finish()

    def remove(self) -> None:
        """Take every hook off again, last one first. Not to be called from inside a hook."""
        self._disable()
        while self._removals:
            self._removals.pop()()

    def _store_groups(self, groups: list[dict[str, Any]]) -> None:
        if self.ring is not None:
            self.ring.write_groups(groups)

    def _clear_issues(self, slot: int) -> None:
        if self.ring is not None:
            self.ring.clear_issues(slot)

    def _store(self, record: bytearray) -> None:
        assert self.ring is not None
        self.ring.write(record)

    def _at_boundary(self, next_step: int) -> int:
        capture = self.capture  # a failure inside of it takes it out of the agent
        assert capture is not None
        if next_step <= SETTLING_STEPS:
            self._settle(next_step)
        garbage = self.recorder.garbage
        if capture.running and garbage is not None:
            for start_ns, end_ns in garbage.taken:
                capture.collected(start_ns, end_ns, garbage.generations.get(end_ns))
        flags = capture.at_boundary(next_step)
        if garbage is not None and (flags or garbage.notes_generations):  # a capture began, goes on or has ended
            garbage.note_generations(wanted=capture.running)
        return flags

    def _settle(self, next_step: int) -> None:
        """Learn, in the first steps, what can be known only once training is under way."""
        if self.recorder.timeline is None:
            self.recorder.timeline = make_timeline()
        if next_step in (1, SETTLING_STEPS) and self.ring is not None:  # a second optimizer is met after the first step
            self.ring.write_facts(collect(self.recorder.flops))

    def _end_capture(self) -> None:
        """Stop a running profiler: left alone it would record until memory ends, and crash torch at exit."""
        capture, self.capture = self.capture, None
        if capture is not None:
            capture.abandon()

    def _fail(self, failures: int) -> None:
        self._dormant = False
        is_training = get_ident() == self.recorder.thread
        self.recorder.thread = 0
        if self.ring is not None:
            self.ring.set_state(STATE_FAILED, failures)
        if is_training:
            self._end_capture()
        unwatched.mark("failure", "the agent stopped after a failure", os.environ)
