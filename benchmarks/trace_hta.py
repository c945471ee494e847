"""What HolisticTraceAnalysis spends on a trace, part by part; run by `trace_bench` in an environment that has it.

As its users call it, with the last step kept. The critical path comes last, for it fails on some traces.
"""

import logging
import sys
from pathlib import Path

from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

from benchmarks.trace_parts import Clock

STEP = 1
"""The step of the critical path, counted from 0: the first one is partial in many recordings."""


def main(path: Path) -> None:
    """Print the parts."""
    clock = Clock()
    logging.disable(logging.WARNING)
    clock.mark("imports")
    analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent), include_last_profiler_step=True)
    clock.mark("load")
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
    clock.mark("breakdown")
    graph, _ = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=STEP)
    graph.get_critical_path_breakdown()
    clock.mark("critical path")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
