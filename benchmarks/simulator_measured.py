"""Measured steps to hold forecasts against: vTrain's table of one A100 node, and steps that papers have published.

The whole tables lie next to the checkout (`SHARED`), a sample of them in the tests' data (`COMMITTED`). Both readers
return jobs in the order of the rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulator_tables import Row, Table, read_table
from lockstep.contracts.errors import ConfigError
from lockstep.simulator.calibration.calibrate import Observation
from lockstep.simulator.hardware.cluster import Cluster
from lockstep.simulator.hardware.clusters import dgx_a100, dgx_h100, dgx_v100
from lockstep.simulator.models.model import HALF_GRADIENTS
from lockstep.simulator.models.transformers import gpt
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule
from lockstep.simulator.strategy.tree import NONE

_ROOT = Path(__file__).resolve().parents[1]
COMMITTED = _ROOT / "tests" / "simulator" / "data"
SHARED = _ROOT.parent / "shared" / "data" / "simulator"
VTRAIN = Path("vtrain") / "ground_truth_single.csv"
PUBLISHED = Path("published_steps.csv")

VTRAIN_ROWS = 1440
VTRAIN_SAMPLE_STEP = 6
"""The committed sample has every so-manieth row of the whole table."""
VTRAIN_NODE: Mapping[str, float] = {
    "matrix_efficiency": 0.8365,
    "memory_efficiency": 0.4502,
    "launch_s": 8.472e-5,
    "link_latency_ratio": 1.544,
    "link_bandwidth_ratio": 0.7106,
}
"""What 50 rows of the fitted half (`halves` with seed 0) together give for vTrain's node, by least absolute error."""

_AT_THE_END = Options(bucket_bytes=None)
"""Megatron and Megatron-DeepSpeed sum gradients after the last backward."""
PUBLISHED_NODES: Mapping[str, Callable[[int], Cluster]] = {"V100": dgx_v100, "A100": dgx_a100, "H100": dgx_h100}
"""Nodes of the published steps by what the name of their GPU holds."""
_VTRAIN_COLUMNS = (
    *("global batch", "micro batch", "hidden size", "attention heads", "# layers", "sequence length"),
    *("tensor parallelism", "data parallelism", "pipeline parallelism"),
)
_PUBLISHED_COLUMNS = ("model", "layers", "hidden", "heads", "seq", "vocab", "gpu", "tp", "pp", "dp", "gbs")
_PUBLISHED_NODES = 384
"""The largest published job; smaller ones take the first of these nodes."""
_MEMORY_EFFICIENCY = 0.8
_LAUNCH_S = 1e-5
PUBLISHED_EFFICIENCY = 0.8969
"""What every second published row gives for an A100's matrix products."""


def read_vtrain(path: Path) -> Table[Observation]:
    """Return vTrain's jobs: GPT under Megatron-DeepSpeed, every replica with the whole optimizer.

    What a step takes besides its micro-batches hardly falls with data parallelism there, so ZeRO was off.

    Raises
    ------
    MalformedError
        As `read_table`.
    """
    return read_table(path, _VTRAIN_COLUMNS, "iteration time ({})", _vtrain_job, optional=())


def _vtrain_job(row: Row, seconds: float) -> Observation:
    tp, dp, pp = (int(row[f"{name} parallelism"]) for name in ("tensor", "data", "pipeline"))
    batch = int(row["global batch"])
    model = gpt(
        layers=int(row["# layers"]),
        hidden=int(row["hidden size"]),
        heads=int(row["attention heads"]),
        sequence=int(row["sequence length"]),
        precision=HALF_GRADIENTS,
    )
    schedule = Schedule(micro_batches=batch // int(row["micro batch"]) // dp)
    tree = preset(model, Degrees(tp=tp, dp=dp, pp=pp), schedule)
    return Observation(tree=tree, batch=batch, seconds=seconds, options=_AT_THE_END)


def read_published(path: Path) -> Mapping[str, Table[Observation]]:
    """Return the published Megatron steps by device (`PUBLISHED_NODES`).

    Those of A100 are Narayanan et al. 2021, table 1, and Korthikanti et al. 2022, table 5. Where a table does not give
    the micro-batch, it is one sequence.

    Raises
    ------
    MalformedError
        As `read_table`.
    """
    optional = ("vp", "cp", "zero_fsdp", "mbs", "recompute", "seq_parallel")
    found = read_table(path, _PUBLISHED_COLUMNS, "step_time_{}", _published_job, optional=optional)
    devices = dict.fromkeys(device for device, _ in found.rows)
    return {
        name: replace(found, rows=[job for device, job in found.rows if device == name])  # type: ignore[misc]
        for name in devices
    }


def _published_job(row: Row, seconds: float) -> tuple[str, Observation]:
    device = next((name for name in PUBLISHED_NODES if name in row["gpu"].upper()), None)
    if device is None:
        raise ConfigError(f"gpu: got {row['gpu']!r}, expected one of {', '.join(PUBLISHED_NODES)}")
    recompute = row.get("recompute") or NONE
    model = gpt(
        layers=int(row["layers"]),
        hidden=int(row["hidden"]),
        heads=int(row["heads"]),
        sequence=int(row["seq"]),
        vocabulary=int(row["vocab"]),
        name=f"{row['model']}, {recompute}",
    )
    degrees = Degrees(
        tp=int(row["tp"]),
        cp=int(row.get("cp") or 1),
        dp=int(row["dp"]),
        pp=int(row["pp"]),
        virtual=int(row.get("vp") or 1),
        zero=int(row.get("zero_fsdp") or 0),
        sequence_parallel=row.get("seq_parallel") == "1",
        recompute=recompute,
    )
    batch = int(row["gbs"])
    schedule = Schedule(micro_batches=batch // degrees.dp // int(row.get("mbs") or 1))
    tree = preset(model, degrees, schedule)
    return device, Observation(tree=tree, batch=batch, seconds=seconds, options=_AT_THE_END)


def published_cluster(nodes: int = _PUBLISHED_NODES, device: str = "A100") -> Cluster:
    """Return the nodes of the published steps, but for the efficiency of matrix products, which is to be fitted.

    The rest is fixed before any row is seen: memory gives the share of its peak that a copy gets on A100, and a launch
    takes what an idle host needs.
    """
    cluster = PUBLISHED_NODES[device](nodes)
    return cluster.with_device(
        matrix_efficiency=1.0,
        memory_efficiency=_MEMORY_EFFICIENCY,
        launch_s=_LAUNCH_S,
    )


def kendall_tau(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return how many more pairs the two orders share than not, as a share of all pairs (tau-a); 1 without pairs."""
    if len(first) == 1:
        return 1.0
    signs = [np.sign(values[:, None] - values[None, :]) for values in (first, second)]
    return float((signs[0] * signs[1]).sum() / (len(first) * (len(first) - 1)))


def halves(rows: Sequence[Observation], seed: int) -> tuple[list[Observation], list[Observation]]:
    """Return the rows to fit and the rows to hold out: every second of them, shuffled."""
    order = np.random.default_rng(seed).permutation(len(rows))
    return [rows[index] for index in order[::2]], [rows[index] for index in order[1::2]]


def held_out_of_sample(rows: Sequence[Observation], seed: int) -> list[Observation]:
    """Return the rows of the committed sample that are in the half of the whole table that is held out."""
    held_out = set(np.random.default_rng(seed).permutation(VTRAIN_ROWS)[1::2].tolist())
    return [row for index, row in enumerate(rows) if index * VTRAIN_SAMPLE_STEP in held_out]


def in_turn(fitted: Sequence[Observation], held_out: Sequence[Observation], count: int) -> list[Observation]:
    """Return `count` of each in turn, as `calibrate` takes them."""
    return [row for pair in zip(fitted[:count], held_out[:count], strict=False) for row in pair]


def predict(rows: Sequence[Observation], cluster: Cluster) -> NDArray[np.float64]:
    """Return the predicted step of each row, in seconds."""
    return np.array([simulate(r.tree, cluster, batch=r.batch, options=r.options).step_seconds for r in rows])


def seconds(rows: Sequence[Observation]) -> NDArray[np.float64]:
    """Return the measured step of each row, in seconds."""
    return np.array([row.seconds for row in rows])
