# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""How kernels use a device: filled multiprocessors, resident warps, tensor cores.

Blocks per multiprocessor and occupancy are CUPTI's estimates, which NVIDIA's traces contain. Tensor cores are
recognised by the kernel names of the libraries. Shape suffixes: K kernels, G groups, F figures of `KernelUse`.
"""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import ABSENT, TraceColumns

_TENSOR_CORES = re.compile(
    r"""[hs]884 | i8816 | [hisc]1688 | 16816 | hmma | tensorop | gmma | nvjet
    | xmma\w*_(tf32|bf16|f16|e4m3|e5m2) | flash_(fwd|bwd) | fmha""",
    re.VERBOSE,
)
"""From the allowlist of TensorBoard's plugin for torch, with Hopper's kernels, and without products of plain fp32."""
_NAME_CHARS = 2048


class KernelUse(NamedTuple):
    """Use of a device by kernels, sums over their time in ns.

    `known_ns` is the time of kernels with a recorded occupancy; `filled_ns` is this time weighted by the share of
    multiprocessors with a block, `resident_ns` by the share of resident warps. `tensor_ns` covers all kernels.
    """

    known_ns: float = 0.0
    filled_ns: float = 0.0
    resident_ns: float = 0.0
    tensor_ns: float = 0.0

    def plus(self, other: "KernelUse") -> "KernelUse":
        """Return the use of both."""
        return KernelUse(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


UNKNOWN_USE = KernelUse()


def use_of(columns: TraceColumns, kernel_K: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the figures of `KernelUse` of each kernel, array of shape (n_kernels, 4), ns."""
    lasts_ns_K = columns.duration_ns[kernel_K].astype(np.float64)
    figures = np.array([*columns.occupancies, (ABSENT, ABSENT)], np.float64).reshape(-1, 2)
    blocks_K, warps_K = figures[columns.occupancy[kernel_K]].T
    known_ns_K = np.where((blocks_K != ABSENT) & (warps_K != ABSENT), lasts_ns_K, 0.0)
    tensor_K = columns.named(_is_tensor_core)[kernel_K]
    return np.stack(
        (known_ns_K, known_ns_K * np.minimum(blocks_K, 1), known_ns_K * np.minimum(warps_K, 1), lasts_ns_K * tensor_K),
        axis=1,
    )


def _is_tensor_core(name: str) -> bool:
    return _TENSOR_CORES.search(name[:_NAME_CHARS]) is not None
