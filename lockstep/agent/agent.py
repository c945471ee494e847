"""The agent of one training process: its states, and what ties hooks, recorder, ring and capture together.

    dormant ──first backward, optimizer step or collective──► recording ──failure──► null
       └────────────── no ring can be made ──► null             └──exit──► finished

Recording, it knows one training thread, which may change: `adopt` says when.

Hooks are in place from the start, but the ring appears only when the process is seen to train: torchrun's own process,
compile workers and spawned data workers import torch and inherit RANK too, and must not take the rank's place.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, Any

from lockstep.agent.boundary import Boundary, describe, say
from lockstep.agent.device import make_timeline
from lockstep.agent.groups import Groups
from lockstep.agent.identity import make_header, read_identity
from lockstep.agent.profiler import Capture
from lockstep.agent.recorder import Recorder
from lockstep.agent.ring import RingWriter
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
OWNER_VARIABLE = "LOCKSTEP_AGENT_PID"
"""Set when a process begins to record: what it starts inherits RANK and is not that rank."""


class Agent:
    """One per process. `hooks` are functions that take the agent, put a hook in place and return its removal."""

    def __init__(self, hooks: list[Callable[["Agent"], Callable[[], None]]]) -> None:
        self.boundary = Boundary(self._fail)
        self.recorder = Recorder(self._store, self._at_boundary, self.adopt)
        self._thread_exit = ThreadExit(self.recorder.vacate)
        self.ring: RingWriter | None = None
        self.groups = Groups(self._store_groups, clear=self._clear_issues)
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
        owner = os.environ.get(OWNER_VARIABLE)
        if owner not in (None, str(os.getpid())):
            return False
        try:
            identity = read_identity(os.environ)
            trusted = trusted_uids(os.environ)
            check_root(identity.directory.parent, trusted)
            self.ring = RingWriter(identity.directory, make_header(identity))
            self.capture = Capture(identity.directory, identity.rank, self.ring.write_answer, trusted)
        except (OSError, LockstepError) as error:
            say(f"agent not installed: {describe(error)}")
            return False
        os.environ[OWNER_VARIABLE] = str(os.getpid())
        now = monotonic_ns()
        ring = self.ring
        self.recorder.begin_attempt(now, ring.beat, ring.note_issue, ring.set_flags)
        self._thread_exit.watch()
        self.recorder.thread = get_ident()
        return True

    @property
    def alive(self) -> bool:
        """Whether the agent records or will once training begins."""
        return self._dormant or self.recorder.thread != 0

    def forked(self) -> None:
        """Make every hook inert in a forked child, whose parent goes on writing.

        A child of a process that does not train yet stays dormant: launchers fork their ranks.
        """
        if not self._dormant:
            self._disable()
        self.in_flight.clear()  # the threads that would tell are not there

    def _disable(self) -> None:
        self._dormant = False
        self.recorder.thread = 0
        self.ring = self.capture = None

    def finish(self) -> None:
        """Say that the rank ended well; one that dies of an exception says nothing and its heartbeat tells."""
        if self.ring is None or self.recorder.thread == 0:
            return
        self.recorder.finish()
        self._end_capture()
        if not hasattr(sys, "last_type"):
            self.ring.set_state(STATE_FINISHED)

    def drain(self) -> None:
        """Wait, at the very end, until every collective in flight has told its end here.

        One that wants to when the interpreter is gone aborts the process: its thread cannot be ended cleanly any more.
        torch waits for the same collectives, later, when it destroys its process groups.
        """
        self.recorder.thread = 0
        if not self.in_flight:
            return
        for future in list(self.in_flight.values()):
            with suppress(RuntimeError):  # that it failed is the training's to hear
                future.wait()
        for _ in range(_LAST_CALLBACKS_MS):  # waiting ends just before the callback runs
            if not self.in_flight:
                break
            sleep(0.001)
        sleep(0.01)  # the callback has noted its end and still has to return

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
