"""Clusters by name: the papers' and the usual. Peaks are vendors' dense figures, efficiencies come from measurements.

The efficiencies of V100, A100, H100, B200 and MI300X come from the operator times of
tests/simulator/data/operators.csv, each with its source: `matrix_efficiency` is that of the largest product of each
device, for training is a sustained load, under which clocks fall, with operands distributed as training's where a
source states them; the tiling is what the shapes in their table show. Nothing here but the host's time is fitted to
steps of training. Bandwidths are one direction's.
Latencies and bus bandwidths of NVLink are fits to published all-reduce times (vTrain's tables, messages of 16 MB and
more); H100's and the networks' are what the maintainers of NCCL give; the others are data-sheet figures with no latency
known.
"""

from dataclasses import replace
from typing import TypedDict

from lockstep.contracts.peaks import memory_bytes_per_second, peak_flops_per_second
from lockstep.simulator.hardware.cluster import (
    AITER,
    CUDNN,
    FLASH_1,
    FLASH_2,
    FLASH_3,
    FLASH_4,
    AttentionSpeed,
    Cluster,
    Device,
    Level,
)
from lockstep.simulator.hardware.collectives import Link
from lockstep.simulator.hardware.intracard import SUNWAY
from lockstep.simulator.hardware.products import Tiling

_GIB = 2**30
_GBIT_BYTES = 1e9 / 8


def _peak(product: str, dtype: str) -> float:
    peak = peak_flops_per_second(product, dtype)
    assert peak is not None
    return peak


def _tflops(product: str, dtype: str) -> float:
    return _peak(product, dtype) / 1e12


class _Peaks(TypedDict):
    flops_per_second: float
    memory_bytes_per_second: float


def _peaks(product: str, dtype: str) -> _Peaks:
    """Return the figures of the table of peaks for a device's name as its framework reports it."""
    memory = memory_bytes_per_second(product)
    assert memory is not None
    return {"flops_per_second": _peak(product, dtype), "memory_bytes_per_second": memory}


def _attention(reached_tflops: float, **kernels: tuple[float, float]) -> tuple[AttentionSpeed, ...]:
    """Return the speeds of kernels of fused attention from TFLOP/s, forward and backward, and those of a full wave."""
    return tuple(
        AttentionSpeed(kernel, forward / reached_tflops, backward / reached_tflops)
        for kernel, (forward, backward) in kernels.items()
    )


_FP32_EFFICIENCY = 0.8
"""What large single-precision products reach of the peak at boost clock; not measured on these clusters. Between 0.5
and 0.8 the order of Proteus's table V on HC2 does not depend on it."""
_MEMORY_EFFICIENCY = 0.77
"""What an element-wise operator of PyTorch gets of an A100's memory. No measurement of other devices with a source that
could be checked was found; they are taken to be alike."""
_LAUNCH_S = 88e-6
"""The host's time to issue an operator of a model: a kernel or a few, views of tensors, and Python around them, while
PyTorch alone needs 21 us (LLMCompass). It is the value for Megatron-LM by the half `open` of vTrain's one node, with
the least mean error; other hosts are taken to be alike."""

NCCL_CHANNELS = 24
"""Channels of a communicator by default (NVIDIA/nccl, issue 1685); each occupies a multiprocessor, which it does not
share with other kernels (issue 689)."""
OVERLAP_FACTOR = 0.189
"""How much longer kernels take next to NCCL's: the mean on A100, H100, MI210 and MI250, of at most 0.4 (arXiv
2507.03114). The multiprocessors alone would give 108 / (108 - 24) - 1 = 0.29 on A100 and 0.22 on H100 with all
channels, 0.17 and 0.14 with the 16 that a node with eight cards uses for its network (NVIDIA/nccl, issue 689). Other
devices are taken to be alike."""


class _ProcessMemory(TypedDict):
    context_bytes: float
    communicator_bytes: float
    allocator_reserve_ratio: float
    unusable_ratio: float


_PROCESS: _ProcessMemory = {
    # A first tensor on a device takes 723 MiB (discuss.pytorch.org, 73021): the context and the kernels.
    "context_bytes": 723 * 2**20,
    # Each channel has a buffer of 10 MiB to receive and one of 2 MiB to send (NVIDIA/nccl, issue 1685).
    "communicator_bytes": NCCL_CHANNELS * 12 * 2**20,
    # The median of what the half `open` of the runs with a measured peak takes beyond all other items.
    "allocator_reserve_ratio": 0.12,
    # PyTorch reports 79.15 GiB of an A100 with 80, 31.7 of a V100 with 32.
    "unusable_ratio": 0.0105,
}
"""What a process of PyTorch with NCCL takes of a device's memory besides the job's own."""

_A100 = "A100-SXM4-80GB"
_A100_TFLOPS = _tflops(_A100, "fp16")

TITAN_XP = Device(
    name="Titan Xp",
    **_peaks("TITAN Xp", "fp32"),
    memory_bytes=12 * _GIB,
    matrix_efficiency=_FP32_EFFICIENCY,
)
V100 = Device(
    name="V100",
    **_peaks("V100-SXM", "fp16"),
    memory_bytes=32 * _GIB,
    matrix_efficiency=0.72,
    memory_efficiency=_MEMORY_EFFICIENCY,
    launch_s=_LAUNCH_S,
    tiling=Tiling(multiprocessors=80, narrow_share=0.9),
    **_PROCESS,
)
V100_FP32 = Device(
    name="V100 fp32",
    **_peaks("V100-SXM", "fp32"),
    memory_bytes=32 * _GIB,
    matrix_efficiency=_FP32_EFFICIENCY,
    **_PROCESS,
)
A100 = Device(
    name="A100",
    **_peaks(_A100, "fp16"),
    memory_bytes=80 * _GIB,
    matrix_efficiency=0.86,
    memory_efficiency=_MEMORY_EFFICIENCY,
    launch_s=_LAUNCH_S,
    overlap_factor=OVERLAP_FACTOR,
    tiling=Tiling(
        multiprocessors=108,
        narrow_share=0.9,
        fill=256.0,
        unaligned_flops_per_second=_FP32_EFFICIENCY * _peak(_A100, "fp32"),  # without tensor cores
    ),
    # Dao 2023 (arXiv 2307.08691): version 2 reaches 50 to 73 % of the peak, of which the lower end is that of short
    # sequences with a causal mask; version 1 reaches 30 to 50 % forward and 25 to 35 % backward, of which the middle
    # counts.
    attention=_attention(
        _A100_TFLOPS * 0.86,
        **{
            FLASH_2: (_A100_TFLOPS * 0.5, _A100_TFLOPS * 0.5),
            FLASH_1: (_A100_TFLOPS * 0.4, _A100_TFLOPS * 0.3),
        },
    ),
    **_PROCESS,
)
A100_FP32 = Device(
    name="A100 fp32",
    **_peaks(_A100, "fp32"),
    memory_bytes=80 * _GIB,
    matrix_efficiency=_FP32_EFFICIENCY,
    **_PROCESS,
)
H100 = Device(
    name="H100",
    **_peaks("H100", "bf16"),
    memory_bytes=80 * _GIB,
    matrix_efficiency=0.70,
    memory_efficiency=_MEMORY_EFFICIENCY,
    launch_s=_LAUNCH_S,
    overlap_factor=OVERLAP_FACTOR,
    tiling=Tiling(multiprocessors=132, narrow_share=0.8),
    # Causal mask, 128 features a head, 8,192 tokens: version 2 by Dao-AILab/flash-attention, pull request 1791; the
    # others relative to it by Shah et al. 2024 (arXiv 2407.08608, figures 5 and 6), version 1 as on A100.
    attention=_attention(
        _tflops("H100", "bf16") * 0.70,
        **{
            FLASH_2: (284, 287),
            FLASH_1: (284 * 0.4 / 0.5, 287 * 0.3 / 0.5),
            FLASH_3: (284 * 602 / 333, 287 * 559 / 318),
            CUDNN: (284 * 529 / 333, 287 * 518 / 318),
        },
    ),
    fp8_flops_per_second=_peak("H100", "fp8"),
    # 1,280 of 1,979 TFLOP/s, 720 of 989 in bf16 (SemiAnalysis, "MI300X vs H100 vs H200 Benchmark Part 1", 2024)
    fp8_share=(1280 / _tflops("H100", "fp8")) / (720 / _tflops("H100", "bf16")),
    # Without fast accumulation, which Transformer Engine (_2X_ACC_DGRAD and _2X_ACC_WGRAD) and torchao
    # (use_fast_accum) have in forward only: it makes products 1.1 to 1.2 times as fast (pytorch/ao, issue 2377)
    fp8_backward_share=1 / 1.15,
    **_PROCESS,
)
H200 = replace(H100, name="H200", **_peaks("H200", "bf16"), memory_bytes=141 * _GIB)
"""The die and the power of an H100 with other memory (data sheet). Both were measured at 720 TFLOP/s in bf16 and 1,280
in FP8 (SemiAnalysis 2024, as for H100)."""
B200 = Device(
    name="B200",
    **_peaks("B200", "bf16"),
    memory_bytes=180 * _GIB,
    matrix_efficiency=0.63,
    memory_efficiency=_MEMORY_EFFICIENCY,
    launch_s=_LAUNCH_S,
    overlap_factor=OVERLAP_FACTOR,
    tiling=Tiling(multiprocessors=148, narrow_share=0.7),
    # Version 4 with a causal mask, 128 features a head, 8,192 tokens (Dao-AILab/flash-attention, pull request 2280).
    # cuDNN is as fast in forward (1,071 and 1,079 TFLOP/s with 64 features, pull request 2605) and taken to be so in
    # backward. Version 2 without a mask (meta-pytorch/tritonbench, pull request 171), in backward as much slower as
    # with 64 features (329 and 343, Dao-AILab/flash-attention, issue 1589). Version 3 does not run.
    attention=_attention(
        _tflops("B200", "bf16") * 0.63,
        **{CUDNN: (1418, 1209), FLASH_4: (1418, 1209), FLASH_2: (362, 362 * 329 / 343)},
    ),
    fp8_flops_per_second=_peak("B200", "fp8"),
    # cuBLAS with a scale for each 32 elements (MXFP8) reaches 2,850 of 4,500 (triton-lang/triton, pull request 9044)
    fp8_share=(2850 / _tflops("B200", "fp8")) / (1420 / _tflops("B200", "bf16")),
    **_PROCESS,
)
MI300X = Device(
    name="MI300X",
    **_peaks("MI300X", "bf16"),
    memory_bytes=192 * _GIB,
    matrix_efficiency=0.51,
    memory_efficiency=_MEMORY_EFFICIENCY,
    launch_s=_LAUNCH_S,
    overlap_factor=OVERLAP_FACTOR,
    tiling=Tiling(multiprocessors=304, narrow_share=0.9),  # the share is that of V100 and A100
    # AITER's kernels with a causal mask, 128 features, 8,192 tokens, 64 heads and 8 of keys, batch 8, gradients of
    # queries added in single precision (ROCm/aiter, op_tests/cpp/mha/README.md).
    attention=_attention(_tflops("MI300X", "bf16") * 0.51, **{AITER: (551, 433)}),
    fp8_flops_per_second=_peak("MI300X", "fp8"),
    # 990 of 2,615 TFLOP/s, 620 of 1,307 in bf16 (SemiAnalysis, as above)
    fp8_share=(990 / _tflops("MI300X", "fp8")) / (620 / _tflops("MI300X", "bf16")),
    **_PROCESS,
)
ASCEND = Device(name="Ascend", **_peaks("Ascend910", "fp16"), memory_bytes=32 * _GIB)
"""An eighth of the node in Hermes, table 7; the bandwidth of its memory is not given there but by the data sheet."""

_V100_NVLINK = Level(
    name="NVLink", fanout=8, link=Link(bytes_per_second=150e9, launch_s=22e-6, step_s=1.5e-6), through=False
)
_V100_MEASURED = replace(
    _V100_NVLINK,
    measured={
        2: (Link(bytes_per_second=22.6e9, launch_s=25e-6),),
        4: (Link(bytes_per_second=85.5e9, launch_s=29e-6),),
        8: (Link(bytes_per_second=134.9e9, launch_s=44e-6),),
    },
)
_A100_NVLINK = Level(
    name="NVLink",
    fanout=8,
    link=Link(bytes_per_second=300e9, launch_s=50e-6, step_s=3.4e-6),
    through=False,
    measured={
        2: (Link(bytes_per_second=179e9, launch_s=38e-6), Link(bytes_per_second=194e9, launch_s=58e-6)),
        4: (Link(bytes_per_second=172e9, launch_s=42e-6), Link(bytes_per_second=220e9, launch_s=70e-6)),
        8: (Link(bytes_per_second=229e9, launch_s=98e-6),),
    },
)
_H100_NVLINK = Level(name="NVLink", fanout=8, link=Link(bytes_per_second=370e9, launch_s=20e-6), through=False)
"""Of 450 GB/s the protocol leaves 370 (a maintainer of NCCL, NVIDIA/nccl-tests, issue 212), without NVLink SHARP."""
_B200_NVLINK = Level(name="NVLink", fanout=8, link=Link(bytes_per_second=18 * 40.1e9, launch_s=20e-6), through=False)
"""NCCL counts 40.1 GB/s for each of 18 links of 50, as it counts 20.6 of 25 for H100 (NVIDIA/nccl, issue 1807), without
NVLink SHARP."""
_XGMI_BYTES_PER_SECOND = 48e9
_MI300X_XGMI = Level(
    name="xGMI",
    fanout=8,
    link=Link(bytes_per_second=7 * _XGMI_BYTES_PER_SECOND, launch_s=20e-6),
    through=False,
    measured={n: (Link(bytes_per_second=(n - 1) * _XGMI_BYTES_PER_SECOND, launch_s=20e-6),) for n in range(2, 9)},
)
"""Every pair of a node's devices has a link of its own, of whose 64 GB/s 48 can be used, so that a group of n has n - 1
(AMD, "Understanding RCCL bandwidth and xGMI performance on AMD Instinct MI300X", 2025)."""
_NETWORK_SHARE = 0.94
"""A card of 400 Gbit/s carries 46 to 48 GB/s (a maintainer of NCCL, NVIDIA/nccl-tests, issue 290)."""


def _network(nodes: int, gbit: float, lanes: int, share: float = 1.0) -> Level:
    """Return the level between nodes: what a node has of the network, in `lanes` cards, of which `share` is reached."""
    link = Link(bytes_per_second=gbit * _GBIT_BYTES * share, launch_s=10e-6, step_s=5e-6)
    return Level(name="network", fanout=nodes, link=link, lanes=lanes)


def hc1() -> Cluster:
    """Return Proteus's HC1: a node of 8 Titan Xp, four to a socket; PCIe 3.0 below, QPI between the sockets.

    Between sockets messages go through the host's memory, which is taken to halve what PCIe carries.
    """
    pcie = Level(name="PCIe", fanout=4, link=Link(bytes_per_second=12e9, launch_s=10e-6))
    sockets = Level(name="QPI", fanout=2, link=Link(bytes_per_second=6e9, launch_s=10e-6))
    return Cluster(name="HC1", device=TITAN_XP, levels=(pcie, sockets))


def hc2(nodes: int = 2) -> Cluster:
    """Return Proteus's HC2: nodes of 8 V100 with NVLink and one card of 100 Gbit/s."""
    return Cluster(name="HC2", device=V100_FP32, levels=(_V100_NVLINK, _network(nodes, 100, 1)))


def hc3(nodes: int = 2) -> Cluster:
    """Return Proteus's HC3: nodes of 8 A100 with NVLink and 200 Gbit/s."""
    return Cluster(name="HC3", device=A100_FP32, levels=(_A100_NVLINK, _network(nodes, 200, 1)))


def hermes(nodes: int = 8) -> Cluster:
    """Return Hermes's nodes (table 7 and figure 16): fours of NPUs on HCCS, two fours on PCIe, 8 x 100 Gbit/s."""
    hccs = Level(name="HCCS", fanout=4, link=Link(bytes_per_second=30e9, launch_s=10e-6), through=False)
    pcie = Level(name="PCIe", fanout=2, link=Link(bytes_per_second=4 * 32e9, launch_s=10e-6), through=False, lanes=4)
    network = Level(
        name="network",
        fanout=nodes,
        link=Link(bytes_per_second=800 * _GBIT_BYTES, launch_s=10e-6, step_s=5e-6),
        lanes=8,
    )
    return Cluster(name="Hermes", device=ASCEND, levels=(hccs, pcie, network))


def dgx_v100(nodes: int = 1, network_gbit: float = 400) -> Cluster:
    """Return DGX-1 V100s as vTrain measured one, whose pairs share a single NVLink; 4 cards a node."""
    return Cluster(
        name="DGX V100", device=V100, levels=(_V100_MEASURED, _network(nodes, network_gbit, 4, _NETWORK_SHARE))
    )


def dgx_a100(nodes: int = 1, network_gbit: float = 1600) -> Cluster:
    """Return DGX A100s: NVLink and 8 cards a node."""
    return Cluster(
        name="DGX A100", device=A100, levels=(_A100_NVLINK, _network(nodes, network_gbit, 8, _NETWORK_SHARE))
    )


def dgx_h100(nodes: int = 1, network_gbit: float = 3200) -> Cluster:
    """Return DGX H100s: NVLink and 8 cards a node."""
    return Cluster(
        name="DGX H100", device=H100, levels=(_H100_NVLINK, _network(nodes, network_gbit, 8, _NETWORK_SHARE))
    )


def dgx_h200(nodes: int = 1, network_gbit: float = 3200) -> Cluster:
    """Return DGX H200s: NVLink and 8 cards a node."""
    return Cluster(
        name="DGX H200", device=H200, levels=(_H100_NVLINK, _network(nodes, network_gbit, 8, _NETWORK_SHARE))
    )


def dgx_b200(nodes: int = 1, network_gbit: float = 3200) -> Cluster:
    """Return DGX B200s: NVLink of the fifth generation and 8 cards a node."""
    return Cluster(
        name="DGX B200", device=B200, levels=(_B200_NVLINK, _network(nodes, network_gbit, 8, _NETWORK_SHARE))
    )


def mi300x(nodes: int = 1, network_gbit: float = 3200) -> Cluster:
    """Return nodes of 8 MI300X: a mesh of xGMI and 8 cards a node."""
    return Cluster(
        name="MI300X", device=MI300X, levels=(_MI300X_XGMI, _network(nodes, network_gbit, 8, _NETWORK_SHARE))
    )


def sunway_card() -> Cluster:
    """Return SW-IntraCC's card: four core groups of 15 GB on a ring; what a core group computes is not published."""
    group = Device(name="SW-AI core group", flops_per_second=1.0, memory_bytes_per_second=100e9, memory_bytes=15e9)
    return Cluster(name="SW-AI", device=group, levels=(Level(name="ring", fanout=4, link=SUNWAY),))


CLUSTERS = {
    "HC1": hc1,
    "HC2": hc2,
    "HC3": hc3,
    "Hermes": hermes,
    "DGX V100": dgx_v100,
    "DGX A100": dgx_a100,
    "DGX H100": dgx_h100,
    "DGX H200": dgx_h200,
    "DGX B200": dgx_b200,
    "MI300X": mi300x,
    "SW-AI": sunway_card,
}
