"""Records what HolisticTraceAnalysis finds in the recordings, for `comparison.py` to compare with.

    python -m venv venv && venv/bin/pip install HolisticTraceAnalysis==0.5.0 "pandas<3"
    venv/bin/python tests/trace/hta/record.py ../shared/data/traces tests/trace/hta/expected.json

HTA runs as its users run it but for two settings: no rounding of ns to us (HTA_DISABLE_NS_ROUNDING=1) and the last step
kept (include_last_profiler_step), both of which otherwise lose time that is there. pandas 3 breaks its critical path.
"""

import json
import logging
import math
import os
import sys
from pathlib import Path
from typing import Any

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # read when HTA is imported

from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

TRACES = {
    "benchmark": "hta/benchmark_result_2869224_1695835535_trace.json.gz",
    "nccl": "hta/nccl_data.json.gz",
    "control": "hta/control.json.gz",
    "difftest": "hta/test.json.gz",
    "ns_resolution": "hta/ns_resolution.json.gz",
    "sampled_rank_0": "hta/sampled_rank-0.json.gz",
    "sampled_rank_1": "hta/sampled_rank-1.json.gz",
    "resnet50_workers_0": "kineto/resnet50_num_workers_0.worker0.1623143566756.pt.trace.json.gz",
    "resnet50_workers_4": "kineto/resnet50_num_workers_4.worker0.1623213129365.pt.trace.json.gz",
    "mi300": "tracelens/mi300_resnet_act_checkpoint.json.gz",
    "h100_qwen": "tracelens/h100_qwen.json.gz",
}
CRITICAL_PATH_OF = {"nccl": 1, "ns_resolution": 1}
"""Which step, counted from 0; on the other recordings HTA 0.5.0 fails or has no annotation to begin with."""


def main(traces: str, target: str) -> None:
    """Write the figures of all recordings to `target`."""
    logging.disable(logging.WARNING)
    figures = {name: _figures(Path(traces) / path, CRITICAL_PATH_OF.get(name)) for name, path in TRACES.items()}
    for name, path in TRACES.items():
        figures[name]["path"] = path
    Path(target).write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")


def _figures(path: Path, step: int | None) -> dict[str, Any]:
    analysis = TraceAnalysis(
        trace_files={0: str(path.resolve())}, trace_dir=str(path.parent), include_last_profiler_step=True
    )
    temporal = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
    kinds, _ = analysis.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
    frame = analysis.t.get_trace(0)
    percent = float(overlap["comp_comm_overlap_pctg"])
    found: dict[str, Any] = {
        "device_events": int(frame["stream"].ne(-1).sum()),
        "idle_us": round(float(temporal["idle_time(us)"]), 3),
        "compute_us": round(float(temporal["compute_time(us)"]), 3),
        "non_compute_us": round(float(temporal["non_compute_time(us)"]), 3),
        "kernel_us": round(float(temporal["kernel_time(us)"]), 3),
        "overlap_percent": None if math.isnan(percent) else percent,
        "kernel_type_us": {row["kernel_type"]: round(float(row["sum"]), 3) for _, row in kinds.iterrows()},
    }
    if step is not None:
        graph, _ = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=step)
        by_kind = graph.get_critical_path_breakdown().groupby("bound_by")["duration"].sum()
        found["critical_path"] = {
            "step": step,
            "us": {str(kind): round(float(us), 3) for kind, us in by_kind.items() if us},
        }
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
