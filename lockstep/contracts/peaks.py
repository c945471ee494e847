"""The peak performance of devices: the one table of dense FLOP/s by number format and of memory bandwidth.

MFU, rooflines and the simulator read it. Figures are the vendors' own. FLOP/s are of matrix products without structured
sparsity and with accumulation in fp32, at the clock that the data sheet assumes; a figure that a data sheet gives with
sparsity is halved, as its footnote instructs. `fp32` is IEEE single precision; `tf32` is what NVIDIA's tensor cores use
for fp32 inputs if training allows it. Figures that no vendor published are missing, and a missing device has no peak:
LOCKSTEP_PEAK_FLOPS sets one.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")
_TERA = 1e12
_GIGA = 1e9
_SLICE = re.compile(r"\bMIG\b|\bGRID\b")  # a part of a device, under the name of the whole


class CubeUnits(NamedTuple):
    """The matrix units of an Ascend device: their number, and the clock in MHz at which the vendor rates them."""

    cores: int
    mhz: float


class DevicePeak(NamedTuple):
    """Peaks of the devices whose name, as the framework reports it, matches the regular expression `pattern`.

    `tflops` maps a format of DTYPES to the dense TFLOP/s of what the framework calls one device. The memory bandwidth
    is None if no figure is known. `source` is where the vendor published them.
    """

    pattern: str
    source: str
    tflops: Mapping[str, float]
    memory_gigabytes_per_second: float | None = None
    cubes: CubeUnits | None = None


def _peak(
    pattern: str,
    source: str,
    memory_gigabytes_per_second: float | None = None,
    *,
    half: float | None = None,
    **tflops: float,
) -> DevicePeak:
    """Return a row; `half` stands for both fp16 and bf16."""
    both = {} if half is None else {"fp16": half, "bf16": half}
    return DevicePeak(pattern, source, {**both, **tflops}, memory_gigabytes_per_second)


_A100 = {"fp32": 19.5, "tf32": 156, "half": 312}
_H100_SXM = {"fp32": 67, "tf32": 494.5, "half": 989.5, "fp8": 1979}
_HOPPER_NVL = {"fp32": 60, "tf32": 417.5, "half": 835.5, "fp8": 1670.5}
_BLACKWELL = {"fp32": 75, "tf32": 1125, "half": 2250, "fp8": 4500}
_CDNA_3 = {"fp32": 163.4, "tf32": 653.7, "half": 1307.4, "fp8": 2614.9}

PEAKS: tuple[DevicePeak, ...] = (
    # NVIDIA. Names as CUDA reports them; an SXM module often carries no form factor in its name.
    _peak(r"TITAN Xp$", "TITAN Xp product page (2017)", 547.6, fp32=12.15),
    _peak(r"V100S", "V100 data sheet (2020), V100S PCIe", 1134, fp32=16.4, fp16=130),
    _peak(r"V100-PCIE", "V100 data sheet (2020), V100 PCIe", 900, fp32=14, fp16=112),
    _peak(r"V100-SXM", "V100 data sheet (2020), V100 SXM2", 900, fp32=15.7, fp16=125),
    _peak(r"V100", "V100 data sheet (2020)", 900),
    _peak(r"\bT4$", "T4 data sheet", fp32=8.1, fp16=65),
    _peak(r"\bA[18]00\b.*80GB PCIe", "A100 data sheet, 80 GB PCIe, without sparsity", 1935, **_A100),
    _peak(r"\bA[18]00\b.*80GB", "A100 and A800 data sheets, 80 GB SXM, without sparsity", 2039, **_A100),
    _peak(r"\bA100\b", "A100 data sheet, 40 GB, without sparsity", 1555, **_A100),
    _peak(r"\bA800\b", "A800 data sheet, without sparsity", **_A100),
    _peak(r"\bA30\b", "A30 data sheet, without sparsity", 933, fp32=10.3, tf32=82, half=165),
    _peak(r"\bA40\b", "A40 data sheet, without sparsity", 696, fp32=37.4, tf32=74.8, half=149.7),
    _peak(r"\bA10$", "A10 data sheet, without sparsity", 600, fp32=31.2, tf32=62.5, half=125),
    _peak(r"RTX A6000", "GA102 white paper, RTX A6000, fp32 accumulation", fp32=38.7, tf32=77.4, half=154.8),
    _peak(r"RTX 3090$", "GA102 white paper, RTX 3090, fp32 accumulation", fp32=35.6, tf32=35.6, half=71.2),
    _peak(r"\bL4$", "L4 data sheet, half of the figures with sparsity", 300, fp32=30.3, tf32=60, half=121, fp8=242.5),
    _peak(r"\bL40$", "L40 data sheet, without sparsity", 864, fp32=90.5, tf32=90.5, half=181.05, fp8=362),
    _peak(r"\bL40S\b", "L40S data sheet, without sparsity", 864, fp32=91.6, tf32=183, half=362.05, fp8=733),
    _peak(
        r"RTX 6000 Ada", "Ada white paper, RTX 6000, fp32 accumulation", fp32=91.1, tf32=182.1, half=364.2, fp8=728.5
    ),
    _peak(
        r"RTX 4090$", "Ada white paper, RTX 4090, fp32 accumulation", 1008, fp32=82.6, tf32=82.6, half=165.2, fp8=330.3
    ),
    _peak(
        r"RTX 5090$",
        "RTX Blackwell white paper, RTX 5090, fp32 accumulation",
        1792,
        fp32=104.8,
        tf32=104.8,
        half=209.5,
        fp8=419,
    ),
    _peak(r"\bH100 NVL\b", "H100 NVL data sheet, half of the figures with sparsity", 3900, **_HOPPER_NVL),
    _peak(r"\bH200 NVL\b", "H200 NVL data sheet, half of the figures with sparsity", 4800, **_HOPPER_NVL),
    _peak(
        r"\bH[18]00 PCIe\b",
        "H100 and H800 data sheets, PCIe, half of the figures with sparsity",
        2000,
        fp32=51,
        tf32=378,
        half=756.5,
        fp8=1513,
    ),
    _peak(
        r"\b(H100|H800)\b(?!.*HBM2)",
        "H100 and H800 data sheets, SXM, half of the figures with sparsity",
        3350,
        **_H100_SXM,
    ),
    _peak(r"\bH200\b", "H200 data sheet, SXM, half of the figures with sparsity", 4800, **_H100_SXM),
    _peak(r"\bGH200\b", "GH200 data sheet, half of the figures with sparsity", **_H100_SXM),
    _peak(
        r"\bB200\b",
        "HGX B200 data sheet, an eighth of the board, half of the figures with sparsity; a bus of 7,680 bits "
        "(pytorch/ao, pull request 4002)",
        7672,
        **_BLACKWELL,
    ),
    _peak(
        r"\bB300\b",
        "HGX B300 data sheet, an eighth of the board, half of the figures with sparsity",
        8000,
        **_BLACKWELL,
    ),
    _peak(
        r"\bGB[23]00\b",
        "GB200 and GB300 NVL72 data sheets, per GPU, half of the figures with sparsity",
        8000,
        tf32=1250,
        half=2500,
        fp8=5000,
    ),
    # AMD, matrix figures. An MI250X is two devices to ROCm; a driver that reports "MI250X / MI250" names neither.
    _peak(r"\bMI100\b", "Instinct MI100 data sheet", 1228.8, fp32=46.1, fp16=184.6, bf16=92.3),
    _peak(r"\bMI210\b", "Instinct MI210 data sheet", 1638.4, fp32=45.3, half=181),
    _peak(
        r"\bMI250X\b(?! ?/)", "Instinct MI250X data sheet, half of it: one of two dies", 1638.4, fp32=47.9, half=191.5
    ),
    _peak(
        r"(?<!/ )(?<!/)\bMI250\b",
        "Instinct MI250 data sheet, half of it: one of two dies",
        1638.4,
        fp32=45.3,
        half=181.05,
    ),
    _peak(r"\bMI250X?\b", "Instinct MI250 data sheets, half of it: one of two dies", 1638.4),
    _peak(r"\bMI300A\b", "Instinct MI300A data sheet", 5300, fp32=122.6, tf32=490.3, half=980.6, fp8=1961.2),
    _peak(r"\bMI300X\b", "Instinct MI300X data sheet", 5300, **_CDNA_3),
    _peak(r"\bMI325X\b", "Instinct MI325X data sheet", 6000, **_CDNA_3),
    _peak(r"\bMI350X\b", "Instinct MI350X data sheet", 8000, fp32=144.2, half=2306.9, fp8=4613.7),
    _peak(r"\bMI355X\b", "Instinct MI355X data sheet", 8000, fp32=157.3, half=2516.6, fp8=5033.2),
    # Huawei. Data sheets of the 910B give whole servers of several variants, so no figure of one device is here.
    _peak(r"\bAscend910A?$", "Hot Chips 31, the Ascend 910 slides", 1200, fp16=256),
    DevicePeak(
        r"\bAscend910B2\b",
        "CANN platform_config/Ascend910B2.ini: ai_core_cnt, cube_freq",
        {},
        cubes=CubeUnits(24, 1800),
    ),
    DevicePeak(
        r"\bAscend910(C\b|_93)",
        "CANN platform_config/Ascend910_93*.ini: ai_core_cnt, cube_freq; Serving LLMs on CloudMatrix384 (2025), one of "
        "two dies",
        {},
        1600,
        CubeUnits(24, 1850),
    ),
)


@lru_cache(maxsize=256)  # read for each set of shapes; names come from traces, so not all are cached
def peaks_of(device: str) -> DevicePeak | None:
    """Return the row of `device` as the framework names it; None for a slice of a device and if no row matches."""
    if _SLICE.search(device):
        return None
    return next((row for row in PEAKS if re.search(row.pattern, device)), None)


def peak_flops_per_second(device: str, dtype: str) -> float | None:
    """Return the dense peak of `device` in `dtype` (one of DTYPES), or None if no vendor's figure is known."""
    row = peaks_of(device)
    tflops = None if row is None else row.tflops.get(dtype)
    return None if tflops is None else tflops * _TERA


def memory_bytes_per_second(device: str) -> float | None:
    """Return the bandwidth of the memory of `device`, or None if no vendor's figure is known."""
    row = peaks_of(device)
    gigabytes = None if row is None else row.memory_gigabytes_per_second
    return None if gigabytes is None else gigabytes * _GIGA
