"""Where the Ascend recordings are: those of the repository, and the larger ones next to the checkout."""

from pathlib import Path

DATA = Path(__file__).parent / "data"
RANK = DATA / "rank0_ascend_pt"
OUTPUT = RANK / "ASCEND_PROFILER_OUTPUT"
CLUSTER = DATA / "cluster_analysis_output"
TABLES = DATA / "tables"
SHARED = Path(__file__).parents[4] / "shared" / "data" / "ascend"
SHARED_RANKS = sorted(
    each.parent for each in SHARED.rglob("step_trace_time.csv") if (each.parent / "trace_view.json").is_file()
)
"""Ranks with the vendor's step times and everything that they come from."""
