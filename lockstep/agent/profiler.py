"""Profiles on request: torch.profiler inside the running rank, started and stopped at step boundaries.

    idle ──order──► accepted ──boundary before its first step──► running ──N steps──► done
                        └──────────────── refused (why) ◄───────────┘

In the trace, a user annotation of no length named `lockstep.step#<n>` marks the beginning of step n on the training
thread, and one more the end of the last step. A mark, not a span: the boundary lies inside the annotation that torch
puts around `Optimizer.step`, and a span from there to the next one would cut it in two.

Starting, stopping and writing take the training thread's time, between two steps; `cost_ns` says how much. Every step
that holds a part of it is flagged PROFILED. A profiler that the user starts meanwhile would empty ours (torch allows
one at a time and says nothing): the order is refused when one runs at its start.
"""

import os
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns
from typing import Any

from lockstep.agent.boundary import describe
from lockstep.agent.control import ControlReader
from lockstep.agent.ring import make_directory
from lockstep.contracts.control import (
    OrderAnswer,
    ProfileOrder,
    answer_to_json,
    order_from_json,
)
from lockstep.contracts.errors import LocalError, PeerError
from lockstep.contracts.paths import control_path, trace_path
from lockstep.contracts.records import Flag

STEP_MARK = "lockstep.step#"
FREE_MARGIN_BYTES = 16 << 20  # rings of other ranks on the same file system must still fit
_REASON_MAX = 500
_PROFILED = int(Flag.PROFILED)
_NO_REQUEST = 0


class Capture:
    """The profile orders of one rank, one at a time. Used by the training thread only.

    `store_answer` takes the JSON form of each answer; nothing here raises into the caller what comes from outside.
    """

    def __init__(self, directory: Path, rank: int, store_answer: Any) -> None:
        self._directory = directory
        self._rank = rank
        self._store_answer = store_answer
        self._control = ControlReader(control_path(directory))
        self._order: ProfileOrder | None = None
        self._answer: OrderAnswer | None = None
        self._profile: Any = None
        self._last_step = 0
        self._last_request = self._stale_request()

    def at_boundary(self, next_step: int) -> int:
        """Act at the boundary before `next_step`; return the flags of that step."""
        if self._profile is not None:
            self._mark(next_step)
            if next_step > self._last_step:
                self._end(next_step)
            return _PROFILED
        self._look()
        order = self._order
        if order is None or order.first_step > next_step:
            return 0
        self._order = None
        return self._begin(order, next_step)

    def abandon(self) -> None:
        """Stop a capture that the end of training cut short."""
        if self._profile is not None:
            self._profile, profile = None, self._profile
            profile.stop()
            self._refuse("training ended during the capture")
        elif self._order is not None:
            self._refuse("training ended before the capture")

    def _stale_request(self) -> int:
        """Return the request that a former attempt of this rank was given, _NO_REQUEST without one."""
        try:
            value = self._control.poll(monotonic_ns())
        except PeerError:
            return _NO_REQUEST
        return _request_of(value)

    def _look(self) -> None:
        """Take a new order from the control block."""
        try:
            value = self._control.poll(monotonic_ns())
        except PeerError as error:
            self._answer = OrderAnswer(request_id=_NO_REQUEST, state="accepted")
            self._refuse(str(error))
            return
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
            self._order = order
            self._say(OrderAnswer(request_id=order.request_id, state="accepted"))

    def _begin(self, order: ProfileOrder, step: int) -> int:
        """Start the profiler for `order` before `step`, or refuse."""
        obstacle = self._obstacle(order)
        if obstacle:
            self._refuse(obstacle)
            return 0
        began = monotonic_ns()
        profile = None
        try:
            profile = _make_profile(order)
            profile.start()
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            self._refuse(f"torch.profiler did not start: {describe(error)}")
            return _PROFILED
        self._profile = profile
        self._trace_max_bytes = order.trace_max_bytes
        self._last_step = step + order.steps - 1
        self._mark(step)
        now = monotonic_ns()
        self._say(
            OrderAnswer(
                request_id=order.request_id,
                state="running",
                first_step=step,
                steps=order.steps,
                start_ns=now,
                cost_ns=now - began,
            )
        )
        return _PROFILED

    def _obstacle(self, order: ProfileOrder) -> str:
        """Return why `order` cannot be carried out now, or nothing."""
        import torch  # noqa: PLC0415  (training imported it)

        if torch.autograd._profiler_enabled():  # noqa: SLF001  (the only way to know; two at once empty the first)
            return "another profiler is running"
        needed = order.trace_max_bytes + FREE_MARGIN_BYTES
        try:
            make_directory(self._trace(order.request_id).parent)
            status = os.statvfs(self._directory)
        except OSError as error:
            return f"trace directory: {describe(error)}"
        free = status.f_bavail * status.f_frsize
        return f"free space: got {free} bytes, expected at least {needed}" if free < needed else ""

    def _end(self, next_step: int) -> None:
        """Stop the profiler, write its trace and answer."""
        answer = self._answer
        assert answer is not None
        profile, self._profile = self._profile, None
        began = monotonic_ns()
        final = self._trace(answer.request_id)
        partial = final.with_name(f".{final.name}.part")
        try:
            profile.stop()
            profile.export_chrome_trace(str(partial))
            size = _whole_json_bytes(partial, self._trace_max_bytes)
            partial.chmod(0o660)
            partial.rename(final)
        except (OSError, RuntimeError, ValueError, AssertionError, LocalError) as error:
            partial.unlink(missing_ok=True)
            self._answer = replace(answer, cost_ns=answer.cost_ns + monotonic_ns() - began)
            self._refuse(f"trace of step {answer.first_step} to {next_step - 1}: {describe(error)}")
            return
        now = monotonic_ns()
        self._say(replace(answer, state="done", end_ns=began, trace_bytes=size, cost_ns=answer.cost_ns + now - began))

    def _mark(self, step: int) -> None:
        import torch  # noqa: PLC0415  (training imported it)

        with torch.profiler.record_function(f"{STEP_MARK}{step}"):
            return

    def _trace(self, request_id: int) -> Path:
        return trace_path(self._directory, request_id, self._rank)

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


def _make_profile(order: ProfileOrder) -> Any:
    """Return a torch profiler as `order` wants it."""
    import torch  # noqa: PLC0415  (training imported it)
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # a rank that uses no device gets none for this
        activities.append(ProfilerActivity.CUDA)
    options: dict[str, Any] = {}
    if order.stacks:
        try:
            config = torch._C._profiler._ExperimentalConfig(record_python_gc_info=True)  # noqa: SLF001  (no public name)
        except TypeError:  # an older torch: collections are gaps in its traces
            config = None
        if config is not None:
            options["experimental_config"] = config
    return profile(
        activities=activities,
        record_shapes=order.shapes,
        profile_memory=order.memory,
        with_stack=order.stacks,
        **options,
    )


def _whole_json_bytes(path: Path, limit_bytes: int) -> int:
    """Return the size of a trace file.

    Raises
    ------
    OSError, LocalError
        It is not there, larger than `limit_bytes`, or cut off (torch does not report a full file system).
    """
    size = path.stat().st_size
    if size > limit_bytes:
        raise LocalError(f"trace size: got {size} bytes, expected at most {limit_bytes}")
    with path.open("rb") as file:
        file.seek(max(size - 16, 0))
        tail = file.read().rstrip()
    if not tail.endswith(b"}"):
        raise LocalError(f"trace end: got {tail[-16:]!r}, expected a closed object")
    return size
