# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""Recordings of real jobs, with slowness put on each rank in turn.

The recordings are of four training processes that share two cores (`tests/coordinator/data`): the noisiest job that is
healthy, far from a cluster's. What a rank is slowed by lengthens the step by what it then arrives later than the last
one, and all others wait for it. Traces outside the checkout are counted too, but a trace of a few steps is shorter
than any detector's warm-up, and its name is printed instead of a figure.

Shapes: W steps, R ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.anomalies import SLOW_RANK
from coordinator.record.backtest import backtest, topology_of
from coordinator.record.steplog import StepLog
from coordinator.settings.policy import Policy
from lockstep.trace.kineto.load import load_trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROOT = Path(__file__).parents[2]
RECORDINGS = _ROOT / "tests" / "coordinator" / "data"
TRACES = _ROOT.parent / "shared" / "data" / "traces"
RATIOS = (0.05, 0.2, 1.0, 2.0)
_BEGIN_SHARE = 0.5  # of the recording is left healthy: noise must be learnt first
_EPOCH_NS = 1_785_000_000_000_000_000
_US = 1000


@dataclass(frozen=True)
class Injected:
    """What was reported of a recording in which `rank` is slow by `ratio` from step `begin` on."""

    rank: int
    ratio: float
    begin: int
    found_at: int | None
    wrong: int


def recordings() -> Iterator[tuple[str, "NDArray[np.int64]"]]:
    """Yield name and values of the healthy recordings: column 0 the step, then each rank's own work, us."""
    for file in sorted(RECORDINGS.glob("healthy-*.csv")):
        yield file.stem, np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.int64)


def slowed(values: "NDArray[np.int64]", rank: int, ratio: float, begin: int) -> StepLog:
    """Return the step log of a recording in which one rank's own work is longer by `ratio` of its median."""
    step_W, own = values[:, 0] * _US, values[:, 1:] * _US
    # The account of the recording is exact, except where the trainer's clock and the step's overlap by microseconds.
    step_W = np.maximum(step_W, own.max(axis=1))
    transfer_W = step_W - own.max(axis=1)
    own = own.copy()
    own[begin:, rank] += int(ratio * np.median(own[:begin, rank]))
    duration_W = own.max(axis=1) + transfer_W
    steps, ranks = own.shape
    end_W = _EPOCH_NS + np.cumsum(duration_W)
    columns = {
        "rank": np.tile(np.arange(ranks), steps),
        "step": np.repeat(np.arange(steps), ranks),
        "start_ns": np.repeat(end_W - duration_W, ranks),
        "duration_ns": np.repeat(duration_W, ranks),
        "compute_ns": own.ravel(),
        "dp_wait_ns": (duration_W[:, None] - own).ravel(),
        **{name: np.zeros(own.size, dtype=np.int64) for name in ("host_ns", "data_ns", "gc_ns")},
    }
    return StepLog("recorded", columns)


def inject(values: "NDArray[np.int64]", rank: int, ratio: float) -> Injected:
    """Return what is reported when one rank of a recording is slowed in its second part."""
    begin = int(len(values) * _BEGIN_SHARE)
    ranks = values.shape[1] - 1
    replayed = backtest(slowed(values, rank, ratio, begin), topology_of(ranks, f"dp={ranks}"), Policy())
    found, wrong = None, 0
    for incident in replayed.incidents.values():
        right = incident.kind == SLOW_RANK and rank in incident.ranks and incident.detected_step >= begin
        wrong += len(incident.ranks) - right if incident.kind == SLOW_RANK else incident.detected_step < begin
        if right and found is None:
            found = incident.detected_step
    return Injected(rank, ratio, begin, found, wrong)


def trace_folders() -> Iterator[tuple[str, int, int]]:
    """Yield name, ranks and optimizer steps of every folder that holds the traces of several ranks of one job."""
    folders = sorted({file.parent for file in TRACES.rglob("rank*.json.gz")}) if TRACES.is_dir() else []
    for folder in folders:
        files = sorted(folder.glob("rank*.json.gz"))
        columns = load_trace(files[0])
        steps = int(columns.named(lambda name: name.startswith("Optimizer.step")).sum())
        yield str(folder.relative_to(TRACES)), len(files), steps


def print_all() -> None:
    """Score all recordings and print a row each: ranks found at each ratio, steps until then, wrong ranks."""
    print(f"{'recording, every rank in turn':<36}" + "".join(f"{f'+{ratio:.0%}':>22}" for ratio in RATIOS))
    for name, values in recordings():
        cells = []
        for ratio in RATIOS:
            runs = [inject(values, rank, ratio) for rank in range(values.shape[1] - 1)]
            after = [run.found_at - run.begin + 1 for run in runs if run.found_at is not None]
            p50 = f"{np.median(after):.0f}" if after else "-"
            cells.append(f"{f'{len(after)}/{len(runs)} p50 {p50} wrong {sum(r.wrong for r in runs)}':>22}")
        print(f"{name + f', {len(values)} steps':<36}" + "".join(cells), flush=True)
    if not TRACES.is_dir():
        print("traces outside the checkout: absent, left out")
    warm_up = Policy().excess.warm_up_steps
    for name, ranks, steps in trace_folders():
        print(f"{name}: {ranks} ranks, {steps} steps, shorter than a warm-up of {warm_up}: nothing to score")
