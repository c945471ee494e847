"""HTA's figures, and ours next to them."""

import json
from pathlib import Path

import numpy as np

from benchmarks.hta_view import name_of

HERE = Path(__file__).parent
CARRIED = HERE / "benchmark_alexnet.json.gz"
EXPECTED = json.loads((HERE / "expected.json").read_text())


def ns(us):
    """Return HTA's us, to which it has written three decimals, in ns."""
    return round(us * 1000)


def same_figures(view, expected, *, within_ns=1):
    """Assert HTA's temporal breakdown and overlap, to the last digit that it prints."""
    figures = {
        "kernel_us": view.window_ns,
        "idle_us": view.idle_ns,
        "compute_us": view.compute_ns,
        "non_compute_us": view.non_compute_ns,
    }
    for key, ours_ns in figures.items():
        assert abs(ours_ns - ns(expected[key])) <= within_ns, key
    percent = None if view.overlap_ratio is None else round(100 * view.overlap_ratio, 2)
    assert percent == expected["overlap_percent"]


def cut_to_us(pieces):
    """Return us by combination of types as HTA adds them up: it cuts each piece to whole us first."""
    us = np.diff(pieces.edges_ns) // 1000
    totals = np.bincount(pieces.state, us, 8).astype(int).tolist()
    return {name_of(state): total for state, total in enumerate(totals) if state and total}


def types_of(expected):
    """Return HTA's kernel breakdown without the combinations that lasted no time."""
    return {name: us for name, us in expected["kernel_type_us"].items() if us}
