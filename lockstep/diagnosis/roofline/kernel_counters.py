# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""Counters of Ascend kernels (kernel_details.csv, op_summary) as components.

One capture has one group of counters (aic_metrics): PipeUtilization has the times of the queues, hence R;
ArithmeticUtilization counts operations, hence U of Cube and Vector; Memory groups give bandwidths, hence U of a
transfer engine whose peak is given. The vendor's ratios are relative to the core's own time; R and U here are relative
to the task's duration (T_total).

Shape suffixes: N kernels, C components.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.roofline.components import COMPONENTS, CUBE, VECTOR, ComponentTable, Ratios
from lockstep.diagnosis.roofline.roofline_limits import PLAUSIBLE
from lockstep.trace.ascend.kernels import Kernels

_TIME_RATIOS = {
    "Cube": ("aic_mac_ratio", "mac_ratio"),
    "Vector": ("aiv_vec_ratio", "vec_ratio"),
    "Scalar": ("aic_scalar_ratio", "aiv_scalar_ratio", "scalar_ratio"),
    "MTE-L1": ("aic_mte1_ratio", "mte1_ratio"),
    "MTE-GM": ("aic_mte2_ratio", "aiv_mte2_ratio", "mte2_ratio"),
    "MTE-UB": ("aiv_mte3_ratio", "mte3_ratio"),
    "FixPipe": ("aic_fixpipe_ratio", "fixpipe_ratio"),
}
# What executed over what could: on measured rows cube_fops = mac_fp16_ratio cycles 8192 to four digits, so these are
# utilisations, not queue times. vec_misc_ratio is left out: on measured rows it repeats the fp32 ratio.
_WORK_RATIOS = {
    CUBE.name: ("aic_mac_fp16_ratio", "aic_mac_int8_ratio", "mac_fp16_ratio", "mac_int8_ratio"),
    VECTOR.name: (
        *("aiv_vec_fp32_ratio", "aiv_vec_fp16_ratio", "aiv_vec_int32_ratio"),
        *("vec_fp32_ratio", "vec_fp16_ratio", "vec_int32_ratio"),
    ),
}
_BANDWIDTHS = {
    "MTE-GM": ("aic_main_mem_read_bw(GB/s)", "aiv_main_mem_read_bw(GB/s)", "main_mem_read_bw(GB/s)"),
    "MTE-UB": ("aiv_main_mem_write_bw(GB/s)", "main_mem_write_bw(GB/s)"),
    "MTE-L1": ("aic_l1_read_bw(GB/s)", "l1_read_bw(GB/s)"),
}
BLOCKS = "Block Dim"
"""Cores that a kernel ran on; newer files call it Block Num."""

_MATRIX_TYPES = ("matmul", "conv", "attention", "gemm")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCounters:
    """Kernels of one rank as columns.

    `types`, `cores` (AI_CORE, AI_VECTOR_CORE, MIX_AIC, MIX_AIV, AI_CPU, HCCL ...), `shapes` and `formats` (of the
    inputs, as the vendor writes them; empty lists where there are none) are lists of n_kernels, `duration_ns` is int64
    of shape (n_kernels,). `counters` holds the vendor's columns by the vendor's name, float64 of shape (n_kernels,),
    NaN where a cell is empty or N/A.
    """

    types: list[str]
    cores: list[str]
    duration_ns: NDArray[np.int64]
    shapes: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    counters: Mapping[str, Ratios] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.types)


def kernel_counters_of(kernels: Kernels) -> KernelCounters:
    """Return the computing kernels of one rank's kernel_details.csv, op_summary or database, without collectives."""
    at = np.flatnonzero(~kernels.communicates)
    texts = {
        name: [kernels.texts[name][code] for code in codes[at].tolist()]
        for name, codes in {
            "type": kernels.type,
            "core": kernels.core,
            "input_shapes": kernels.input_shapes,
            "input_formats": kernels.input_formats,
        }.items()
    }
    blocks = np.where(kernels.blocks[at] > 0, kernels.blocks[at].astype(np.float64), np.nan)
    return KernelCounters(
        types=texts["type"],
        cores=texts["core"],
        duration_ns=kernels.duration_ns[at],
        shapes=texts["input_shapes"],
        formats=texts["input_formats"],
        counters={BLOCKS: blocks, **{name: values[at] for name, values in kernels.counters.items()}},
    )


def is_aicpu(core: str) -> bool:
    """Return whether a task of this core ran on the AICPU, which has none of the components."""
    return core.replace("_", "") == "AICPU"


def component_table_of(kernels: KernelCounters, peaks_gb_per_s: Mapping[str, float] | None = None) -> ComponentTable:
    """Return R and U of the kernels, NaN where this capture's group of counters lacks them.

    `peaks_gb_per_s` gives the peak bandwidth of a component by name; without it bandwidths are not used.
    """
    time_ratio = [_greatest(kernels, _TIME_RATIOS[each.name]) for each in COMPONENTS]
    used = [_used(kernels, each.name, peaks_gb_per_s or {}) for each in COMPONENTS]
    ratio_NC, used_NC = np.stack(time_ratio, axis=1), np.stack(used, axis=1)
    elsewhere_N = np.array([is_aicpu(each) for each in kernels.cores], np.bool_)
    ratio_NC[elsewhere_N | (np.nan_to_num(ratio_NC) == 0).all(axis=1)] = np.nan  # all zero means not measured
    used_NC[elsewhere_N] = np.nan
    cube = COMPONENTS.index(CUBE)
    named = np.array([any(part in each.lower() for part in _MATRIX_TYPES) for each in kernels.types], np.bool_)
    uses_cube = named | (ratio_NC[:, cube] > 0) | (used_NC[:, cube] > 0)
    return ComponentTable(components=COMPONENTS, time_ratio=ratio_NC, utilisation=used_NC, uses_cube=uses_cube)


def _used(kernels: KernelCounters, component: str, peaks: Mapping[str, float]) -> Ratios:
    if component in _WORK_RATIOS:
        parts = [each for name in _WORK_RATIOS[component] if (each := _of_duration(kernels, name)) is not None]
        if not parts:
            return np.full(len(kernels), np.nan)
        return np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))
    if component in peaks:
        found = [kernels.counters[name] for name in _BANDWIDTHS.get(component, ()) if name in kernels.counters]
        if found:
            return np.asarray(np.fmax.reduce(found) / peaks[component], np.float64)
    return np.full(len(kernels), np.nan)


def _greatest(kernels: KernelCounters, names: tuple[str, ...]) -> Ratios:
    """Return the largest of the existing columns: cube and vector cores of a mixed kernel run concurrently."""
    parts = [each for name in names if (each := _of_duration(kernels, name)) is not None]
    return np.asarray(np.fmax.reduce(parts), np.float64) if parts else np.full(len(kernels), np.nan)


def _of_duration(kernels: KernelCounters, name: str) -> Ratios | None:
    """Convert a ratio of the core's time to one of the task's duration.

    An invalid ratio (negative, or above 1 by more than rounding) was not measured. If the core's time exceeds the
    duration it has another unit (older files sum over blocks), and the ratio is used unchanged.
    """
    if name not in kernels.counters:
        return None
    core_us = kernels.counters.get("aiv_time(us)" if name.startswith("aiv_") else "aicore_time(us)")
    ratio = kernels.counters[name]
    ratio = np.where((ratio >= 0) & (ratio <= PLAUSIBLE.value), ratio, np.nan)
    if core_us is None:
        return ratio
    with np.errstate(over="ignore"):  # a damaged file's time is infinite then, so not of the duration
        part = core_us * 1e3 / np.maximum(kernels.duration_ns, 1)
    return np.asarray(ratio * np.where((part > 0) & (part <= 1), part, 1.0), np.float64)
