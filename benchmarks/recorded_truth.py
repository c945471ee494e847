# ruff: noqa: N803  (names of arrays end in their shape, see the legend below)
"""What a recorded job lost to its fault, by the kernel's counters of the ranks' training threads (`RankWork`).

It owes nothing to the trace that is evaluated: a rank needs, between two averagings of gradients, what its thread ran,
waited for a core, and slept on purpose; the one that needs most is the one that all others wait for.

Shape suffixes: S recorded steps, R ranks.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.language_job import STEPS
from benchmarks.language_trainers import RANKS

Times = NDArray[np.float64]


def needed_ns(folder: Path) -> Times:
    """Return what each rank needed until each averaging of a recorded step, ns of shape (n_steps, n_ranks)."""
    parts = [json.loads((folder / f"work{rank}.json").read_text()) for rank in range(RANKS)]
    needed = [np.sum([each["on_cpu_ns"], each["queued_ns"], each["slept_ns"]], axis=0) for each in parts]
    return np.column_stack([np.diff(each)[-STEPS:] for each in needed]).astype(np.float64)


def cost_ratio(needed_SR: Times, culprit: int, fault_ns: float) -> float:
    """Return by which part the job would have been shorter without `fault_ns` of the culprit in each step.

    Where another rank needed as long, the fault cost nothing.
    """
    repaired = needed_SR.copy()
    repaired[:, culprit] -= fault_ns
    whole = needed_SR.max(axis=1).sum()
    return float((whole - repaired.max(axis=1).sum()) / whole)


def is_last_in_every_step(needed_SR: Times, rank: int) -> bool:
    """Whether a rank needed more than all others in every recorded step: healthy or not, it was waited for."""
    return bool((needed_SR.argmax(axis=1) == rank).all())
