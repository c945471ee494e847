"""The agent of one training process: its states, and the wiring of hooks, marks, ring and captures.

    dormant ──first backward, optimizer step or collective──► recording ──failure──► null
       └────────────── no ring can be made ──► null          │    ▲ └──exit──► finished
                                                             └────┘ a process group shows another rank

While recording, it knows one training thread, which may change (`claim_thread`). The meaning of marks, including
step numbers, is known only outside the process (lockstep/accounting).

Hooks are installed from the start, but the identity is read and the ring created only when the process trains:
torchrun's own process, compile workers and spawned data workers import torch and inherit RANK too, and must not occupy
the rank's place; and many launchers set the rank late, or only as an argument of `init_process_group`.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from time import monotonic_ns, sleep, thread_time_ns
from typing import TYPE_CHECKING, Any

from lockstep.agent import backend_threads, process_end, unwatched
from lockstep.agent.attempt_facts import AttemptFacts
from lockstep.agent.boundary import FailureGuard
from lockstep.agent.device import make_event_queue
from lockstep.agent.device.memory_counters import DeviceMemoryCounters
from lockstep.agent.ending import describe_ending, last_error
from lockstep.agent.groups import ProcessGroups
from lockstep.agent.identity import Identity, make_header, process_group, read_identity
from lockstep.agent.lineage import may_be_rank, note_rank, report_training
from lockstep.agent.mark_writer import C_EXTENSION, mark_buffer_type
from lockstep.agent.profiler import RankCapture
from lockstep.agent.ring import FLAGS_OFFSET, RingWriter
from lockstep.agent.run_claim import claim_run
from lockstep.agent.shared_directory import check_root, trusted_uids
from lockstep.agent.stack_dumps import StackDumps
from lockstep.agent.stepless import StepWatch
from lockstep.agent.thread_exit import ThreadExit
from lockstep.contracts.errors import LockstepError
from lockstep.contracts.ring import BLOCKS_OFFSET, ISSUES_OFFSET, STATE_FAILED, STATE_FINISHED, STATE_RAISED

if TYPE_CHECKING:
    from lockstep.agent.device.event_queue import EventQueue

VACANT = (1 << 64) - 1
"""`MarkBuffer.thread` once the training thread has ended: not the id of any thread, and not 0 either."""
WORKS_FOR_BACKWARD, STEPS_ELSEWHERE = 2, 3
"""What `Agent.claim_thread` returns besides 1 and 0."""
_NO_FILE = -1
_LAST_CALLBACKS_MS = 10_000
_MARK_COST_NS = {True: 200, False: 900}
"""Cost of a mark on the training thread, by writer (C extension or Python): between hot and cold caches, as printed by
benchmarks/agent_cost.py. Measuring each mark would cost more than the mark."""


def _never() -> bool:
    """Answer for a process without autograd or without C++ kernels."""
    return False


class Agent:
    """The agent, one per process. `hooks` are functions that take the agent, install a hook and return its removal.

    `marks` is the process's MarkBuffer: inert (`thread` is 0) before training begins, after a failure and in a forked
    child. `mark_writer` names its implementation.
    """

    def __init__(self, hooks: list[Callable[["Agent"], Callable[[], None]]]) -> None:
        self.boundary = FailureGuard(self._fail)
        buffer_type, self.mark_writer = mark_buffer_type()
        self.marks = buffer_type(
            _NO_FILE,
            0,
            1,
            key=int.from_bytes(os.urandom(8)),
            claim_thread=self.guard(self.claim_thread),
            at_store=self.guard(self._at_store),
            at_boundary=self.guard(self._at_boundary),
        )
        self.marks.mark_cost_ns = _MARK_COST_NS[self.mark_writer == C_EXTENSION]
        self.in_graph_task: Callable[[], bool] = _never
        """Whether the calling thread is now running part of a backward graph (hooks/backward.py)."""
        self.collective_kernels = self.collective_kernels_reason = ""
        """The language of the collective kernels, and the reason if it is not C++ (hooks/collectives.py)."""
        self.device: EventQueue | None = None
        """Queues events on the device of this process (agent/device), None without one."""
        self.attempt_facts = AttemptFacts(self.marks, self.mark_writer)
        self.find_counters: Callable[[], Any] = lambda: None
        """Returns torch.compile's counters once they exist (hooks/compilation.py)."""
        self._thread_exit = ThreadExit(self._vacate)
        self._stacks = StackDumps()
        self._step_watch = StepWatch(self.marks, os.environ)
        self._device_memory = DeviceMemoryCounters()
        self.ring: RingWriter | None = None
        self.groups = ProcessGroups(self._store_groups, clear=self.marks.clear_issues, at_first_use=self._check_rank)
        self._place = (0, 1)  # rank and world size in the ring
        self.capture: RankCapture | None = None
        self.is_in_flight: Callable[[], bool] = _never
        """Whether a C++ callback for the end of a collective is outstanding (hooks/native_kernel.py)."""
        self._dormant = True
        self._is_helper = False
        """Whether a rank started this process, which then is not a rank; one that steps an optimizer reports that."""
        self._first_ends = self._first_backwards = self._last_ends = self._failed_stores = 0
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

    def mark(self, name: str) -> Callable[..., Any]:
        """Return a method of the mark buffer: unchanged if it is in C, which raises no error of ours, else guarded."""
        method: Callable[..., Any] = getattr(self.marks, name)
        return method if self.mark_writer == C_EXTENSION else self.guard(method)

    # The training thread.

    def records_here(self) -> bool:
        """Whether communication of the calling thread now belongs to the training thread's step.

        On another thread it does if that thread works for the training thread's backward. Threads that save a
        checkpoint meanwhile do not; a thread with a concurrent backward of its own cannot be distinguished from
        autograd's.
        """
        return get_ident() == self.marks.thread or self.works_for_backward()

    def works_for_backward(self) -> bool:
        """Whether the calling thread is an autograd thread that works for the training thread's backward."""
        marks = self.marks
        return marks.thread not in (0, VACANT) and marks.backward_depth > 0 and self.in_graph_task()

    def claim_thread(self, steps: bool = False) -> int:  # noqa: FBT001, FBT002  (as the mark buffer calls it)
        """Claim the role of the training thread for the calling thread, which trains.

        Returns 1 if it has the role now, WORKS_FOR_BACKWARD or STEPS_ELSEWHERE if it works for the thread that has it,
        otherwise 0.

        The first thread that trains wakes the agent. Another one replaces it while it has ended no optimizer step,
        since a collective or a backward may come from a thread that only sets up the job, and once it has ended.
        Autograd's own threads never do: they work for the thread that called backward. Nor does one that `steps` an
        optimizer behind a backward of the training thread: it works for that thread's step.
        """
        if self._dormant and self.wake():
            return 1
        if steps and self._is_helper:
            report_training(os.environ)
        if self.in_graph_task():
            return WORKS_FOR_BACKWARD if self.works_for_backward() else 0
        if steps and self.marks.thread not in (0, VACANT) and self.marks.backward_ends != self._first_backwards:
            return STEPS_ELSEWHERE
        if not self._may_change_thread():
            return 0
        if self.capture is not None:
            self.capture.disown("the training thread ended during the capture")
        self._thread_exit.watch()
        self.marks.change_thread()
        if self.ring is not None:
            self.ring.set_thread(get_ident())
        self._first_ends, self._first_backwards = self._ends(), self.marks.backward_ends
        return 1

    def _may_change_thread(self) -> bool:
        marks = self.marks
        if marks.thread == VACANT:
            return True
        return marks.thread != 0 and self._ends() == self._first_ends and not marks.backward_depth

    def _ends(self) -> int:
        return int(self.marks.optimizer_ends + self.marks.step_ends)

    def _vacate(self, thread: int) -> None:
        """Note that `thread` has ended."""
        if thread == self.marks.thread:
            self.marks.thread = VACANT

    # Start.

    def wake(self) -> bool:
        """Begin to record if that has not happened and is possible; the calling thread becomes the training thread."""
        if not self._dormant or self.in_graph_task():
            return False
        self._dormant = False
        try:
            return self._begin()
        except BaseException:  # a signal handler of the training raised: the next mark begins again
            self._dormant = True
            raise

    def _begin(self) -> bool:
        group = process_group()
        self._is_helper = not may_be_rank(os.environ, group and group[1])
        if self._is_helper:
            return False
        try:
            ring = self._make_ring(read_identity(os.environ, group))
        except (OSError, LockstepError) as error:
            unwatched.report(error, os.environ)
            return False
        process_end.watch_child_end(self.end)
        marks = self.marks
        self._drop_device()  # ordinals of the former attempt are not valid in this one
        marks.open(ring.file, BLOCKS_OFFSET, ring.block_count, ISSUES_OFFSET, FLAGS_OFFSET)
        self._first_ends, self._first_backwards, self._last_ends = 0, 0, 0
        self._failed_stores = marks.failures
        self._step_watch.begin()
        self._stacks.begin(ring.path.parent, self._place[0], trusted_uids(os.environ))
        self.attempt_facts.stacks = self._stacks.fact
        self.attempt_facts.begin(ring)
        self._thread_exit.watch()
        self._look_for_counters()
        marks.begin()
        ring.set_thread(get_ident())
        marks.compiled(0)
        return True

    def _make_ring(self, identity: Identity) -> RingWriter:
        trusted = trusted_uids(os.environ)
        check_root(identity.directory.parent, trusted)
        with claim_run(identity, os.environ) as claimed:
            capture = RankCapture(claimed.directory, claimed.rank, trusted, self.marks, is_in_flight=self.has_in_flight)
            self.ring = ring = RingWriter(claimed.directory, make_header(claimed))
        capture.begin(ring.write_answer)
        self.capture = capture
        self._place = (claimed.rank, claimed.world_size)
        note_rank(os.environ, claimed.world_size)
        return ring

    def _check_rank(self) -> None:
        """Begin again as another rank if a new process group shows that this process has another rank.

        This happens in processes that train before they create their group, and in restarts within a process.
        """
        ring, group = self.ring, process_group()
        if ring is None or group in (None, self._place) or get_ident() != self.marks.thread:
            return
        identity = read_identity(os.environ, group)
        if (identity.rank, identity.world_size) == self._place:
            return
        self._dormant = True  # a signal handler of the training may raise anywhere below: the next mark begins again
        self.marks.thread = 0
        self._end_capture()
        self.groups.clear()
        self._stacks.end()
        ring.withdraw()
        self.wake()

    # While recording: called by the mark buffer, on the training thread.

    def _at_store(self) -> None:
        """After a store of marks, report a sign of life and poll for requests, at most ten times a second."""
        marks, ring, capture = self.marks, self.ring, self.capture
        assert ring is not None
        assert capture is not None
        now_ns = monotonic_ns()
        failed_stores, ends = marks.failures, self._ends()
        is_stored, has_stepped = failed_stores == self._failed_stores, ends != self._last_ends
        if ring.show_life(now_ns, is_stored=is_stored, has_stepped=has_stepped):
            marks.store_words()
        self._failed_stores, self._last_ends = failed_stores, ends
        self._stacks.look(now_ns)
        self._step_watch.look(now_ns, has_stepped=has_stepped)
        self._device_memory.poll(now_ns, ring.set_device_memory)
        capture.poll(now_ns)
        self.attempt_facts.repeat(now_ns)
        self._look_for_counters()

    def _look_for_counters(self) -> None:
        if self.marks.compilations is None:
            self.marks.compilations = self.find_counters()

    def _at_boundary(self) -> None:
        """Act where a step may begin: in the attempt's first steps, and where a capture is due."""
        began_ns = thread_time_ns()
        if self.device is None and self.attempt_facts.looks_for_device:
            self.device = make_event_queue(self.marks, self.guard)
        self.attempt_facts.at_boundary()
        capture = self.capture  # a failure inside it removes it from the agent
        assert capture is not None
        flags = capture.at_boundary()
        if flags:
            self.marks.flag(flags)
        self.marks.spend(thread_time_ns() - began_ns)

    # End.

    @property
    def alive(self) -> bool:
        """Whether the agent records or will once training begins."""
        return self._dormant or self.marks.thread != 0

    def forked(self) -> None:
        """Make every hook inert in a forked child, whose parent continues to write.

        A child of a process that does not train yet stays dormant, since launchers fork their ranks. A child of a
        process that records becomes dormant again: it is a rank if it trains in a larger world (lineage.py).
        """
        if self.ring is not None and self.marks.thread != 0:
            self._stacks.forget()
            self._disable()
            self.groups.clear()
            self._dormant = True
        self.marks.in_flight.clear()  # the threads that would mark them do not exist here

    def _drop_device(self) -> None:
        self.device = self.marks.device = None

    def _disable(self) -> None:
        self._dormant = False
        self.marks.thread = 0
        self._drop_device()
        self.ring = self.capture = None

    def end(self, error: BaseException | None = None) -> None:
        """Finish and drain, behind the failure boundary; only the first call does anything."""
        self.guard(self.finish)(error)
        self.guard(self.drain)()

    def finish(self, error: BaseException | None = None) -> None:
        """Mark the rank as finished, or as ended by `error`; otherwise only its lock shows that it died."""
        if self.ring is None or self.marks.thread == 0:
            return
        error = error or last_error()
        is_finished = error is None
        if self.device is not None:
            self.device.finish()
        if is_finished:
            self.marks.finish()
        else:
            self.marks.flush()
            self.marks.thread = 0
        self._end_capture()
        self._stacks.end()
        if error is None:
            self.ring.set_state(STATE_FINISHED)
        else:
            self.ring.write_ending(describe_ending(error))
            self.ring.set_state(STATE_RAISED)

    def drain(self) -> None:
        """Wait, at the very end, until every collective in flight has marked its end here.

        A callback that runs after the interpreter is gone aborts the process, because its thread cannot be ended
        cleanly. torch waits for the same collectives, but later, when it destroys its process groups.
        """
        self.marks.thread = 0
        for future in list(self.marks.in_flight.values()):
            with suppress(RuntimeError):  # its failure is the training's to handle
                future.wait()
        for _ in range(_LAST_CALLBACKS_MS):  # the wait ends just before the callback runs
            if not self.has_in_flight():
                break
            sleep(0.001)
        if not self._dormant:  # also a removed agent, whose callbacks may be freed only now
            backend_threads.let_finish()

    def has_in_flight(self) -> bool:
        """Whether a collective is known to be in flight."""
        return bool(self.marks.in_flight) or self.is_in_flight()

    def remove(self) -> None:
        """Remove every hook, the last one first. Must not be called from inside a hook."""
        self._stacks.end()
        self._disable()
        while self._removals:
            self.guard(self._removals.pop())()

    def _store_groups(self, groups: list[dict[str, Any]]) -> None:
        if self.ring is not None:
            self.ring.write_groups(groups)

    def _end_capture(self) -> None:
        """Stop a running profiler, which would otherwise record until memory is exhausted, and crash torch at exit."""
        capture, self.capture = self.capture, None
        if capture is not None:
            capture.abandon()

    def _fail(self, failures: int) -> None:
        self._dormant = False
        is_training = get_ident() == self.marks.thread
        try:
            if self.ring is None or self.ring.file >= 0:  # what the training closed may be a file of its own by now
                self.marks.fail(failures)
        finally:
            self.marks.thread = 0
            self._drop_device()
        self._stacks.end()
        if self.ring is not None:
            self.ring.set_state(STATE_FAILED, failures)
        if is_training:
            self._end_capture()
        unwatched.mark("failure", "the agent stopped after a failure", os.environ)
