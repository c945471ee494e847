"""What Lockstep spends on a trace, part by part; run by `trace_bench`.

`peer` does what the peer does: load, breakdown of the device, critical path of one step; and, since it is what all
else stands on, the steps and their breakdown. `all` does what `lockstep analyze` does of a rank: breakdown of every
step, critical path of the whole window, collectives, patterns and the findings of every rule.
"""

import sys
from pathlib import Path

from benchmarks.hta_view import view_device
from benchmarks.trace_parts import Clock
from lockstep.analysis.rank import analyse_rank
from lockstep.trace.columns import TraceColumns
from lockstep.trace.critical_path.path import ranked
from lockstep.trace.critical_path.walk import PathFinder
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.prepared import prepare
from lockstep.trace.step_breakdown import break_down_steps

PEER, ALL = "peer", "all"
STEP = 1
"""The step of the critical path, counted from 0, as of the peer."""
_MAX_BYTES = 4 << 30


def main(work: str, path: Path) -> None:
    """Print the parts."""
    clock = Clock()
    clock.mark("imports")
    columns = load_trace(path, max_bytes=_MAX_BYTES)
    clock.mark("load")
    if work == PEER:
        _as_the_peer(columns, clock)
    else:
        view_device(columns)
        analyse_rank(columns, rank=0)
        clock.mark("analysis")


def _as_the_peer(columns: TraceColumns, clock: Clock) -> None:
    trace = prepare(columns)
    windows = break_down_steps(trace).windows
    view_device(columns)
    clock.mark("breakdown")
    step = min(STEP, len(trace.steps) - 1)
    ranked(PathFinder(trace).find(int(windows.start_ns[step]), int(windows.end_ns[step])))
    clock.mark("critical path")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
