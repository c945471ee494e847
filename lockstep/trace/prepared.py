"""The common input of all analyses of a trace's time, computed once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import TraceColumns
from lockstep.trace.host_timeline import HostThread, host_threads
from lockstep.trace.launches import launches_of
from lockstep.trace.steps import Steps, find_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTrace:
    """A trace with its steps, its launches (`launches_of`) and what its host threads do (`host_threads`)."""

    columns: TraceColumns
    steps: Steps
    launch: NDArray[np.int64]
    threads: list[HostThread]


def prepare(columns: TraceColumns) -> PreparedTrace:
    """Return the prepared input of `break_down_steps`, `StepAccount` and `PathFinder`."""
    steps = find_steps(columns)
    launch = launches_of(columns)
    threads = host_threads(columns, steps.thread, launch)
    return PreparedTrace(columns=columns, steps=steps, launch=launch, threads=threads)
