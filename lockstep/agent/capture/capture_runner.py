"""Executes one rank's capture requests at step boundaries; loaded when the first request arrives.

    idle ──order──► accepted ──boundary before its first step──► running ──N steps, or cut short──► done
                        └──────────────── refused (why) ◄───────────┘

Which ends of backwards, optimizers or named steps are boundaries is part of the request (capture.StepBoundary): the
mark buffer counts those and calls at them. A step with an end more or less than the others shifts the boundaries of
later steps by a part of a step; the recording then has the requested length, and begins within a step.

Starting, stopping and writing take time of the training thread between two steps, `cost_ns` in total. Every step that
contains part of it is flagged PROFILED. A capture ends early, with the whole steps it has, before it becomes too
expensive (budget.py), before the training starts a profiler of its own, and before it forks (session.py). It ends
without a trace if a signal handler of the training raises while it begins, continues or ends: the handler's exception
passes, and neither the profiler nor torch's session stays occupied.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from lockstep.agent.backend_threads import LIMIT_NS, let_finish
from lockstep.agent.boundary import describe
from lockstep.agent.capture.budget import Budget, TraceSizeEstimator
from lockstep.agent.capture.memory import available_bytes
from lockstep.agent.capture.obstacles import find_obstacle
from lockstep.agent.capture.pace import EndPace, request_number
from lockstep.agent.capture.session import SESSION
from lockstep.agent.garbage import CollectionLog
from lockstep.contracts.capture import (
    END_KINDS,
    CaptureRequest,
    CaptureResult,
    StepBoundary,
    request_from_json,
    result_to_json,
)
from lockstep.contracts.errors import LocalError, PeerError
from lockstep.contracts.paths import incoming_directory, trace_name
from lockstep.contracts.records import Flag

if TYPE_CHECKING:
    from lockstep.agent.capture.recording import Recording
    from lockstep.agent.mark_buffer import MarkBuffer

FILE_MODE = 0o640
_REASON_MAX = 500
_PROFILED = int(Flag.PROFILED)
_NO_REQUEST = 0
_QUIET_BEGIN_NS = 20_000_000  # torch's threads are seen asleep within 4 ms, unless a collective is in flight
_QUIET_TRIES = 16  # boundaries; after these, every step ends with collectives in flight
_TORCH_ERRORS = (RuntimeError, ValueError, TypeError, AssertionError)


class CaptureRunner:
    """The capture requests of one rank, one at a time. Used by the training thread only.

    `directory` is that of the run, `trusted` are the uids that may request captures, `store_answer` receives the JSON
    form of each answer, and `last_request` is the number of a request given to a former attempt. No invalid input
    raises into the caller. `marks` counts ends, and calls `at_boundary` at the requested one. `is_in_flight` returns
    whether a collective is known to be in flight: the profiler starts and stops while torch's threads are idle
    (`backend_threads.py`).
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        store_answer: Callable[[Any], None],
        trusted: frozenset[int],
        marks: "MarkBuffer",
        *,
        pace: EndPace,
        is_in_flight: Callable[[], bool],
        last_request: int,
    ) -> None:
        self._marks = marks
        self._pace = pace
        self._is_in_flight = is_in_flight
        self._tries = self._rest_ns = 0
        self._directory = directory
        self._rank = rank
        self._store_answer = store_answer
        self._trusted = trusted
        self._order: CaptureRequest | None = None
        self._answer: CaptureResult | None = None
        self._recording: Recording | None = None
        self._budget: Budget | None = None
        self._trace_size = TraceSizeEstimator()
        self._last_step = 0
        self._boundary: StepBoundary | None = None
        self._acted_at = -1
        """The last end of that kind at which `at_boundary` has acted."""
        self._collections: CollectionLog | None = None
        self._last_request = last_request

    @property
    def running(self) -> bool:
        """Whether the profiler runs."""
        return self._recording is not None

    def receive(self, value: Any) -> None:
        """Accept, refuse or ignore the content of the control block, unless a request is being executed."""
        request = request_number(value)
        is_known = request == self._last_request and request != _NO_REQUEST
        if is_known and self._order is None:
            return
        self._last_request = request
        try:
            order = request_from_json(value, where="control block")
        except PeerError as error:
            self._answer = CaptureResult(request_id=request, state="accepted")
            self._refuse(str(error))
            return
        if self._rank not in order.ranks:
            if self._order is not None:
                self._refuse("withdrawn before it began")
            return
        if is_known:
            return
        self._answer = CaptureResult(request_id=order.request_id, state="accepted")
        boundary = order.boundary_of(self._rank)
        if boundary is None:
            self._refuse("the steps of this rank are not numbered")
            return
        self._order, self._tries, self._rest_ns = order, 0, 0
        self._acted_at = self._ends(boundary)
        self._arm(boundary, self._acted_at)
        self._store(self._answer)

    def refuse_block(self, why: str) -> None:
        """Answer an invalid control block."""
        self._answer = CaptureResult(request_id=_NO_REQUEST, state="accepted")
        self._refuse(why)

    def at_boundary(self) -> int:
        """Act if the counted end is a step boundary; return the flags of the step that begins."""
        boundary = self._boundary
        if boundary is None:
            return 0
        ends = self._ends(boundary)
        next_step = boundary.step_after(ends)
        if next_step is None or ends == self._acted_at:
            return 0
        self._acted_at = ends
        is_done = False
        try:
            flags = self._act(next_step)
            is_done = True
        finally:
            if not is_done:
                self._give_up()
            self._arm(boundary, ends)
        return flags

    def _ends(self, boundary: StepBoundary) -> int:
        marks = self._marks
        return (marks.backward_ends, marks.optimizer_ends, marks.step_ends)[END_KINDS.index(boundary.end_kind)]

    def _arm(self, boundary: StepBoundary, ends: int) -> None:
        """Request the next boundary, as long as there is work to do at it."""
        is_needed = self._recording is not None or self._order is not None
        self._boundary = boundary if is_needed else None
        self._marks.boundary_ends = END_KINDS.index(boundary.end_kind) + 1 if is_needed else 0
        self._marks.boundary_at = boundary.next_end(ends)

    def _act(self, next_step: int) -> int:
        if self._recording is not None:
            return self._go_on(self._recording, next_step)
        order = self._order
        if order is None or order.first_step > next_step:
            return 0
        return self._begin(order, next_step)

    def _step_ns(self, boundary: StepBoundary) -> int:
        kind = END_KINDS.index(boundary.end_kind)
        return self._pace.step_ns(kind, boundary.ends_per_step, self._ends(boundary), monotonic_ns())

    def _give_up(self) -> None:
        """End a capture without its trace."""
        why = "interrupted at a step's boundary"
        if self._recording is not None:
            self._drop(self._recording, why)
        elif self._order is not None:
            if SESSION.on_own_thread:
                SESSION.release()
            self._refuse(why)

    def abandon(self) -> None:
        """Stop a capture at the end of training.

        On a thread other than the training thread nothing is stopped, because torch would crash.
        """
        recording = self._recording
        if recording is not None:
            if SESSION.on_own_thread:
                self._drop(recording, "training ended during the capture")
        elif self._order is not None:
            self._refuse("training ended before the capture")

    def disown(self, why: str) -> None:
        """Give up a running capture whose thread has ended; torch's session ended with it, and nothing is stopped."""
        if self._recording is not None:
            SESSION.release()
            self._stop_collections()
            self._charge(self._recording)
            self._recording = None
            self._refuse(why)

    def _begin(self, order: CaptureRequest, step: int) -> int:
        """Start the profiler for `order` before `step`, or refuse."""
        assert self._boundary is not None
        if not self._comes_to_rest(_QUIET_BEGIN_NS):
            self._tries += 1
            if self._tries == _QUIET_TRIES:
                self._refuse(f"collectives are in flight at the end of each of {_QUIET_TRIES} steps")
            return 0
        self._budget = self._trace_size.budget(order, self._step_ns(self._boundary))
        obstacle = find_obstacle(order, self._directory, self._trusted) or self._budget.obstacle(available_bytes())
        if not obstacle and not SESSION.claim(self._cut_short):
            obstacle = "another profiler is running"
        if obstacle:
            self._refuse(obstacle)
            return 0
        from lockstep.agent.capture.recording import Recording  # noqa: PLC0415  (most ranks are never asked)

        try:
            self._recording = recording = Recording(order)
            recording.costs_ns["rest"] = self._rest_ns
            SESSION.call(recording.start)
        except _TORCH_ERRORS as error:
            self._recording = None
            SESSION.release()
            self._refuse(f"torch.profiler did not start: {describe(error)}")
            return _PROFILED
        if self._recording is None:  # the agent failed inside `start` and abandoned the capture before it began
            self._drop(recording, "the agent failed")
            return _PROFILED
        self._order = None
        self._last_step = step + order.steps - 1
        self._collections = CollectionLog()
        gc.callbacks.append(self._collections.callback)
        recording.mark(step)
        self._store(
            CaptureResult(
                request_id=order.request_id,
                state="running",
                first_step=step,
                steps=order.steps,
                start_ns=recording.boundaries[0][1],
                cost_ns=recording.cost_ns,
            )
        )
        return _PROFILED

    def _go_on(self, recording: "Recording", next_step: int) -> int:
        """Act at a boundary of a running capture."""
        assert self._budget is not None
        self._note_collections(recording)
        recording.mark(next_step)
        why = ""
        if next_step <= self._last_step:
            why = self._budget.exhausted(recording.captured_ns, recording.last_ns, available_bytes())
            if SESSION.wanted:
                why = "another thread starts a profiler of its own"
            if recording.is_displaced:
                why = "the training began to profile Python"
        if why or next_step > self._last_step:
            self._end(recording, why)
        return _PROFILED

    def _note_collections(self, recording: "Recording") -> None:
        if self._collections is not None:
            for start_ns, end_ns, generation in self._collections.drain(get_ident()):
                recording.collected(start_ns, end_ns, generation)

    def _stop_collections(self) -> None:
        if self._collections is not None and self._collections.callback in gc.callbacks:
            gc.callbacks.remove(self._collections.callback)
        self._collections = None

    def _cut_short(self, why: str) -> None:
        """End the capture within a step."""
        recording = self._recording
        if recording is not None:
            self._note_collections(recording)
        if recording is not None and recording.steps:
            self._end(recording, why)
        elif recording is not None:
            self._drop(recording, f"{why} during the first captured step")

    def _drop(self, recording: "Recording", why: str) -> None:
        """Stop the profiler and discard the recording."""
        try:
            self._stop(recording)
            recording.free()
        except _TORCH_ERRORS as error:
            why = f"{why}; torch.profiler did not stop: {describe(error)}"
        self._charge(recording)
        self._refuse(why)
        self._recording = None

    def _end(self, recording: "Recording", why: str) -> None:
        """Stop the profiler, write its trace and answer."""
        answer = self._answer
        assert answer is not None
        end_ns = monotonic_ns()
        name = trace_name(answer.request_id, self._rank)
        # In the run's directory: no other user can put a link there, which torch would follow, or a pipe to block it.
        partial = self._directory / f".{name}.part"
        try:
            self._stop(recording)
            size = recording.save(partial, {"run": self._directory.name, "rank": self._rank, "reason": why})
            partial.chmod(FILE_MODE)
            partial.rename(incoming_directory(self._directory) / name)
        except (OSError, LocalError, *_TORCH_ERRORS) as error:
            recording.free()
            partial.unlink(missing_ok=True)
            partial.with_name(f"{partial.name}.tmp").unlink(missing_ok=True)  # where torch writes first
            self._charge(recording)
            self._refuse(f"trace of step {answer.first_step} to {recording.boundaries[-1][0] - 1}: {describe(error)}")
            self._recording = None
            return
        finally:
            self._trace_size.learn(recording.order, recording.events, recording.captured_ns)
        self._charge(recording)
        self._store(
            replace(
                self._answer or answer,
                state="done",
                reason=why[:_REASON_MAX],
                steps=recording.steps,
                end_ns=end_ns,
                trace_bytes=size,
            )
        )
        self._recording = None

    def _stop(self, recording: "Recording") -> None:
        self._stop_collections()
        self._comes_to_rest(LIMIT_NS)
        recording.costs_ns["rest"] = self._rest_ns
        try:
            SESSION.call(recording.stop)
        finally:
            SESSION.release()

    def _comes_to_rest(self, limit_ns: int) -> bool:
        """Wait for torch's threads, and add the time to the cost of the capture."""
        began_ns = monotonic_ns()
        rests = let_finish(limit_ns=limit_ns, is_busy=self._is_in_flight)
        self._rest_ns += monotonic_ns() - began_ns
        return rests

    def _charge(self, recording: "Recording") -> None:
        assert self._answer is not None
        self._answer = replace(self._answer, cost_ns=recording.cost_ns)

    def _refuse(self, reason: str) -> None:
        assert self._answer is not None
        self._order = None
        self._store(replace(self._answer, state="refused", reason=reason[:_REASON_MAX]))

    def _store(self, answer: CaptureResult) -> None:
        self._answer = answer
        self._store_answer(result_to_json(answer))
