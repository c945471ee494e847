"""One run of torch.profiler on the training thread, from its start to its trace file.

In the trace, a user annotation of zero length named `lockstep.step#<n>` marks the beginning of step n on the training
thread, and one more the end of the last step. It is a mark and not a span: the boundary lies inside the annotation that
torch puts around `Optimizer.step`, and a span from there to the next boundary would cut it in two.

Stopping, writing and freeing hold the interpreter lock throughout, so they are done between two steps: a thread would
only delay later steps (docs/decisions/captures.md has the figures).
"""

import os
import time
from pathlib import Path
from threading import get_native_id
from time import monotonic_ns, thread_time_ns
from typing import Any

from lockstep.agent.capture.kineto_log import silent_kineto
from lockstep.agent.capture.loader_watch import LOADER_WATCH
from lockstep.agent.capture.python_profiler import PythonProfiler
from lockstep.agent.capture.trace_file import base_ns, extend, microseconds
from lockstep.contracts.capture import CaptureRequest
from lockstep.contracts.errors import LocalError

STEP_MARK = "lockstep.step#"
FACTS_VERSION = 2
"""What `trace.notes` reads; 1 had collections without their generation, and all of them."""
EVENT_FILE_BYTES = 300
FULL_EVENT_FILE_BYTES = 500
"""Bytes that torch 2.13 writes per event, more with shapes or memory; measured 265 to 285, and 380 to 490."""
STOP_EVENT_NS = 250
"""The least CPU time per event that stopping takes: torch 2.13 takes 2,000 to 2,800. On a machine ten times as fast, a
file that is too large would be written before it is removed."""
COLLECTIONS_MAX = 10_000
NOTED_COLLECTIONS_MAX = 256

_DEVICES = (("CUDA", "cuda"), ("XPU", "xpu"), ("MTIA", "mtia"))
_GC_EVENT = {"ph": "X", "cat": "python_function", "name": "Python GC", "args": {}}  # as torch writes them itself


class Recording:
    """Created and used on the training thread. `boundaries` are (step, CLOCK_MONOTONIC ns), one more than whole steps.

    `events` are counted if the file may be too large, since listing them takes a third as long as stopping; otherwise
    they are estimated from the file's size, and 0 before. `costs_ns` is the time of the training thread for rest
    (waiting for torch's threads), start, stop, export and free. Like `start`, the constructor raises torch's errors.
    """

    def __init__(self, order: CaptureRequest) -> None:
        self.order = order
        self.boundaries: list[tuple[int, int]] = []
        self.events = 0
        self.costs_ns: dict[str, int] = {}
        self._collections: list[tuple[int, int, int | None]] = []
        self._loader: dict[str, Any] | None = None
        self._python: PythonProfiler | None = None
        self._event_bytes = FULL_EVENT_FILE_BYTES if order.shapes or order.memory else EVENT_FILE_BYTES
        self._profile, self._has_collections = _make_profile(order)

    def start(self) -> None:
        """Start the profiler.

        Raises
        ------
        RuntimeError, ValueError, TypeError, AssertionError
            torch cannot.
        """
        began = monotonic_ns()
        with silent_kineto():
            self._profile.prepare_trace()  # the first one of a process sets the level of the log itself
        with silent_kineto():
            self._profile.start_trace()
        if self.order.stacks:
            self._python = PythonProfiler()
        LOADER_WATCH.begin()
        self.costs_ns["start"] = monotonic_ns() - began

    def mark(self, step: int) -> None:
        """Mark the beginning of `step`."""
        from torch.profiler import record_function  # noqa: PLC0415  (training imported it)

        self.boundaries.append((step, monotonic_ns()))
        with record_function(f"{STEP_MARK}{step}"):
            return

    def collected(self, start_ns: int, end_ns: int, generation: int | None = None) -> None:
        """Record a garbage collection of the training thread, with its generation if known.

        One before the first boundary, while the profiler was started, belongs to none of the captured steps.
        """
        begun = self.boundaries and start_ns >= self.boundaries[0][1]
        if begun and len(self._collections) < COLLECTIONS_MAX:
            self._collections.append((start_ns, end_ns, generation))

    @property
    def steps(self) -> int:
        """Whole steps so far."""
        return len(self.boundaries) - 1

    @property
    def is_displaced(self) -> bool:
        """Whether the training has begun to profile Python, which torch does for stacks."""
        return self._python is not None and self._python.is_displaced

    @property
    def captured_ns(self) -> int:
        """Length of the whole steps so far."""
        return self.boundaries[-1][1] - self.boundaries[0][1]

    @property
    def last_ns(self) -> int:
        """Length of the last whole step."""
        return self.boundaries[-1][1] - self.boundaries[-2][1]

    @property
    def cost_ns(self) -> int:
        """Total cost so far."""
        return sum(self.costs_ns.values())

    def stop(self) -> None:
        """Stop the profiler.

        Raises
        ------
        RuntimeError, AssertionError
            torch cannot.
        """
        began, began_cpu_ns = monotonic_ns(), thread_time_ns()
        self._loader = LOADER_WATCH.end()
        put_back = None if self._python is None else self._python.keep_theirs()
        try:
            with silent_kineto():
                self._profile.stop()
            if put_back is not None:
                put_back()
            most_events = (thread_time_ns() - began_cpu_ns) // STOP_EVENT_NS
            if most_events * self._event_bytes > self.order.trace_max_bytes:
                self.events = len(self._profile.profiler.kineto_results.events())
        finally:
            self.costs_ns["stop"] = monotonic_ns() - began

    def save(self, path: Path, facts: dict[str, Any]) -> int:
        """Write the trace of a stopped profiler, with the agent's additions, and return its size in bytes.

        A trace that would be too large is not written: data workers die if it fills their shared file system.

        Raises
        ------
        OSError, RuntimeError, AssertionError, LocalError
            It cannot be written, or is too large.
        """
        limit_bytes = self.order.trace_max_bytes
        size_bytes = self.events * self._event_bytes
        if size_bytes > limit_bytes:
            raise LocalError(
                f"trace size: got about {size_bytes} bytes for {self.events} events, expected at most {limit_bytes}"
            )
        began = monotonic_ns()
        with silent_kineto():
            self._profile.export_chrome_trace(str(path))
        self.costs_ns["export"] = monotonic_ns() - began
        self.free()
        self.events = self.events or path.stat().st_size // self._event_bytes
        offset_ns = time.time_ns() - monotonic_ns()
        own = {
            "version": FACTS_VERSION,
            **facts,
            "boundaries": self.boundaries,
            "collections": self._longest(),
            **({} if self._loader is None else {"loader": self._loader}),
            "unix_minus_monotonic_ns": offset_ns,
            "cost_ns": self.costs_ns,
        }
        return extend(path, self._gc_events(offset_ns - base_ns(path)), own, limit_bytes)

    def free(self) -> None:
        """Release the results; otherwise they would stay in memory until the next capture starts."""
        began = monotonic_ns()
        if self._profile.profiler is not None:
            self._profile.profiler.kineto_results = None
        self.costs_ns["free"] = monotonic_ns() - began

    def _longest(self) -> list[tuple[int, int, int | None]]:
        """Return the longest collections, in order of time: readers take the facts from a short end of the file."""
        longest = sorted(self._collections, key=lambda each: each[0] - each[1])[:NOTED_COLLECTIONS_MAX]
        return sorted(longest, key=lambda each: each[0])

    def _gc_events(self, offset_ns: int) -> list[dict[str, Any]]:
        """Return the collections as trace events, unless torch has written them itself."""
        if self._has_collections:
            return []
        place = {"pid": os.getpid(), "tid": get_native_id()}
        return [
            {**_GC_EVENT, **place, "ts": microseconds(start_ns + offset_ns), "dur": microseconds(end_ns - start_ns)}
            for start_ns, end_ns, _ in self._collections
        ]


def _make_profile(order: CaptureRequest) -> tuple[Any, bool]:
    """Return a torch profiler for `order`, and whether it writes garbage collections itself."""
    import torch  # noqa: PLC0415  (training imported it)

    options: dict[str, Any] = {}
    if order.stacks:
        try:
            config = torch._C._profiler._ExperimentalConfig(record_python_gc_info=True)  # noqa: SLF001  (no public name)
        except TypeError:  # torch before 2.9
            config = None
        if config is not None:
            options["experimental_config"] = config
    profile = torch.profiler.profile(
        activities=_activities(device=order.device),
        record_shapes=order.shapes,
        profile_memory=order.memory,
        with_stack=order.stacks,
        **options,
    )
    return profile, bool(options)


def _activities(*, device: bool) -> list[Any]:
    """Return the host's activity and those of the devices that this rank already uses; no device is initialised."""
    import torch  # noqa: PLC0415  (training imported it)
    from torch.profiler import ProfilerActivity, supported_activities  # noqa: PLC0415

    found = [ProfilerActivity.CPU]
    if not device:
        return found
    private = torch._C._get_privateuse1_backend_name()  # noqa: SLF001  (no public name; torch_npu's is "npu")
    supported = supported_activities()
    for activity_name, module_name in (*_DEVICES, ("PrivateUse1", private)):
        activity = getattr(ProfilerActivity, activity_name, None)
        is_initialized = getattr(getattr(torch, module_name, None), "is_initialized", None)
        if activity in supported and is_initialized is not None and is_initialized():
            found.append(activity)
    return found
