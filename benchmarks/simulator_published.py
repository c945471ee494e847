"""Published runs as jobs, each with the cluster that its source states and nothing fitted.

`published_runs.csv` has one row for each run: what the source states of model, strategy and cluster, the measured step,
the measured peak of memory where it is known, and whether the run ran out of memory. What a row leaves open is what
`lockstep simulate` takes when a user leaves it open; what a set's framework always does is in `simulator_frameworks`.
A run is in the half OPEN or in the half HELD by a hash of its configuration, so that repetitions of one configuration
are in one half; no shipped number is fitted to the half HELD.
"""

import csv
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.simulator_frameworks import FRAMEWORKS, HBM2E_500_W, Framework
from benchmarks.simulator_tables import Row
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.peaks import memory_bytes_per_second, peak_flops_per_second
from lockstep.simulator.calibration.calibrate import Observation
from lockstep.simulator.hardware.cluster import Cluster
from lockstep.simulator.hardware.clusters import dgx_a100, dgx_b200, dgx_h100, dgx_h200, dgx_v100
from lockstep.simulator.models.model import DEEPSPEED_BF16, ModelSpec
from lockstep.simulator.models.transformers import gpt, llama, moe
from lockstep.simulator.simulate import Options
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule
from lockstep.simulator.strategy.tree import FULL, StrategyTree

RUNS = Path("published_runs.csv")
TABLES = Path("framework_tables.csv")
RECIPES = Path("recipe_tables.csv")
"""Tables of frameworks' documents that were added later: no shipped number was chosen with a look at them."""
OPEN, HELD = "open", "held"
NODES: Mapping[str, Callable[..., Cluster]] = {
    "V100": dgx_v100,
    "A100": dgx_a100,
    "H100": dgx_h100,
    "H200": dgx_h200,
    "B200": dgx_b200,
}
_GIGABYTE = 1e9
_MEASURED = ("measured_step_s", "measured_memory_gb", "out_of_memory", "source", "note")
_COLUMNS = (
    *("set", "device", "n_gpus", "gpus_per_node", "inter_gbit_per_node", "model", "layers", "hidden", "heads"),
    *("sequence", "vocabulary", "precision", "tp", "pp", "virtual", "dp", "cp", "zero", "micro_batch"),
    *("global_batch", "recompute", *_MEASURED),
)
_OWN_STAGE_LAYERS = "embedding and head are layers of their own"
_RECOMPUTED: Mapping[str, tuple[str, ...]] = {
    "recomputes norms and activations": ("norm1", "norm2", "expert_gate"),
    "recomputes norms and experts": ("norm1", "norm2", "router", "expert1", "expert_gate", "expert2", "combine"),
}
"""`--recompute-modules moe_act layernorm`, "norm, act" in the source's table, and `layernorm moe`."""
_SIZES = re.compile(r"(?P<before>\d+) (?P<what>kv heads|experts|chosen)|(?P<name>ffn|head dim|ep) (?P<after>\d+)")
"""Sizes in the column `model` that no column of their own holds."""
_UNGATED = "no gate"
_HEAD_NORM = "Qwen3"
"""Models of this name normalize queries and keys (`--qk-layernorm`, Megatron-MoE-ModelZoo's Qwen3-235B-A22B.yaml)."""
_FSDP_STAGE = 3
_HYBRID = "HYBRID_SHARD"


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
    framework = FRAMEWORKS.get(f"{row['set']}: {row['note'].partition(';')[0]}") or FRAMEWORKS[row["set"]]
    model = _model(row, framework)
    sizes = _sizes(row["model"])
    degrees = Degrees(
        **{name: int(row[name]) for name in ("tp", "cp", "dp", "pp")},
        ep=sizes.get("ep", 1),
        expert_tp=framework.expert_tp if "ep" in sizes else None,
        virtual=framework.virtual or int(row["virtual"]),
        zero=_zero_stage(row["zero"]) if row["zero"] else framework.zero,
        hsdp_replicas=int(row["n_gpus"]) // int(row["gpus_per_node"]) if row["zero"] == _HYBRID else 1,
        sequence_parallel=framework.sequence_parallel and int(row["tp"]) > 1,
        recompute=_recompute(row["recompute"], framework),
    )
    batch, micro_batch = int(row["global_batch"]), int(row["micro_batch"] or 1)
    if framework.micro_batches_of_stages and degrees.pp > 1:
        micro_batch = batch // degrees.dp // degrees.pp
    schedule = Schedule(micro_batches=batch // degrees.dp // micro_batch)
    tree = preset(model, degrees, schedule)
    for note, names in _RECOMPUTED.items():
        for leaf in tree.root.find("*") if note in row["note"] else ():
            if leaf.name in names:
                leaf.recompute(FULL)
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
            bucket_bytes=_bucket_bytes(framework, degrees),
            gradient_buffer_bytes=framework.gradient_buffer_bytes,
            live_parameters=framework.live_parameters,
            copied_gather_bytes_per_second=framework.copied_gather_bytes_per_second
            if degrees.zero == _FSDP_STAGE
            else None,
            backward_prefetch=framework.backward_prefetch,
            zero_copy=framework.zero_copy,
            overlap_tensor=framework.overlap_tensor,
            late_tensor_sums=framework.late_tensor_sums,
            overlap_experts=framework.overlap_experts,
            exchange_multiprocessors=framework.exchange_multiprocessors,
            algorithms=framework.algorithms,
            overlap_returns=framework.overlap_returns,
            context=framework.context,
        ),
        cluster=_cluster(row, device, framework, degrees),
        peak_flops=peak_flops_per_second(NODES_NAME[device], row["precision"].partition(",")[0].split()[0]) or 0.0,
        gpus=int(row["n_gpus"]),
        seconds=float(row["measured_step_s"]) if row["measured_step_s"] else None,
        memory_bytes=float(row["measured_memory_gb"]) * _GIGABYTE if row["measured_memory_gb"] else None,
        out_of_memory=row["out_of_memory"] == "1",
        model_key=tuple(row[name] for name in ("set", "device", "layers", "hidden", "heads", "sequence", "n_gpus")),
        job_key=tuple(value for name, value in configuration.items() if name != "micro_batch"),
    )


NODES_NAME: Mapping[str, str] = {
    "V100": "V100-SXM2-32GB",
    "A100": "A100-SXM4-80GB",
    "H100": "H100 80GB HBM3",
    "H200": "H200",
    "B200": "B200",
}


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
    return _FSDP_STAGE if text in ("FULL_SHARD", _HYBRID) else int(text or 0)


def _recompute(text: str, framework: Framework) -> str:
    stated = "per_operator" if text == "selective per op" else text or "none"
    return framework.recompute if stated == "none" else stated


def _sizes(text: str) -> dict[str, int]:
    """Return the sizes that a model's name holds, by the names of the models' arguments."""
    found = {(each["what"] or each["name"]): int(each["before"] or each["after"]) for each in _SIZES.finditer(text)}
    return {name.replace(" ", "_"): size for name, size in found.items()}


def _model(row: Row, framework: Framework) -> ModelSpec:
    sizes: dict[str, Any] = {name: int(row[name]) for name in ("layers", "hidden", "heads", "sequence", "vocabulary")}
    precision = DEEPSPEED_BF16 if row["precision"] == "bf16 optimizer" else framework.precision
    if row["precision"].startswith("fp8"):
        precision = replace(precision, product=1)
    own = _sizes(row["model"])
    own.pop("ep", None)
    if own:
        if "experts" in own:
            return moe(
                **sizes,
                **own,
                head_norm=_HEAD_NORM in row["model"],
                fused_loss=framework.fused_loss,
                padded_tokens=framework.padded_tokens and precision.product == 1,
                graphed_router=framework.graphed_router,
                separate_experts=framework.separate_experts,
                precision=precision,
            )
        return llama(
            **sizes,
            **own,
            gate=_UNGATED not in row["model"],
            precision=precision,
            eager=framework.compiles and "compiled" not in row["precision"],
            matrix_rotations=framework.matrix_rotations,
        )
    return gpt(
        **sizes,
        fused_attention=framework.fused_attention,
        fused_loss=framework.fused_loss,
        loss_metrics=framework.loss_metrics,
        dropout=framework.dropout,
        precision=precision,
    )


def _bucket_bytes(framework: Framework, degrees: Degrees) -> float | None:
    if framework.bucket_parameters is None or degrees.zero == _FSDP_STAGE:
        return framework.bucket_bytes
    return framework.bucket_parameters(degrees.dp * degrees.cp) * framework.precision.sent_gradient


def _cluster(row: Row, device: str, framework: Framework, degrees: Degrees) -> Cluster:
    """Return the preset with the network that the source states; the preset's where it states none."""
    nodes = -(-int(row["n_gpus"]) // int(row["gpus_per_node"]))
    network = row["inter_gbit_per_node"]
    cluster = NODES[device](nodes, float(network) * framework.network_share) if network else NODES[device](nodes)
    cluster = cluster.with_device(**framework.machine)
    if framework.sharded_overlap_factor is not None and degrees.zero == _FSDP_STAGE:
        cluster = cluster.with_device(overlap_factor=framework.sharded_overlap_factor)
    if "40GB" in row["device"]:
        memory = memory_bytes_per_second("A100-SXM4-40GB")
        cluster = cluster.with_device(memory_bytes=40 * 2**30, memory_bytes_per_second=memory)
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
