"""Published runs as jobs, each with the cluster that its source states and nothing fitted.

`published_runs.csv` has one row for each run: what the source states of model, strategy and cluster, the measured step,
the measured peak of memory where it is known, and whether the run ran out of memory. What a row leaves open is what
`lockstep simulate` takes when a user leaves it open; what the framework of a set always does is in `_FRAMEWORKS`.
A run is in the half OPEN or in the half HELD by a hash of its configuration, so that repetitions of one configuration
are in one half; no shipped number is fitted to the half HELD.
"""

import csv
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.simulator_tables import Row
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.peaks import peak_flops_per_second
from lockstep.simulator.calibration.calibrate import Observation
from lockstep.simulator.hardware.cluster import AttentionSpeed, Cluster
from lockstep.simulator.hardware.clusters import dgx_a100, dgx_h100, dgx_v100
from lockstep.simulator.models.model import DEEPSPEED_BF16, DEEPSPEED_FP16, FSDP, MIXED, ModelSpec, Precision
from lockstep.simulator.models.transformers import gpt, llama
from lockstep.simulator.simulate import DDP_BUCKET_BYTES, Options
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule
from lockstep.simulator.strategy.tree import StrategyTree

RUNS = Path("published_runs.csv")
OPEN, HELD = "open", "held"
NODES: Mapping[str, Callable[..., Cluster]] = {"V100": dgx_v100, "A100": dgx_a100, "H100": dgx_h100}
_GIGABYTE = 1e9
_MEASURED = ("measured_step_s", "measured_memory_gb", "out_of_memory", "source", "note")
_COLUMNS = (
    *("set", "device", "n_gpus", "gpus_per_node", "inter_gbit_per_node", "model", "layers", "hidden", "heads"),
    *("sequence", "vocabulary", "precision", "tp", "pp", "virtual", "dp", "cp", "zero", "micro_batch"),
    *("global_batch", "recompute", *_MEASURED),
)
_OWN_STAGE_LAYERS = "embedding and head are layers of their own"
_GROUPED = re.compile(r"(\d+) kv heads, ffn (\d+)")
_FSDP_STAGE = 3
HBM2E_500_W: Mapping[str, Any] = {
    "memory_bytes": 96e9,
    "memory_bytes_per_second": 2.4e12,
    "flops_per_second": (989.5e12 + 835.5e12) / 2,
    "fp8_flops_per_second": (1979e12 + 1670.5e12) / 2,
    "matrix_efficiency": 0.632,
    "fp8_share": 0.94,
    "attention": AttentionSpeed(forward=0.83 * 284e12, backward=0.83 * 287e12),
}
"""torchtitan's H100, as its documents state them: memory, 500 W instead of 700, and an unknown peak between those of
SXM and NVL. The largest products of the same company's "H100 500W" reach 575 TFLOP/s in bf16 and 1,083 in FP8, 83 % of
what they reach at 700 W (pytorch/FBGEMM, pull request 2546; tests/simulator/data/operators.csv); fused attention is
taken to lose as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What the software of a set does in every run: sums of gradients, attention, and what its optimizer keeps.

    `zero` is the stage where the row leaves it open, `live_parameters` and `copied_gather_bytes_per_second` hold for
    ZeRO 3, `virtual` replaces the row's number of chunks. Software that `fills_stages` gives each stage as many layers
    as the fullest needs and the last what is left. `machine` is what the source states of the devices, and
    `network_share` what it measures of its network over what the preset takes it to reach.
    """

    bucket_bytes: float | None
    fused_attention: bool
    sequence_parallel: bool = False
    precision: Precision = MIXED
    gradient_buffer_bytes: float = 0.0
    live_parameters: float | None = None
    overlap_tensor: bool = False
    overlap_returns: bool = False
    zero: int = 0
    virtual: int | None = None
    copied_gather_bytes_per_second: float | None = None
    fills_stages: bool = False
    machine: Mapping[str, float | bool] = field(default_factory=dict)
    network_share: float = 1.0


_DEEPSPEED_2021_COPIES = 1 / (1 / (10.2e9 / 0.41) - 1 / 229e9)
"""Bytes a second: the forward pass of 5.1e9 parameters took 470 ms with ZeRO 3 and 60 ms with ZeRO 2 on a node of A100,
whose NVLink gathers 229 GB/s: "each all_gather calls torch.cuda.synchronize()" and "has explicit memcpy" (DeepSpeed,
issue 1174 and pull request 1188 of June 2021)."""
_AT_THE_END = Framework(bucket_bytes=None, fused_attention=False)  # Megatron-LM and Megatron-DeepSpeed before 2023
_FRAMEWORKS: Mapping[str, Framework] = {
    "bigscience": Framework(
        bucket_bytes=None,
        fused_attention=False,
        precision=DEEPSPEED_FP16,
        gradient_buffer_bytes=2
        * 500_000_000
        * 2,  # DeepSpeed's reduce_bucket_size at half, one filling, one on its way
        fills_stages=True,  # "78/12=6.5 - so the last stage has 1 block, while the rest have 7" (chronicles-prequel.md)
        machine={"launch_blocking": True},  # CUDA_LAUNCH_BLOCKING=1, "do not remove or the training will hang"
        network_share=39.9 / 100 / 0.94,  # one card of 100 Gbit/s (experiments/bandwidth/n4_a100_all_reduce_bench.txt)
    ),
    "vtrain-multi": _AT_THE_END,
    "Narayanan et al. SC21 Table 2": Framework(
        bucket_bytes=None,
        fused_attention=False,
        live_parameters=1e9,  # DeepSpeed's stage3_max_live_parameters
        copied_gather_bytes_per_second=_DEEPSPEED_2021_COPIES,
    ),
    "MegaScale NSDI24 Table 2": Framework(bucket_bytes=None, fused_attention=True, sequence_parallel=True),
    "MegaScale NSDI24 Table 2: MegaScale": Framework(
        bucket_bytes=DDP_BUCKET_BYTES,
        fused_attention=True,
        sequence_parallel=True,
        overlap_tensor=True,
        overlap_returns=True,
    ),  # section 3.2: communication of all three sorts of parallelism is overlapped
    "Megatron-Core README model table": Framework(
        bucket_bytes=DDP_BUCKET_BYTES,
        fused_attention=True,
        sequence_parallel=True,
        overlap_tensor=True,
        overlap_returns=True,
    ),  # "all comm overlap flags on"
    "MLPerf Training v3.1 NVIDIA EOS GPT-3": Framework(
        bucket_bytes=DDP_BUCKET_BYTES,
        fused_attention=True,
        sequence_parallel=True,
        zero=1,  # NeMo's distributed_fused_adam
        virtual=12,  # mlcommons/training_results_v3.1: INTERLEAVED_PIPELINE is 12 unless set, TP_COMM_OVERLAP is True
        overlap_tensor=True,
    ),
    "mosaicml/llm-foundry training benchmarks": Framework(
        bucket_bytes=DDP_BUCKET_BYTES, fused_attention=True, precision=FSDP
    ),
    "torchtitan: from 128 tokens/s a device": Framework(
        bucket_bytes=DDP_BUCKET_BYTES, fused_attention=True, sequence_parallel=True, precision=FSDP, overlap_tensor=True
    ),  # AsyncTP (pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 5)
    "torchtitan": Framework(
        bucket_bytes=DDP_BUCKET_BYTES, fused_attention=True, sequence_parallel=True, precision=FSDP
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One published run.

    `model_key` is equal for runs of one model, `job_key` for those that differ in the micro-batch only; `peak_flops` is
    the data sheet's for the number format of the run's matrix products. `seconds` is None for a run that ran out of
    memory, `memory_bytes` where the source gives no peak.
    """

    set_name: str
    half: str
    device: str
    tree: StrategyTree
    batch: int
    micro_batch: int
    options: Options
    cluster: Cluster
    peak_flops: float
    gpus: int
    seconds: float | None
    memory_bytes: float | None
    out_of_memory: bool
    model_key: tuple[object, ...]
    job_key: tuple[object, ...]

    @property
    def observation(self) -> Observation:
        """The run as `calibrate` takes it; it has a measured step."""
        assert self.seconds is not None
        return Observation(tree=self.tree, batch=self.batch, seconds=self.seconds, options=self.options)

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return len({block.mesh for block in self.tree.root.children.values()})

    @property
    def chunks(self) -> int:
        """The number of chunks of the model on each stage."""
        meshes = [block.mesh for block in self.tree.root.children.values()]
        changes = 1 + sum(here != there for here, there in pairwise(meshes))
        return changes // self.stages

    @property
    def described(self) -> str:
        """The run in a line."""
        mesh = next(iter(self.tree.root.children.values())).mesh
        assert mesh is not None
        degrees = " ".join(f"{axis.name}{axis.size}" for axis in mesh.axes if axis.size > 1)
        return f"{' '.join(map(str, self.model_key[2:]))} {degrees} pp{self.stages} b{self.batch}/{self.micro_batch}"


def read_runs(path: Path) -> Sequence[Run]:
    """Return the runs of `path` in order, exact repetitions once.

    Raises
    ------
    MalformedError
        A column is missing, or a row cannot be read; names the line.
    """
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise MalformedError("columns", where=path.name, got=reader.fieldnames, expected=", ".join(missing))
        rows = {tuple(row.values()): (reader.line_num, row) for row in reader}
    return [_run(row, f"{path.name}, line {number}") for number, row in rows.values()]


def _run(row: Row, where: str) -> Run:
    try:
        return _read(row)
    except (ValueError, KeyError, StopIteration) as error:
        raise MalformedError("run", where=where, got=error, expected="a run in every column") from error


def _read(row: Row) -> Run:
    framework = _FRAMEWORKS.get(f"{row['set']}: {row['note'].partition(';')[0]}") or _FRAMEWORKS[row["set"]]
    model = _model(row, framework)
    degrees = Degrees(
        **{name: int(row[name]) for name in ("tp", "cp", "dp", "pp")},
        virtual=framework.virtual or int(row["virtual"]),
        zero=_zero_stage(row["zero"]) if row["zero"] else framework.zero,
        sequence_parallel=framework.sequence_parallel and int(row["tp"]) > 1,
        recompute=_recompute(row["recompute"]),
    )
    batch, micro_batch = int(row["global_batch"]), int(row["micro_batch"] or 1)
    schedule = Schedule(micro_batches=batch // degrees.dp // micro_batch)
    tree = preset(model, degrees, schedule)
    if framework.fills_stages:
        _fill_stages(tree, degrees, ends=_OWN_STAGE_LAYERS in row["note"])
    device = next(name for name in NODES if name in row["device"])
    configuration = {name: row[name] for name in _COLUMNS if name not in _MEASURED}
    return Run(
        set_name=row["set"],
        half=half_of(configuration.values()),
        device=device,
        tree=tree,
        batch=batch,
        micro_batch=micro_batch,
        options=Options(
            bucket_bytes=framework.bucket_bytes,
            gradient_buffer_bytes=framework.gradient_buffer_bytes,
            live_parameters=framework.live_parameters,
            copied_gather_bytes_per_second=framework.copied_gather_bytes_per_second
            if degrees.zero == _FSDP_STAGE
            else None,
            overlap_tensor=framework.overlap_tensor,
            overlap_returns=framework.overlap_returns,
        ),
        cluster=_cluster(row, device, framework),
        peak_flops=peak_flops_per_second(NODES_NAME[device], row["precision"].partition(",")[0].split()[0]) or 0.0,
        gpus=int(row["n_gpus"]),
        seconds=float(row["measured_step_s"]) if row["measured_step_s"] else None,
        memory_bytes=float(row["measured_memory_gb"]) * _GIGABYTE if row["measured_memory_gb"] else None,
        out_of_memory=row["out_of_memory"] == "1",
        model_key=tuple(row[name] for name in ("set", "device", "layers", "hidden", "heads", "sequence", "n_gpus")),
        job_key=tuple(value for name, value in configuration.items() if name != "micro_batch"),
    )


NODES_NAME: Mapping[str, str] = {"V100": "V100-SXM2-32GB", "A100": "A100-SXM4-80GB", "H100": "H100 80GB HBM3"}


def run_of(observation: Observation, cluster: Cluster, device: str, set_name: str) -> Run:
    """Return a measured job of another table as a run on `cluster`, its half chosen in the same way."""
    tree = observation.tree
    meshes = list(dict.fromkeys(block.mesh for block in tree.root.children.values()))
    schedule = tree.root.order or Schedule()
    degrees = meshes[0].axes if meshes[0] else ()
    job = (set_name, tree.model.name, tree.model.flops_per_sample, degrees, len(meshes), observation.batch)
    replicas = meshes[0].degree("dp") if meshes[0] else 1
    recomputation = tree.root.recomputation
    return Run(
        set_name=set_name,
        half=half_of((*job, schedule.micro_batches, recomputation)),
        device=device,
        tree=tree,
        batch=observation.batch,
        micro_batch=observation.batch // schedule.micro_batches // replicas,
        options=observation.options,
        cluster=cluster,
        peak_flops=peak_flops_per_second(NODES_NAME[device], "fp16") or 0.0,
        gpus=sum(len(mesh) for mesh in meshes if mesh),
        seconds=observation.seconds,
        memory_bytes=None,
        out_of_memory=False,
        model_key=(set_name, tree.model.name, tree.model.flops_per_sample, len(tree.model.blocks)),
        job_key=(*job, recomputation),
    )


def half_of(configuration: Iterable[object]) -> str:
    """Return the half of a run by the SHA-256 of its configuration: the parity of the first byte."""
    text = "\n".join(map(str, configuration))
    return HELD if hashlib.sha256(text.encode()).digest()[0] % 2 else OPEN


def _zero_stage(text: str) -> int:
    return _FSDP_STAGE if text == "FULL_SHARD" else int(text or 0)


def _recompute(text: str) -> str:
    return "per_operator" if text == "selective per op" else text or "none"


def _model(row: Row, framework: Framework) -> ModelSpec:
    sizes: dict[str, Any] = {name: int(row[name]) for name in ("layers", "hidden", "heads", "sequence", "vocabulary")}
    precision = DEEPSPEED_BF16 if row["precision"] == "bf16 optimizer" else framework.precision
    if row["precision"].startswith("fp8"):
        precision = replace(precision, product=1)
    grouped = _GROUPED.search(row["model"])
    if grouped:
        return llama(**sizes, kv_heads=int(grouped[1]), ffn=int(grouped[2]), precision=precision)
    return gpt(**sizes, fused_attention=framework.fused_attention, precision=precision)


def _cluster(row: Row, device: str, framework: Framework) -> Cluster:
    """Return the preset with the network that the source states; the preset's where it states none."""
    nodes = -(-int(row["n_gpus"]) // int(row["gpus_per_node"]))
    network = row["inter_gbit_per_node"]
    cluster = NODES[device](nodes, float(network) * framework.network_share) if network else NODES[device](nodes)
    cluster = cluster.with_device(**framework.machine)
    if "40GB" in row["device"]:
        cluster = cluster.with_device(memory_bytes=40 * 2**30, memory_bytes_per_second=1555e9)  # A100 40GB data sheet
    return cluster.with_device(**HBM2E_500_W) if "HBM2e" in row["device"] else cluster


def _fill_stages(tree: StrategyTree, degrees: Degrees, *, ends: bool) -> None:
    """Fill stage after stage with layers, as DeepSpeed does; embedding and head count as layers if `ends`."""
    blocks = list(tree.root.children.values())
    meshes = list(dict.fromkeys(block.mesh for block in blocks))
    counted = blocks if ends else blocks[1:-1]
    size = ceil(len(counted) / degrees.pp)
    for index, block in enumerate(counted):
        mesh = meshes[index // size]
        assert mesh is not None
        block.map(mesh)
