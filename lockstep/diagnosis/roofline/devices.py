"""What a device can do at most: arithmetic and memory, the two lines of the roofline.

Arithmetic is the table behind MFU (`contracts.peaks`) and, for Ascend, what its cores can do at their clock; memory is
the vendors' figure of one device. What no vendor publishes is not here: an operator on such a device is not judged.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from lockstep.contracts.peaks import peak_flops_per_second

_GIGA = 1e9
_CUBE_FLOPS_PER_CYCLE = {"fp16": 8192, "bf16": 8192, "int8": 16384}
"""A cube multiplies 16 x 16 x 16 a cycle; measured rows agree to 4 digits: cube_fops = mac_fp16_ratio cycles 8192."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The peaks of `device` in `number_format`; `source` states whose figures they are."""

    device: str
    number_format: str
    flops_per_second: float
    bytes_per_second: float
    source: str

    @property
    def ridge(self) -> float:
        """Return AI_necessary, the intensity in FLOP per byte at which both lines meet."""
        return self.flops_per_second / self.bytes_per_second

    def seconds(self, flops: float, moved_bytes: float) -> float:
        """Return the least time in which the device can do this work."""
        return max(flops / self.flops_per_second, moved_bytes / self.bytes_per_second)


@dataclass(frozen=True, slots=True)
class _Memory:
    pattern: str
    gigabytes_per_second: float
    source: str


_MEMORY = (
    _Memory(r"V100S", 1134, "V100 data sheet (2020), V100S PCIe"),
    _Memory(r"V100", 900, "V100 data sheet (2020)"),
    _Memory(r"\bA[18]00\b.*80GB PCIe", 1935, "A100 data sheet, 80 GB PCIe"),
    _Memory(r"\bA[18]00\b.*80GB", 2039, "A100 and A800 data sheets, 80 GB SXM"),
    _Memory(r"\bA100\b", 1555, "A100 data sheet, 40 GB"),
    _Memory(r"\bA30\b", 933, "A30 data sheet"),
    _Memory(r"\bA40\b", 696, "A40 data sheet"),
    _Memory(r"\bA10$", 600, "A10 data sheet"),
    _Memory(r"\bL4$", 300, "L4 data sheet"),
    _Memory(r"\bL40S?\b", 864, "L40 and L40S data sheets"),
    _Memory(r"RTX 4090$", 1008, "Ada white paper, RTX 4090"),
    _Memory(r"RTX 5090$", 1792, "RTX Blackwell white paper, RTX 5090"),
    _Memory(r"\bH100 NVL\b", 3900, "H100 NVL data sheet"),
    _Memory(r"\bH[18]00 PCIe\b", 2000, "H100 data sheet, PCIe"),
    _Memory(r"\bH200\b", 4800, "H200 data sheet"),
    _Memory(r"\b(H100|H800)\b(?!.*HBM2)", 3350, "H100 data sheet, SXM"),
    _Memory(r"\bG?B[23]00\b", 8000, "HGX B200, B300 and GB200 NVL72 data sheets, per GPU"),
    _Memory(r"\bMI100\b", 1228.8, "Instinct MI100 data sheet"),
    _Memory(r"\bMI210\b", 1638.4, "Instinct MI210 data sheet"),
    _Memory(r"\bMI250X?\b", 1638.4, "Instinct MI250 data sheets, half of it: one of two dies"),
    _Memory(r"\bMI300[AX]\b", 5300, "Instinct MI300 data sheets"),
    _Memory(r"\bMI325X\b", 6000, "Instinct MI325X data sheet"),
    _Memory(r"\bMI35[05]X\b", 8000, "Instinct MI350 data sheets"),
    _Memory(r"\bAscend910A?$", 1200, "Hot Chips 31, the Ascend 910 slides"),
    _Memory(r"\bAscend910(C\b|_93)", 1600, "Serving LLMs on CloudMatrix384 (2025), one of two dies"),
)


@dataclass(frozen=True, slots=True)
class _Cores:
    pattern: str
    cores: int
    mhz: float
    source: str


_CORES = (
    _Cores(r"\bAscend910B2\b", 24, 1800, "CANN platform_config/Ascend910B2.ini: ai_core_cnt, cube_freq"),
    _Cores(r"\bAscend910(C\b|_93)", 24, 1850, "CANN platform_config/Ascend910_93*.ini: ai_core_cnt, cube_freq"),
)


def cube_flops_per_second(cores: int, mhz: float, number_format: str) -> float | None:
    """Return what `cores` cubes do at `mhz` (msprof-analyze operator_mfu), None where cubes do not know the format."""
    per_cycle = _CUBE_FLOPS_PER_CYCLE.get(number_format)
    return None if per_cycle is None else cores * mhz * 1e6 * per_cycle


def rated_mhz(device: str) -> float | None:
    """Return the clock of the device's cores that the vendor rates it at, None if no figure is known."""
    return next((row.mhz for row in _CORES if re.search(row.pattern, device)), None)


def memory_bytes_per_second(device: str) -> tuple[float, str] | None:
    """Return the peak of the device's memory and its source, None if no vendor's figure is known."""
    for row in _MEMORY:
        if re.search(row.pattern, device):
            return row.gigabytes_per_second * _GIGA, row.source
    return None


@lru_cache(maxsize=256)  # asked for each set of shapes; names come from traces, so not all of them are kept
def roof_of(device: str, number_format: str) -> Roof | None:
    """Return the roof of a device as the framework names it, None if one of its two lines is unknown.

    `number_format` is one of contracts.peaks.DTYPES or of the cube. Slices of a device (MIG) have none.
    """
    memory = memory_bytes_per_second(device)
    if memory is None:
        return None
    flops, source = peak_flops_per_second(device, number_format), "contracts.peaks"
    for row in _CORES:
        if flops is None and re.search(row.pattern, device):
            flops, source = cube_flops_per_second(row.cores, row.mhz, number_format), row.source
    if flops is None:
        return None
    return Roof(
        device=device,
        number_format=number_format,
        flops_per_second=flops,
        bytes_per_second=memory[0],
        source=f"{source}; {memory[1]}",
    )
