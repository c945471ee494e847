"""The fields of a specification that describe the strategy: degrees, schedule, memory, overlaps and overrides."""

from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.simulator.hardware.collectives import KINDS, SEND, algorithms
from lockstep.simulator.lowering.context import EXCHANGES, GATHER, HALVES, SPLITS
from lockstep.simulator.lowering.program import DDP_BUCKET_BYTES
from lockstep.simulator.spec.field import (
    BLOCKS_MAX,
    NAMES,
    NOTHING,
    Field,
    amount,
    choice,
    count,
    flag,
    mapping,
    optional,
    optional_count,
    section,
    sections,
    text,
)
from lockstep.simulator.strategy.schedule import ORDERS
from lockstep.simulator.strategy.tree import FULL as RECOMPUTE_ALL
from lockstep.simulator.strategy.tree import MEMORY_ITEMS, NONE, PER_OPERATOR, SELECTIVE

_MICRO_BATCHES_MAX = 65_536

_SCHEDULE = {
    "micro_batches": count("micro-batches of a step", _MICRO_BATCHES_MAX, 1),
    "schedule": choice("order of forward and backward passes", ORDERS, ORDERS[0]),
    "max_ongoing": optional_count(
        "maximum of micro-batches between forward and backward; the schedule's own if null", _MICRO_BATCHES_MAX
    ),
}
_RECOMPUTE = choice(
    "what backward computes again instead of storing it: `selective` the core of attention that is not fused, "
    "`per_operator` all of a layer except the results of fused attention and of every second product (torchtitan), "
    "`full` the layers",
    (NONE, SELECTIVE, PER_OPERATOR, RECOMPUTE_ALL),
    NONE,
)
_AXES = Field(kind=NAMES, help="mesh axes: tp, cp, ep, dp")
OVERRIDE = {
    "node": text(
        "path of the node: names joined by dots, each a shell pattern, e.g. `layer*.fc1`, `head`; `.` is the root",
    ),
    "split": mapping(
        "maps a dimension (b, s, h, o, a, e, v, ...) to the mesh axes over which it is split; `replicate` undoes a "
        "split",
        "dimension",
        _AXES,
    ),
    "keep": section(
        "mesh axes over which an item is sharded",
        {item: optional(Field(kind=NAMES, help=f"axes over which each {item} is sharded")) for item in MEMORY_ITEMS},
        NOTHING,
    ),
    "map": optional(count("pipeline stage on which the node, a block of the model, runs", WORLD_SIZE_MAX, low=0)),
    "schedule": optional(section("order of the micro-batches; only the root has one", _SCHEDULE)),
    "recompute": optional(_RECOMPUTE),
}
STRATEGY = {
    "tp": count("tensor parallel degree", WORLD_SIZE_MAX, 1),
    "cp": count("context parallel degree", WORLD_SIZE_MAX, 1),
    "ep": count("expert parallel degree; divides dp, or with expert_tp 1 dp x tp", WORLD_SIZE_MAX, 1),
    "expert_tp": optional_count(
        "tensor parallel degree of experts: tp or 1; tp if null. With 1 the ranks of ep include those of tp",
        WORLD_SIZE_MAX,
    ),
    "dp": count("data parallel degree", WORLD_SIZE_MAX, 1),
    "hsdp_replicas": count(
        "replicas of hybrid sharding (HSDP): dp is divided into this many, and `zero` shards within each of them",
        WORLD_SIZE_MAX,
        1,
    ),
    "pp": count("pipeline parallel degree", BLOCKS_MAX, 1),
    "virtual": count("chunks of the model on each pipeline stage", BLOCKS_MAX, 1),
    "zero": count(
        "ZeRO stage: what is sharded over dp; 1 is Megatron-LM's distributed optimizer. In a pipeline, every stage "
        "sums gradients and gathers weights once per step",
        3,
        0,
        low=0,
    ),
    "context_exchange": choice(
        "how attention gets keys and values of other cp ranks: `gather` all of them first, send them round a `ring` "
        "while it computes (Megatron-LM), or gather them while it computes and `merge` the results of the parts "
        "(PyTorch, torchtitan)",
        EXCHANGES,
        GATHER,
    ),
    "context_split": choice(
        "tokens of a cp rank: one part from each of the two `halves` of a sequence, so that causal attention takes "
        "equally long on all ranks, or `contiguous`",
        SPLITS,
        HALVES,
    ),
    "sequence_parallel": flag("split norms and dropout over tp by tokens", default=False),
    "recompute": _RECOMPUTE,
    **_SCHEDULE,
    "micro_batch_size": optional_count("samples of a micro-batch on a rank, instead of micro_batches"),
    "bucket_bytes": optional(
        amount(
            "gradients that are sent together; all at the end if null. With the default, the first bucket of gradients "
            "that are not sharded has 1 MiB, as in DDP",
            "bytes",
        ),
        DDP_BUCKET_BYTES,
    ),
    "gradient_buffer_bytes": amount(
        "memory of buffers for gradients in transfer: DDP's buckets (all gradients, unless they are views of the "
        "buckets), DeepSpeed's reduce buckets",
        "bytes",
        0.0,
        above=None,
    ),
    "live_parameters": optional(
        amount(
            "maximum of parameters that ZeRO 3 gathers at once (DeepSpeed: stage3_max_live_parameters); if null, two "
            "layers and the gradients of one layer, as in FSDP",
            "",
        )
    ),
    "copied_gather_bytes_per_second": optional(
        amount(
            "rate at which ZeRO 3 copies gathered weights, for software that waits for each gather and copies its "
            "result (DeepSpeed before August 2021); if null, weights are gathered one layer ahead",
            "bytes/s",
        )
    ),
    "backward_prefetch": flag(
        "ZeRO 3 gathers weights for backward one layer ahead (FSDP's BACKWARD_PRE); if false, when they are needed "
        "(BACKWARD_POST, Composer's default)",
        default=True,
    ),
    "zero_copy": flag(
        "ZeRO 3 gathers weights directly to where they are used, and scatters gradients from where they are made, "
        "without the copies of PyTorch's FSDP (Megatron-FSDP)",
        default=False,
    ),
    "overlap_sends": optional(
        flag("a stage continues while it sends to the next; if null, only with several chunks per stage", None)
    ),
    "overlap_tensor": flag(
        "gathers and reduce-scatters of sequence parallelism overlap their matrix products, in tp parts "
        "(Megatron-LM: --tp-comm-overlap)",
        default=False,
    ),
    "late_tensor_sums": flag(
        "with overlap_tensor, reduce-scatters add their parts in a separate kernel once all have arrived, instead of "
        "one by one (PyTorch's async tensor parallelism)",
        default=False,
    ),
    "overlap_experts": flag(
        "experts' tokens are exchanged while another micro-batch computes (Megatron-LM: "
        "--overlap-moe-expert-parallel-comm)",
        default=False,
    ),
    "exchange_multiprocessors": optional_count(
        "with overlap_experts, multiprocessors that an exchange has to itself (Megatron-LM: --moe-deepep-num-sms, "
        "--moe-hybridep-num-sms); as much of the device as NCCL's collectives take if null"
    ),
    "overlap_returns": flag(
        "weights that ZeRO has updated in shards are gathered during the next step's first forward pass (Megatron-LM: "
        "--overlap-param-gather)",
        default=False,
    ),
    "algorithms": section(
        "algorithm by kind of collective",
        {kind: optional(choice(f"algorithm of each {kind}", algorithms(kind))) for kind in KINDS if kind != SEND},
        NOTHING,
    ),
    "overrides": sections(
        "changes to nodes of the strategy tree, applied in order",
        "one node, or all nodes that match a pattern",
        OVERRIDE,
    ),
}
