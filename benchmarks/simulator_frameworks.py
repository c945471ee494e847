"""What the software of each set of published runs does in every run, as its source states it, and its devices.

A set's key is its name, or `name: NOTE` for rows whose note begins with NOTE. Nothing here is fitted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

from lockstep.contracts.peaks import peak_flops_per_second
from lockstep.simulator.hardware.cluster import CUDNN, FLASH_1, FLASH_2
from lockstep.simulator.hardware.clusters import NCCL_CHANNELS, OVERLAP_FACTOR
from lockstep.simulator.hardware.collectives import ALL_TO_ALL, DEEPEP, HYBRIDEP
from lockstep.simulator.imports.megatron import bucket_parameters
from lockstep.simulator.lowering.context import MERGE, RING, ContextParallelism
from lockstep.simulator.lowering.program import DDP_BUCKET_BYTES
from lockstep.simulator.models.model import DEEPSPEED_FP16, FSDP, MIXED, Precision


def _between_sxm_and_nvl(dtype: str) -> float:
    peaks = [peak_flops_per_second(device, dtype) or nan for device in ("H100", "H100 NVL")]
    return sum(peaks) / len(peaks)


HBM2E_500_W: Mapping[str, Any] = {
    "memory_bytes": 96e9,
    "memory_bytes_per_second": 2.4e12,
    "flops_per_second": _between_sxm_and_nvl("bf16"),
    "fp8_flops_per_second": _between_sxm_and_nvl("fp8"),
    "matrix_efficiency": 0.632,
    "fp8_share": 0.94,
}
"""torchtitan's H100, as its documents state them: memory, 500 W instead of 700, and an unknown peak between those of
SXM and NVL. The largest products of the same company's "H100 500W" reach 575 TFLOP/s in bf16 and 1,083 in FP8, 83 % of
what they reach at 700 W (pytorch/FBGEMM, pull request 2546; tests/simulator/data/operators.csv)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What the software of a set does in every run: sums of gradients, attention, and what its optimizer keeps.

    `zero` is the stage where the row leaves it open, `recompute` what backward recomputes where the row has "none"
    (which stays, because a row's half follows from its columns); `live_parameters`, `copied_gather_bytes_per_second`,
    `backward_prefetch`, `zero_copy` and `sharded_overlap_factor` hold for ZeRO 3; `bucket_parameters`, by the ranks
    that sum gradients, replaces `bucket_bytes` for the others; `virtual` replaces the row's number of chunks. With
    `micro_batches_of_stages` a batch is cut into as many micro-batches as a pipeline has stages, whatever the row.
    Experts are split over tp by `expert_tp`, their FP8 tokens are copied to a size by `padded_tokens`, and the router's
    kernels are in a CUDA graph by `graphed_router`, while the host issues the products of `separate_experts` one after
    the other; context parallel ranks exchange by `context`, kinds of collectives
    by `algorithms`. Software that `compiles` runs the rows without "compiled" eagerly, with `matrix_rotations` or
    without; software that `fills_stages` gives each stage as many layers as the fullest needs and the last what is
    left. `machine` is what the source states of the devices, and `network_share` what it measures of its network over
    what the preset takes it to reach.
    """

    bucket_bytes: float | None
    fused_attention: bool
    sequence_parallel: bool = False
    precision: Precision = MIXED
    gradient_buffer_bytes: float = 0.0
    live_parameters: float | None = None
    overlap_tensor: bool = False
    late_tensor_sums: bool = False
    overlap_experts: bool = False
    exchange_multiprocessors: int | None = None
    overlap_returns: bool = False
    algorithms: Mapping[str, str] = field(default_factory=dict)
    zero: int = 0
    recompute: str = "none"
    virtual: int | None = None
    copied_gather_bytes_per_second: float | None = None
    backward_prefetch: bool = True
    zero_copy: bool = False
    sharded_overlap_factor: float | None = None
    bucket_parameters: Callable[[int], int] | None = None
    fills_stages: bool = False
    micro_batches_of_stages: bool = False
    expert_tp: int | None = None
    padded_tokens: bool = False
    graphed_router: bool = False
    separate_experts: bool = False
    context: ContextParallelism | None = None
    fused_loss: bool = False
    loss_metrics: int = 0
    compiles: bool = False
    matrix_rotations: bool = False
    dropout: bool = True
    machine: Mapping[str, float | bool | str] = field(default_factory=dict)
    network_share: float = 1.0


_DEEPSPEED_2021_COPIES = 1 / (1 / (10.2e9 / 0.41) - 1 / 229e9)
"""Bytes a second: the forward pass of 5.1e9 parameters took 470 ms with ZeRO 3 and 60 ms with ZeRO 2 on a node of A100,
whose NVLink gathers 229 GB/s: "each all_gather calls torch.cuda.synchronize()" and "has explicit memcpy" (DeepSpeed,
issue 1174 and pull request 1188 of June 2021)."""
_AT_THE_END = Framework(bucket_bytes=None, fused_attention=False)  # Megatron-LM and Megatron-DeepSpeed before 2023
_FOUNDRY = Framework(
    bucket_bytes=DDP_BUCKET_BYTES,
    fused_attention=True,
    precision=FSDP,
    fused_loss=True,  # `loss_fn: fused_crossentropy`, MPT's default, is flash-attn's
    loss_metrics=2,  # `use_train_metrics`, MPT's default: cross entropy and perplexity
    dropout=False,  # MPT's default
    machine={"attention_kernel": FLASH_1},  # sweep.sh pins v0.0.4 of June 2023, before the second version
    backward_prefetch=False,  # Composer's FSDPConfig: backward_prefetch='BACKWARD_POST' (docs.mosaicml.com)
)
_FOUNDRY_PURE = replace(_FOUNDRY, precision=replace(FSDP, sent_gradient=2))
"""Composer's mixed precision PURE reduces gradients at the format of the activations, DEFAULT in single precision."""
_TORCHTITAN = Framework(
    bucket_bytes=DDP_BUCKET_BYTES,
    fused_attention=True,
    sequence_parallel=True,
    precision=replace(FSDP, current_scaling=True),  # torchtitan/docs/float8.md: tensor-wise scaling with dynamic scales
    compiles=True,
    micro_batches_of_stages=True,
    context=ContextParallelism(exchange=MERGE),  # PyTorch's `context_parallel`, with its default of gathering
)
"""Until January 2025 a pipeline had as many micro-batches as stages unless configured otherwise (pytorch/torchtitan,
pull request 781); the documents configure none."""
_TORCHTITAN_ASYNC = replace(_TORCHTITAN, overlap_tensor=True, late_tensor_sums=True)
_NEMO = Framework(
    bucket_bytes=DDP_BUCKET_BYTES,
    fused_attention=True,
    sequence_parallel=True,
    precision=replace(MIXED, gradient=2, sent_gradient=2, stored_product=1),
    zero=1,
    overlap_tensor=True,
    overlap_returns=True,
    context=ContextParallelism(exchange=RING),
    machine={"attention_kernel": CUDNN},  # what Transformer Engine takes on H100
)
"""NVIDIA's performance recipes: gradients are summed at half (`grad_reduce_in_fp32 = False`, Megatron-Bridge's
scripts/performance/configs; `grad_sync_dtype: bf16` in NeMo 24.07), all overlaps are on, context parallel ranks send
keys and values round a ring (Transformer Engine's `p2p`)."""
_NEMO_BF16 = replace(_NEMO, precision=replace(_NEMO.precision, optimizer=10))
"""NeMo's launcher with bf16 weights: its optimizer keeps what a full weight has beyond them, 2 bytes instead of 4
(`store_param_remainders` of MegatronBaseModel)."""
_FLASH_2_ON_H100: Mapping[str, Any] = {"attention_kernel": FLASH_2}
"""Where NVTE_FUSED_ATTN is 0, Transformer Engine does not take cuDNN. NeMo's launcher sets it ("Disable cudnn FA until
we've tested it more", launcher_scripts/conf/config.yaml from container 24.01 on, 24.03.01 among them) until its pull
request 422 of August 2024, and so do some of the DGX Cloud recipes (`configure.sh` of grok1, of nemo_megatron, and of
nemotron with 340B; that of llama3.1 and of nemotron with 15B sets it to 1, as NeMo 2's performance scripts do)."""
_NEMO_FLASH_2 = replace(_NEMO, machine=_FLASH_2_ON_H100)
_NEMO_BF16_FLASH_2 = replace(_NEMO_BF16, machine=_FLASH_2_ON_H100)
_NEMO_FP32_GRADIENTS = replace(_NEMO, precision=replace(_NEMO.precision, gradient=4, sent_gradient=4))
"""Nemotron 4 15B's recipe takes `mcore_distributed_optim`, which keeps whole weights besides the bf16 ones, and sets no
`grad_sync_dtype` (nemotron4-15b-synth.yaml): NeMo has `grad_reduce_in_fp32 = cfg.optim.get("grad_sync_dtype", "fp32")
== "fp32"` (`MegatronGPTModel.setup_mcore_distributed_parallel`). The recipes of GPT-3,
Nemotron 4 340B and Grok 1 set bf16."""
_NEMO_2 = replace(_NEMO, bucket_parameters=lambda _: 128 * 1024 * 1024)
"""NeMo 2 and Megatron-Bridge: `bucket_size = 128 * 1024 * 1024` (`_get_optimizer_overlap_cfgs` in
nemo/lightning/pytorch/callbacks/megatron_comm_overlap.py and megatron/bridge/training/comm_overlap.py)."""
_BRIDGE = replace(
    _NEMO_2,
    precision=replace(_NEMO.precision, current_scaling=True),  # FP8_CS, scripts/performance/configs
    zero_copy=True,  # `use_megatron_fsdp`
    sharded_overlap_factor=OVERLAP_FACTOR * 5 / NCCL_CHANNELS,  # `if cfg.ddp.use_megatron_fsdp: cfg.ddp.nccl_ub = True`
)
"""Megatron-Bridge's recipes for H100: FP8 with current scaling in all layers, Llama 3 8B with Megatron-FSDP, whose
"zero copy communication is achieved by reorganizing the storage of parameters and main grad" (pypi.org,
megatron-fsdp). Within a node its registered buffers take 4 multiprocessors for a gather and 5 for a reduce-scatter
(`nccl_ub`, megatron/core/distributed/distributed_data_parallel_config.py)."""
_BRIDGE_EXPERTS = replace(
    _BRIDGE,
    overlap_tensor=False,
    expert_tp=1,
    fused_loss=True,
    padded_tokens=True,
    separate_experts=True,
    machine={**_BRIDGE.machine, "grouped_fill": 290.0},
)
"""The recipe of Qwen3 235B-A22B on H100 sets `moe_a2a_overlap` with the all-to-all dispatcher; that of 30B-A3B does not
(scripts/performance/configs/qwen/qwen3_workload_base_configs.py). The library's recipe takes Transformer Engine's fused
loss (`cross_entropy_fusion_impl = "te"`, src/megatron/bridge/recipes/qwen/qwen3_moe.py) and has
`moe_router_padding_for_fp8 = False`, so that TEGroupedMLP pads the tokens of an all-to-all. The containers, from 25.09
on, have Transformer Engine 2.7 or later, whose products of experts are the middle of both that are measured
(`GROUPED_FILL`)."""
_BRIDGE_EXPERTS_BF16 = replace(
    _BRIDGE_EXPERTS, precision=replace(_BRIDGE_EXPERTS.precision, product=None, stored_product=None)
)
_BRIDGE_EXPERTS_BLOCK = replace(
    _BRIDGE_EXPERTS, precision=replace(_BRIDGE_EXPERTS.precision, current_scaling=False, block_scaling=True)
)
"""On B200 the FP8 of experts is MXFP8 ("FP8-MX" in the tables of 25.11, "MXFP8" in those of 26.02; issue 4439)."""
_BRIDGE_DROPPED = replace(_BRIDGE_EXPERTS, padded_tokens=False, overlap_tensor=True)
"""Container 25.09: experts have a capacity of their even share, to which their tokens are filled up or dropped, so that
all products have one size (`apply_moe_token_drop`; `tp_comm_overlap=True` in configs/qwen3)."""
_DEEPEP: Mapping[str, str] = {ALL_TO_ALL: DEEPEP}
_BRIDGE_HYBRIDEP = replace(
    _BRIDGE_EXPERTS_BLOCK, algorithms={ALL_TO_ALL: HYBRIDEP}, padded_tokens=False, exchange_multiprocessors=32
)
"""Recipes with `moe_flex_dispatcher_backend="hybridep"`, which pads tokens while it sorts them; that of Qwen3 30B-A3B
on H100 has `moe_hybridep_num_sms = 32` (src/megatron/bridge/recipes/qwen/h100/qwen3_moe.py). Its run in FP8 is
"H100 FP8 blockwise" (NVIDIA/Megatron-LM, pull request 5728)."""
_BRIDGE_HYBRIDEP_GRAPHED = replace(_BRIDGE_HYBRIDEP, graphed_router=True)
"""Their `cuda_graph_scope` has `moe_router` and `moe_preprocess` on H100 in bf16, on B200 in both formats `attn` too
(scripts/performance/configs/qwen/qwen3_workload_base_configs.py)."""
_BRIDGE_HYBRIDEP_BF16 = replace(_BRIDGE_HYBRIDEP_GRAPHED, precision=_BRIDGE_EXPERTS_BF16.precision)
_MEGATRON_CORE = Framework(
    bucket_bytes=DDP_BUCKET_BYTES,
    fused_attention=True,
    sequence_parallel=True,
    zero=1,
    bucket_parameters=bucket_parameters,
    overlap_returns=True,
)
_MEGATRON_EXPERTS = replace(
    _MEGATRON_CORE,
    zero_copy=True,
    expert_tp=1,
    algorithms=_DEEPEP,
    exchange_multiprocessors=20,  # `moe_deepep_num_sms`, the default of TransformerConfig
    fused_loss=True,
    separate_experts=True,
    machine={"attention_kernel": CUDNN},
)
"""model_configs/benchmarking/Qwen3-235B-A22B.yaml: `--use-distributed-optimizer`, `--overlap-grad-reduce`,
`--overlap-param-gather`, `--sequence-parallel`, `--expert-tensor-parallel-size: 1`, `--transformer-impl`,
`--cross-entropy-fusion-impl: te`. Sums of gradients are in single precision, as with `--bf16` in Megatron-LM. The row
with FSDP uses Megatron-FSDP. The source's row "A2A" has a chunk for each of 94 layers, the embedding and the head,
which cannot be specified."""
_FMS = Framework(
    bucket_bytes=DDP_BUCKET_BYTES,
    fused_attention=True,
    precision=replace(FSDP, sent_gradient=2),  # `reduce_dtype=torch.bfloat16` (policies/mixed_precision.py)
    compiles=True,
    matrix_rotations=True,  # `freqs.mul(q_).sum(5)` (fms/modules/positions.py)
)
"""fms-fsdp before torch.compile: PyTorch's FSDP and its eager operators."""
FRAMEWORKS: Mapping[str, Framework] = {
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
    "Megatron-Core README model table": replace(_MEGATRON_CORE, overlap_tensor=True),
    # README.md: "--overlap-grad-reduce --overlap-param-gather" and "--tp-comm-overlap". The second is "only supported
    # with distributed optimizer" (megatron/training/arguments.py).
    "MLPerf Training v3.1 NVIDIA EOS GPT-3": Framework(
        bucket_bytes=DDP_BUCKET_BYTES,
        fused_attention=True,
        sequence_parallel=True,
        zero=1,  # NeMo's distributed_fused_adam
        virtual=12,  # mlcommons/training_results_v3.1: INTERLEAVED_PIPELINE is 12 unless set, TP_COMM_OVERLAP is True
        overlap_tensor=True,
    ),
    "mosaicml/llm-foundry training benchmarks": _FOUNDRY,
    **{f"llm-foundry, {name}": _FOUNDRY for name in ("H100", "H100, FP8", "A100 80 GB", "A100 40 GB")},
    **{f"llm-foundry, {name}: PURE": _FOUNDRY_PURE for name in ("A100 80 GB", "A100 40 GB")},
    "torchtitan: from 128 tokens/s a device": _TORCHTITAN_ASYNC,  # llama3_h100_202412_torchtitan.md, table 5
    "torchtitan": _TORCHTITAN,
    "torchtitan, further runs": _TORCHTITAN,
    "torchtitan, H200": _TORCHTITAN,
    "torchtitan, further runs: AsyncTP": _TORCHTITAN_ASYNC,
    **dict.fromkeys(
        (
            "NeMo 24.07, H100, FP8",
            "NeMo long sequences, H100, FP8",
            "DGX Cloud recipes, H100, FP8: NVTE_FUSED_ATTN=0",
        ),
        _NEMO_FLASH_2,
    ),
    "NeMo 24.12, H100, FP8": _NEMO_2,
    "DGX Cloud recipes, H100": _NEMO_BF16,
    "DGX Cloud recipes, H100, FP8": _NEMO,
    "DGX Cloud recipes, H100: NVTE_FUSED_ATTN=0": _NEMO_BF16_FLASH_2,
    # nemotron4-340b-synth.yaml: `activations_checkpoint_granularity: selective`
    "DGX Cloud recipes, H100: NVTE_FUSED_ATTN=0, selective checkpointing": replace(
        _NEMO_BF16_FLASH_2, recompute="selective"
    ),
    "DGX Cloud recipes, H100, FP8: NVTE_FUSED_ATTN=0, selective checkpointing": replace(
        _NEMO_FLASH_2, recompute="selective"
    ),
    **dict.fromkeys(
        ("DGX Cloud recipes, H100: fp32 gradients", "DGX Cloud recipes, H100, FP8: fp32 gradients"),
        _NEMO_FP32_GRADIENTS,
    ),
    "DGX Cloud recipes, experts, H100": replace(_NEMO_BF16_FLASH_2, overlap_tensor=False),
    "DGX Cloud recipes, experts, H100, FP8": replace(_NEMO_FLASH_2, overlap_tensor=False),
    "fms-fsdp, A100": _FMS,
    "fms-fsdp, H100": _FMS,
    "torchtitan, A100": _TORCHTITAN,
    "Megatron-Bridge, H100, FP8": _BRIDGE,
    "Megatron-Bridge, B200, FP8": _BRIDGE,
    "Megatron-Bridge, H100, FP8, experts": _BRIDGE_EXPERTS,
    "Megatron-Bridge, H100, FP8, experts: all-to-all overlap": replace(_BRIDGE_EXPERTS, overlap_experts=True),
    "Megatron-Core, experts, H100": _MEGATRON_EXPERTS,
    "Megatron-Core, long sequences and graphs, experts, H100": replace(
        _MEGATRON_EXPERTS, context=ContextParallelism(exchange=RING)
    ),
    "Megatron-Core, long sequences and graphs, experts, H100: DeepEP, all-to-all overlap, graphed router": replace(
        _MEGATRON_EXPERTS, overlap_experts=True, graphed_router=True
    ),
    "Megatron-Core, experts, H100: DeepEP, all-to-all overlap": replace(_MEGATRON_EXPERTS, overlap_experts=True),
    "Megatron-Bridge, experts, H100": _BRIDGE_HYBRIDEP_BF16,
    "Megatron-Bridge, experts, H100: HybridEP, all-to-all overlap": replace(
        _BRIDGE_HYBRIDEP_BF16, overlap_experts=True
    ),
    "Megatron-Bridge, experts, H100, FP8": _BRIDGE_HYBRIDEP,
    "Megatron-Bridge, experts, B200": _BRIDGE_HYBRIDEP_BF16,
    "Megatron-Bridge, experts, B200, FP8": _BRIDGE_EXPERTS_BLOCK,
    # 20.1 s until pull request 1760 of December 2025: "Disable `moe_a2a_overlap` due to CPU overhead"
    "Megatron-Bridge, experts, B200, FP8: all-to-all overlap": replace(_BRIDGE_EXPERTS_BLOCK, overlap_experts=True),
    "Megatron-Bridge, experts, B200, FP8: HybridEP": _BRIDGE_HYBRIDEP_GRAPHED,
    **{f"Megatron-Bridge, dropped tokens, {device}, FP8": _BRIDGE_DROPPED for device in ("H100", "B200")},
    # `cuda_graph_scope = "full_iteration"` (configs/qwen3/qwen3_30b_a3b_llm_pretrain.py)
    "Megatron-Bridge, dropped tokens, B200, FP8: graphed iteration": replace(
        _BRIDGE_DROPPED, machine={**_BRIDGE_DROPPED.machine, "launch_s": 0.0}
    ),
    "Megatron-Bridge, experts, B200, December 2025": _BRIDGE_EXPERTS_BLOCK,
}
