"""Every field of a specification: what it may hold, what it means, and what holds where nothing is said.

This table is the only place that knows the fields; those of the machine are in `machine`. The checker
(`check`), the JSON schema and the table in docs/simulator.md (`schema`) are made from it.
"""

from collections.abc import Mapping
from types import MappingProxyType

from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.simulator.hardware.collectives import ALGORITHMS, HIERARCHICAL, KINDS, SEND
from lockstep.simulator.models.model import DEEPSPEED_BF16, DEEPSPEED_FP16, FSDP, FULL, HALF_GRADIENTS, MIXED
from lockstep.simulator.simulate import DDP_BUCKET_BYTES
from lockstep.simulator.spec.field import (
    BLOCKS_MAX,
    BOOLEAN,
    CHOICE,
    DIM_MAX,
    HUGE,
    INTEGER,
    LIST,
    MAP,
    NAMES,
    NUMBER,
    SECTION,
    TEXT,
    VARIANTS,
    Field,
    amount,
    count,
    flag,
)
from lockstep.simulator.spec.machine import CALIBRATION, CLUSTER
from lockstep.simulator.strategy.schedule import ORDERS
from lockstep.simulator.strategy.tree import FULL as RECOMPUTE_ALL
from lockstep.simulator.strategy.tree import MEMORY_ITEMS, NONE, PER_OPERATOR, SELECTIVE

_MICRO_BATCHES_MAX = 65_536

PRECISIONS = {
    "mixed": MIXED,
    "half_gradients": HALF_GRADIENTS,
    "fsdp": FSDP,
    "deepspeed_fp16": DEEPSPEED_FP16,
    "deepspeed_bf16": DEEPSPEED_BF16,
    "full": FULL,
}
_BYTES = {
    name: amount(help_, "bytes an element", None, above=0.0 if name == "activation" else None)
    for name, help_ in {
        "activation": "activations",
        "weight": "weights",
        "gradient": "gradients as kept",
        "sent_gradient": "gradients as sent",
        "optimizer": "the optimizer's state",
    }.items()
}
_BYTES["product"] = Field(
    kind=NUMBER,
    help="factors of linear layers' products (but the head's); as the activations if null, 1 is FP8",
    low=1.0,
    high=8.0,
    nullable=True,
    default=None,
)


def _precision(default: str) -> Field:
    return Field(
        kind=SECTION,
        help="number formats: a name, or bytes of one element; what is not given is `mixed`'s. `mixed` is Megatron's, "
        "18 bytes a parameter; `half_gradients` keeps and sends gradients at half; `fsdp` keeps 16 bytes, "
        "`deepspeed_fp16` and `deepspeed_bf16` 20, as those optimizers do; `full` is single precision",
        or_name=tuple(PRECISIONS),
        fields=_BYTES,
        default=default,
    )


_TRANSFORMER = {
    "layers": count("transformer layers", BLOCKS_MAX),
    "hidden": count("features of a token"),
    "heads": count("attention heads"),
    "head_dim": Field(
        kind=INTEGER,
        help="features of a head; those of a token over the heads if null",
        low=1,
        high=DIM_MAX,
        nullable=True,
        default=None,
    ),
    "sequence": count("tokens of a sample"),
}
_FFN = {
    "ffn": count("features inside the wide layer"),
    "kv_heads": Field(
        kind=INTEGER,
        help="heads of keys and values; as many as heads if null",
        low=1,
        high=DIM_MAX,
        nullable=True,
        default=None,
    ),
    "vocabulary": count("words", DIM_MAX, 32000),
    "precision": _precision("mixed"),
}
OPERATOR = {
    "name": Field(kind=TEXT, help="name, unlike the others'"),
    "flops": amount("FLOPs of one sample, forward", "FLOPs", above=None),
    "moved_elements": amount("activation elements read and written for one sample, forward", "elements", above=None),
    "parameters": amount("parameters", "elements", above=None),
    "stored_bytes": amount("bytes that one sample leaves stored for backward", "bytes", above=None),
}
"""The columns of a profile, in order."""
_PICTURES = {"classes": count("classes of pictures", DIM_MAX, 1000), "precision": _precision("full")}
MODELS: Mapping[str, Mapping[str, Field]] = {
    "gpt": {
        **_TRANSFORMER,
        "vocabulary": count("words", DIM_MAX, 51200),
        "fused_attention": flag("attention that never writes its scores (FlashAttention)", default=False),
        "precision": _precision("mixed"),
    },
    "llama": {**_TRANSFORMER, **_FFN},
    "moe": {
        **_TRANSFORMER,
        **_FFN,
        "experts": count("experts of a layer"),
        "chosen": count("experts that a token uses", DIM_MAX, 2),
    },
    "vgg19": _PICTURES,
    "resnet50": _PICTURES,
    "operators": {
        "file": Field(
            kind=TEXT,
            help="CSV file of the operators beside the specification, with a header: " + ", ".join(OPERATOR),
            nullable=True,
            default=None,
        ),
        "operators": Field(
            kind=LIST,
            help="the operators in order, instead of a file",
            item=Field(kind=SECTION, help="one operator", fields=OPERATOR),
            default=(),
        ),
        "tokens": amount("tokens (or samples) that a sample counts as", "tokens", 1.0),
        "precision": _precision("full"),
    },
}

_SCHEDULE = {
    "micro_batches": count("micro-batches of a step", _MICRO_BATCHES_MAX, 1),
    "schedule": Field(kind=CHOICE, help="order of forward and backward passes", choices=ORDERS, default=ORDERS[0]),
    "max_ongoing": Field(
        kind=INTEGER,
        help="most micro-batches between forward and backward; the schedule's own if null",
        low=1,
        high=_MICRO_BATCHES_MAX,
        nullable=True,
        default=None,
    ),
}
_RECOMPUTE = Field(
    kind=CHOICE,
    help="what backward computes again instead of keeping it: `selective` the core of attention that is not fused, "
    "`per_operator` all of a layer but what fused attention and every second product leave (torchtitan), `full` the "
    "layers",
    choices=(NONE, SELECTIVE, PER_OPERATOR, RECOMPUTE_ALL),
    default=NONE,
)
_AXES = Field(kind=NAMES, help="mesh axes: tp, cp, ep, dp")
OVERRIDE = {
    "node": Field(
        kind=TEXT,
        help="path of the node, names joined by dots, each a shell pattern: `layer*.fc1`, `head`; `.` is the root",
    ),
    "split": Field(
        kind=MAP,
        help="dimension (b, s, h, o, a, e, v, ...) to the mesh axes over which it is split; `replicate` undoes a split",
        keys="dimension",
        item=_AXES,
        default=MappingProxyType({}),
    ),
    "keep": Field(
        kind=SECTION,
        help="over which mesh axes an item is kept in parts",
        fields={
            item: Field(kind=NAMES, help=f"axes over which each {item} is kept in parts", nullable=True, default=None)
            for item in MEMORY_ITEMS
        },
        default=MappingProxyType({}),
    ),
    "map": Field(
        kind=INTEGER,
        help="pipeline stage that the node, a block of the model, runs on",
        low=0,
        high=WORLD_SIZE_MAX,
        nullable=True,
        default=None,
    ),
    "schedule": Field(
        kind=SECTION,
        help="order of the micro-batches; only the root has one",
        fields=_SCHEDULE,
        nullable=True,
        default=None,
    ),
    "recompute": Field(kind=CHOICE, help=_RECOMPUTE.help, choices=_RECOMPUTE.choices, nullable=True, default=None),
}
STRATEGY = {
    "tp": count("tensor parallel degree", WORLD_SIZE_MAX, 1),
    "cp": count("context parallel degree", WORLD_SIZE_MAX, 1),
    "ep": count("expert parallel degree; divides dp", WORLD_SIZE_MAX, 1),
    "dp": count("data parallel degree", WORLD_SIZE_MAX, 1),
    "pp": count("pipeline parallel degree", BLOCKS_MAX, 1),
    "virtual": count("chunks of the model on each pipeline stage", BLOCKS_MAX, 1),
    "zero": count(
        "ZeRO stage: what is kept in parts over dp; 1 is Megatron-LM's distributed optimizer. In a pipeline, gradients "
        "are summed and weights gathered once a step at every stage",
        3,
        0,
        low=0,
    ),
    "sequence_parallel": flag("split norms and dropout over tp by tokens", default=False),
    "recompute": _RECOMPUTE,
    **_SCHEDULE,
    "micro_batch_size": Field(
        kind=INTEGER,
        help="samples of a micro-batch on a rank, instead of micro_batches",
        low=1,
        high=DIM_MAX,
        nullable=True,
        default=None,
    ),
    "bucket_bytes": Field(
        kind=NUMBER,
        help="gradients that are sent together; all at the end if null",
        unit="bytes",
        above=0.0,
        high=HUGE,
        nullable=True,
        default=DDP_BUCKET_BYTES,
    ),
    "gradient_buffer_bytes": amount(
        "memory that holds gradients on their way: DDP's buckets (all gradients, unless they are views of them), "
        "DeepSpeed's reduce buckets",
        "bytes",
        0.0,
        above=None,
    ),
    "live_parameters": Field(
        kind=NUMBER,
        help="most parameters that ZeRO 3 gathers at once (DeepSpeed: stage3_max_live_parameters); two layers and one "
        "layer's gradients if null, as FSDP",
        above=0.0,
        high=HUGE,
        nullable=True,
        default=None,
    ),
    "overlap_sends": Field(
        kind=BOOLEAN,
        help="a stage goes on while its message to the next is under way; with several chunks a stage if null",
        nullable=True,
        default=None,
    ),
    "overlap_tensor": flag(
        "gathers and reduce-scatters of sequence parallelism go on beside products that they belong to, in tp parts "
        "(Megatron-LM: --tp-comm-overlap)",
        default=False,
    ),
    "overlap_returns": flag(
        "weights that ZeRO has updated in parts are gathered beside the next step's first forward pass (Megatron-LM: "
        "--overlap-param-gather)",
        default=False,
    ),
    "algorithms": Field(
        kind=SECTION,
        help="algorithm by kind of collective",
        fields={
            kind: Field(
                kind=CHOICE,
                help=f"algorithm of each {kind}",
                choices=(*ALGORITHMS, HIERARCHICAL),
                nullable=True,
                default=None,
            )
            for kind in KINDS
            if kind != SEND
        },
        default=MappingProxyType({}),
    ),
    "overrides": Field(
        kind=LIST,
        help="what nodes of the strategy tree are told beyond the degrees, later ones last",
        item=Field(kind=SECTION, help="one node, or those that a pattern names", fields=OVERRIDE),
        default=(),
    ),
}

SPECIFICATION = Field(
    kind=SECTION,
    help="what a job is and runs on",
    fields={
        "name": Field(kind=TEXT, help="name of the job, for people; the file's if empty", default=""),
        "model": Field(kind=VARIANTS, help="the model", variants=MODELS),
        "batch": count("samples of a step, over all ranks", 100_000_000),
        "strategy": Field(
            kind=SECTION, help="how the model is spread over the ranks", fields=STRATEGY, default=MappingProxyType({})
        ),
        "cluster": Field(kind=SECTION, help="the machine", fields=CLUSTER),
        "calibration": Field(
            kind=SECTION,
            help="what measured steps have taught about the machine",
            fields=CALIBRATION,
            nullable=True,
            default=None,
        ),
    },
)
"""The whole file."""
