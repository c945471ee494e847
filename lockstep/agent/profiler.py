"""Profiles on request: the orders of one rank and its answers, acted upon at step boundaries.

    idle ──order──► accepted ──boundary before its first step──► running ──N steps, or cut short──► done
                        └──────────────── refused (why) ◄───────────┘

Starting, stopping and writing take the training thread's time, between two steps; `cost_ns` says how much. Every step
that holds a part of it is flagged PROFILED. A capture ends early, with the whole steps it has, where it would take too
much (capture/budget.py), before the training starts a profiler of its own, and before it forks (capture/session.py).
It ends with nothing where a signal handler of the training raises while it begins, goes on or ends: what the handler
raises passes, and neither the profiler nor torch's session stays taken.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from lockstep.agent.boundary import describe
from lockstep.agent.capture.budget import Appetite, Budget
from lockstep.agent.capture.memory import available_bytes
from lockstep.agent.capture.session import SESSION
from lockstep.agent.control import ControlReader
from lockstep.agent.shared_directory import check_directory
from lockstep.contracts.control import (
    OrderAnswer,
    ProfileOrder,
    answer_to_json,
    order_from_json,
)
from lockstep.contracts.errors import LocalError, PeerError
from lockstep.contracts.paths import control_path, incoming_directory, trace_name
from lockstep.contracts.records import Flag

if TYPE_CHECKING:
    from lockstep.agent.capture.recording import Recording

FILE_MODE = 0o640
FREE_MARGIN_BYTES = 16 << 20  # rings of other ranks on the same file system must still fit
_REASON_MAX = 500
_PROFILED = int(Flag.PROFILED)
_NO_REQUEST = 0
_TORCH_ERRORS = (RuntimeError, ValueError, TypeError, AssertionError)


class Capture:
    """The profile orders of one rank, one at a time. Used by the training thread only.

    `directory` is that of the run, `trusted` are the uids that may order captures, and `store_answer` takes the JSON
    form of each answer; nothing here raises into the caller what comes from outside.
    """

    def __init__(self, directory: Path, rank: int, store_answer: Any, trusted: frozenset[int]) -> None:
        self._directory = directory
        self._rank = rank
        self._store_answer = store_answer
        self._trusted = trusted
        self._control = ControlReader(control_path(directory), trusted)
        self._order: ProfileOrder | None = None
        self._answer: OrderAnswer | None = None
        self._recording: Recording | None = None
        self._budget: Budget | None = None
        self._appetite = Appetite()
        self._last_step = 0
        self._boundary_ns = monotonic_ns()
        self._last_request = self._stale_request()

    @property
    def running(self) -> bool:
        """Whether the profiler runs."""
        return self._recording is not None

    def collected(self, start_ns: int, end_ns: int, generation: int | None) -> None:
        """Note a garbage collection of the training thread, its generation as far as it is known."""
        if self._recording is not None:
            self._recording.collected(start_ns, end_ns, generation)

    def at_boundary(self, next_step: int) -> int:
        """Act at the boundary before `next_step`; return the flags of that step."""
        is_done = False
        try:
            flags = self._act(next_step)
            is_done = True
        finally:
            if not is_done:
                self._give_up()
        return flags

    def _act(self, next_step: int) -> int:
        if self._recording is not None:
            return self._go_on(self._recording, next_step)
        now = monotonic_ns()
        step_ns, self._boundary_ns = now - self._boundary_ns, now
        self._look(now)
        order = self._order
        if order is None or order.first_step > next_step:
            return 0
        return self._begin(order, next_step, step_ns)

    def _give_up(self) -> None:
        """End what there is of a capture, without its trace."""
        why = "interrupted at a step's boundary"
        if self._recording is not None:
            self._drop(self._recording, why)
        elif self._order is not None:
            if SESSION.on_own_thread:
                SESSION.release()
            self._refuse(why)

    def abandon(self) -> None:
        """Stop a capture that the end of training cut short.

        On another thread than the training thread nothing is stopped: torch would crash.
        """
        recording = self._recording
        if recording is not None:
            if SESSION.on_own_thread:
                self._drop(recording, "training ended during the capture")
        elif self._order is not None:
            self._refuse("training ended before the capture")

    def disown(self, why: str) -> None:
        """Give up a running capture whose thread has ended: torch's session ended with it, and nothing is stopped."""
        if self._recording is not None:
            SESSION.release()
            self._charge(self._recording)
            self._recording = None
            self._refuse(why)

    def _stale_request(self) -> int:
        """Return the request that a former attempt of this rank was given, _NO_REQUEST without one."""
        return _request_of(self._poll(monotonic_ns()))

    def _poll(self, now_ns: int) -> Any:
        """Return what is new in the control block; one that does not count is answered with the reason."""
        try:
            return self._control.poll(now_ns)
        except PeerError as error:
            self._answer = OrderAnswer(request_id=_NO_REQUEST, state="accepted")
            self._refuse(str(error))
            return None

    def _look(self, now_ns: int) -> None:
        """Take a new order from the control block."""
        value = self._poll(now_ns)
        request = _request_of(value)
        if value is None or (request == self._last_request and request != _NO_REQUEST):
            return
        self._last_request = request
        try:
            order = order_from_json(value, where="control block")
        except PeerError as error:
            self._answer = OrderAnswer(request_id=request, state="accepted")
            self._refuse(str(error))
            return
        if self._rank in order.ranks:
            self._answer = OrderAnswer(request_id=order.request_id, state="accepted")
            self._order = order
            self._say(self._answer)

    def _begin(self, order: ProfileOrder, step: int, step_ns: int) -> int:
        """Start the profiler for `order` before `step`, or refuse."""
        self._budget = self._appetite.budget(order, step_ns)
        obstacle = self._obstacle(order) or self._budget.obstacle(available_bytes())
        if not obstacle and not SESSION.claim(self._cut_short):
            obstacle = "another profiler is running"
        if obstacle:
            self._refuse(obstacle)
            return 0
        from lockstep.agent.capture.recording import Recording  # noqa: PLC0415  (most ranks are never asked)

        try:
            self._recording = recording = Recording(order)
            SESSION.call(recording.start)
        except _TORCH_ERRORS as error:
            self._recording = None
            SESSION.release()
            self._refuse(f"torch.profiler did not start: {describe(error)}")
            return _PROFILED
        if self._recording is None:  # the agent failed inside `start`, which abandoned a capture that had yet to begin
            self._drop(recording, "the agent failed")
            return _PROFILED
        self._order = None
        self._last_step = step + order.steps - 1
        recording.mark(step)
        self._say(
            OrderAnswer(
                request_id=order.request_id,
                state="running",
                first_step=step,
                steps=order.steps,
                start_ns=recording.boundaries[0][1],
                cost_ns=recording.cost_ns,
            )
        )
        return _PROFILED

    def _obstacle(self, order: ProfileOrder) -> str:
        """Return why `order` cannot be carried out now, or nothing."""
        if "torch" not in sys.modules:
            return "torch is not loaded in this process"
        import torch  # noqa: PLC0415  (training imported it)

        flag = getattr(torch.autograd.profiler, "_is_profiler_enabled", False)  # that of all threads, for profilers
        if torch.autograd._profiler_enabled() or flag:  # noqa: SLF001  (that began before the agent was there)
            return "another profiler is running"
        needed = order.trace_max_bytes + FREE_MARGIN_BYTES
        try:
            check_directory(incoming_directory(self._directory), self._trusted, what="directory of incoming traces")
            status = os.statvfs(self._directory)
        except (OSError, PeerError) as error:
            return f"trace directory: {describe(error)}"
        free = status.f_bavail * status.f_frsize
        return f"free space: got {free} bytes, expected at least {needed}" if free < needed else ""

    def _go_on(self, recording: "Recording", next_step: int) -> int:
        """Act at a boundary of a running capture."""
        assert self._budget is not None
        recording.mark(next_step)
        why = ""
        if next_step <= self._last_step:
            why = self._budget.exhausted(recording.captured_ns, recording.last_ns, available_bytes())
            if SESSION.wanted:
                why = "another thread starts a profiler of its own"
        if why or next_step > self._last_step:
            self._end(recording, why)
        self._boundary_ns = monotonic_ns()
        return _PROFILED

    def _cut_short(self, why: str) -> None:
        """End the capture in the middle of a step."""
        recording = self._recording
        if recording is not None and recording.steps:
            self._end(recording, why)
        elif recording is not None:
            self._drop(recording, f"{why} during the first captured step")

    def _drop(self, recording: "Recording", why: str) -> None:
        """Stop the profiler and keep nothing."""
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
            self._appetite.learn(recording.order, recording.events, recording.captured_ns)
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
        self._charge(recording)
        self._say(
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
        try:
            SESSION.call(recording.stop)
        finally:
            SESSION.release()

    def _charge(self, recording: "Recording") -> None:
        assert self._answer is not None
        self._answer = replace(self._answer, cost_ns=recording.cost_ns)

    def _refuse(self, reason: str) -> None:
        assert self._answer is not None
        self._order = None
        self._say(replace(self._answer, state="refused", reason=reason[:_REASON_MAX]))

    def _say(self, answer: OrderAnswer) -> None:
        self._answer = answer
        self._store_answer(answer_to_json(answer))


def _request_of(value: Any) -> int:
    """Return the request's number, even of an order that is otherwise wrong."""
    request = value.get("request_id") if isinstance(value, dict) else None
    return request if type(request) is int and 0 < request < 1 << 63 else _NO_REQUEST
