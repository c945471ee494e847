"""The agent of one training process: its states, and what ties hooks, recorder, ring and capture together.

    dormant ──first backward, optimizer step or collective──► recording ──failure──► null
       └────────────── no ring can be made ──► null             └──exit──► finished

Hooks are in place from the start, but the ring appears only when the process is seen to train: torchrun's own process,
compile workers and spawned data workers import torch and inherit RANK too, and must not take the rank's place.
"""

import os
import sys
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import Any

from lockstep.agent.boundary import Boundary, describe, say
from lockstep.agent.groups import Groups
from lockstep.agent.identity import make_header, read_identity
from lockstep.agent.profiler import Capture
from lockstep.agent.recorder import Recorder
from lockstep.agent.ring import RingWriter
from lockstep.contracts.errors import LockstepError
from lockstep.contracts.ring import STATE_FAILED, STATE_FINISHED

OWNER_VARIABLE = "LOCKSTEP_AGENT_PID"
"""Set when a process begins to record: what it starts inherits RANK and is not that rank."""


class Agent:
    """One per process. `hooks` are functions that take the agent, put a hook in place and return its removal."""

    def __init__(self, hooks: list[Callable[["Agent"], Callable[[], None]]]) -> None:
        self.boundary = Boundary(self._fail)
        self.recorder = Recorder(self._on_step, self.adopt)
        self.ring: RingWriter | None = None
        self.groups = Groups(self._store_groups)
        self._capture: Capture | None = None
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

    def adopt(self) -> bool:
        """Whether the calling thread, which trains, is the training thread from now on.

        The first thread that trains wakes the agent; as long as no step is complete another one may take over, since
        a collective can come from a thread that only sets the job up.
        """
        if self._dormant:
            return self.wake()
        if self.recorder.thread == 0 or self.recorder.step > 0:
            return False
        self.recorder.thread = get_ident()
        return True

    def wake(self) -> bool:
        """Begin to record if that did not happen yet and can; the calling thread is the training thread then."""
        if not self._dormant:
            return False
        self._dormant = False
        owner = os.environ.get(OWNER_VARIABLE)
        if owner not in (None, str(os.getpid())):
            return False
        try:
            identity = read_identity(os.environ)
            self.ring = RingWriter(identity.directory, make_header(identity))
            self._capture = Capture(identity.directory, identity.rank, self.ring.write_answer)
        except (OSError, LockstepError) as error:
            say(f"agent not installed: {describe(error)}")
            return False
        os.environ[OWNER_VARIABLE] = str(os.getpid())
        now = monotonic_ns()
        self.recorder.begin_attempt(now, self.ring.beat)
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

    def _disable(self) -> None:
        self._dormant = False
        self.recorder.thread = 0
        self.ring = self._capture = None

    def finish(self) -> None:
        """Say that the rank ended well; one that dies of an exception says nothing and its heartbeat tells."""
        if self.ring is None or self.recorder.thread == 0 or hasattr(sys, "last_type"):
            return
        self.recorder.thread = 0
        if self._capture is not None:
            self._capture.abandon()
        self.ring.set_state(STATE_FINISHED)

    def remove(self) -> None:
        """Take every hook off again, last one first. Not to be called from inside a hook."""
        self._disable()
        while self._removals:
            self._removals.pop()()

    def _store_groups(self, groups: list[dict[str, Any]]) -> None:
        if self.ring is not None:
            self.ring.write_groups(groups)

    def _on_step(self, record: list[int], next_step: int) -> int:
        assert self.ring is not None
        assert self._capture is not None
        self.ring.write(record)
        return self._capture.at_boundary(next_step)

    def _fail(self, failures: int) -> None:
        self._dormant = False
        self.recorder.thread = 0
        if self.ring is not None:
            self.ring.set_state(STATE_FAILED, failures)
