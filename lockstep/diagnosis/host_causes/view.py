"""The common inputs of all host rules, computed once: the training thread, the steps, when the device had work."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.host_causes import thresholds as limits
from lockstep.trace.columns import ABSENT, ANNOTATION, DRIVER, OPERATOR, PYTHON, RUNTIME, Mask, TraceColumns
from lockstep.trace.intervals import Intervals, Times, common, merged, without
from lockstep.trace.steps import Steps, StepSource, find_steps

LOADER_PREFIX = "enumerate(DataLoader)#"
_LOOKED_AT_CHARS = 1024
"""Characters of a name that patterns search: real ones are shorter, and a hostile file's may have megabytes."""
HOST_CATEGORIES = (PYTHON, OPERATOR, ANNOTATION)

_SMALLEST_NS = 1e5
"""Shorter times are formatted in us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """A rank's trace in one window.

    Masks are arrays of shape (n_events,): `inside` marks the events that overlap the window; of these, `host` marks
    frames, operators and annotations, `calls` calls into the device's runtime, `device` its work. `thread` is the code
    of the training thread. `busy` is when the device worked, empty without one. `step_starts_ns` is an int64 array of
    shape (n_steps,), the starts of the steps that begin in the window; empty if steps are not marked.
    """

    columns: TraceColumns
    window_ns: tuple[int, int]
    ranks: tuple[int, ...]
    inside: Mask
    host: Mask
    calls: Mask
    device: Mask
    thread: int
    busy: Intervals
    step_starts_ns: Times

    @property
    def length_ns(self) -> int:
        """Return the length of the window."""
        return self.window_ns[1] - self.window_ns[0]

    @property
    def steps(self) -> int:
        """Return the number of steps, 1 if steps are not marked."""
        return max(len(self.step_starts_ns), 1)

    @property
    def has_device(self) -> bool:
        """Return whether any device worked in the window."""
        return bool(self.device.any())

    @property
    def meanwhile(self) -> str:
        """Describe why the host's time counts, for a sentence on exposed time."""
        return "while the device has nothing to do" if self.has_device else "with no device to hide it behind"

    def share(self, spent_ns: float) -> float:
        """Return the share of the window that a time is."""
        return spent_ns / self.length_ns

    def named(self, accept: Callable[[str], bool], among: Mask) -> Mask:
        """Mark the events of `among` with an accepted name."""
        return self.columns.named(lambda name: accept(name[:_LOOKED_AT_CHARS])) & among

    def spans(self, events: Mask) -> Intervals:
        """Return when any of some events ran, clipped to the window."""
        start_ns = np.maximum(self.columns.start_ns[events], self.window_ns[0])
        end_ns = np.minimum(self.columns.end_ns[events], self.window_ns[1])
        return merged(start_ns, end_ns)

    def exposed(self, spans: Intervals) -> Intervals:
        """Return the part of `spans` in which the device had nothing to do; all of it without a device."""
        return without(spans, self.busy)

    def idle(self) -> Intervals:
        """Return when the device had nothing to do."""
        window = Intervals(np.array(self.window_ns[:1], np.int64), np.array(self.window_ns[1:], np.int64))
        return without(window, self.busy)

    def occurrence(self, spans: Intervals) -> tuple[int, int] | None:
        """Return (steps with the loss, all steps); None if fewer than two steps are marked.

        A step counts if its loss is at least a tenth of the mean, so that start-up is a loss of one step only.
        """
        if len(self.step_starts_ns) < 2:  # noqa: PLR2004
            return None
        lost_ns = np.diff(measured_before(spans, np.append(self.step_starts_ns, self.window_ns[1])))
        mean_ns = float(lost_ns.mean())
        return int(np.count_nonzero((lost_ns > 0) & (lost_ns >= limits.OCCURS_RATIO.value * mean_ns))), len(lost_ns)

    def per_step(self, spent_ns: float) -> str:
        """Format a time per step if steps are marked, and as a share of the window."""
        step_ns = spent_ns / self.steps
        time = f"{step_ns / 1e6:.1f} ms" if step_ns >= _SMALLEST_NS else f"{step_ns / 1e3:.0f} us"
        each = " a step" if len(self.step_starts_ns) else ""
        return f"{time}{each} ({100 * self.share(spent_ns):.1f} % of the window)"


def view_host(columns: TraceColumns, window_ns: tuple[int, int], *, steps: Steps | None = None) -> HostView:
    """Return the view of a window, ns on the trace's clock.

    `steps` are found in the trace if not given; those that begin in the window count. Raises ValueError for an empty
    window.
    """
    if window_ns[1] <= window_ns[0]:
        raise ValueError(f"window of the host's rules: got {window_ns}, expected a start before its end")
    steps = find_steps(columns) if steps is None else steps
    inside = (columns.start_ns < window_ns[1]) & (columns.end_ns > window_ns[0])
    host = inside & np.isin(columns.category, [columns.category_code(each) for each in HOST_CATEGORIES])
    calls = inside & np.isin(columns.category, [columns.category_code(each) for each in (RUNTIME, DRIVER)])
    device = inside & columns.on_device
    starts_ns = steps.start_ns if steps.source is not StepSource.WHOLE else steps.start_ns[:0]
    return HostView(
        columns=columns,
        window_ns=window_ns,
        ranks=() if columns.metadata.rank == ABSENT else (columns.metadata.rank,),
        inside=inside,
        host=host,
        calls=calls,
        device=device,
        thread=steps.thread,
        busy=merged(
            np.maximum(columns.start_ns[device], window_ns[0]), np.minimum(columns.end_ns[device], window_ns[1])
        ),
        step_starts_ns=starts_ns[(starts_ns >= window_ns[0]) & (starts_ns < window_ns[1])],
    )


def measured_before(spans: Intervals, times_ns: Times) -> NDArray[np.int64]:
    """Return the cumulative measure of a set before each time, ns; its differences are the measure in between."""
    if not len(spans.start_ns):
        return np.zeros(len(times_ns), np.int64)
    total_ns = np.concatenate(([0], np.cumsum(spans.end_ns - spans.start_ns)))
    at = np.searchsorted(spans.start_ns, times_ns, side="right")
    last = np.maximum(at - 1, 0)
    inside = np.clip(times_ns - spans.start_ns[last], 0, spans.end_ns[last] - spans.start_ns[last])
    measured: NDArray[np.int64] = np.where(at > 0, total_ns[last] + inside, 0)
    return measured


def overlap_ns(one: Intervals, other: Intervals) -> int:
    """Return the length of the intersection of both sets, ns."""
    return common(one, other).measure_ns()
