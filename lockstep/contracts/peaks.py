"""Dense peak FLOP/s of devices by name and number format: the denominator of MFU.

Figures are the vendors' own, for matrix products without structured sparsity and with accumulation in fp32, at the
clock the data sheet assumes. A figure that a data sheet gives with sparsity is halved, as its footnote asks. `fp32` is
IEEE single precision, `tf32` what NVIDIA's tensor cores make of fp32 inputs where training allows it. What no vendor
published is not here, and a device that is not here has no peak: LOCKSTEP_PEAK_FLOPS names one.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")
_TERA = 1e12
_SLICE = re.compile(r"\bMIG\b|\bGRID\b")  # a part of a device under the whole one's name


class DevicePeak(NamedTuple):
    """Peaks of the devices whose name, as the framework reports it, holds the regular expression `pattern`.

    `tflops` maps a format of DTYPES to dense TFLOP/s of what the framework calls one device; `source` is where the
    vendor published them.
    """

    pattern: str
    tflops: Mapping[str, float]
    source: str


def _peak(pattern: str, source: str, *, half: float | None = None, **tflops: float) -> DevicePeak:
    """Return a row; `half` stands for both fp16 and bf16."""
    both = {} if half is None else {"fp16": half, "bf16": half}
    return DevicePeak(pattern, {**both, **tflops}, source)


PEAKS: tuple[DevicePeak, ...] = (
    # NVIDIA. Names as CUDA reports them; an SXM module often carries no form factor in its name.
    _peak(r"V100S", "V100 data sheet (2020), V100S PCIe", fp32=16.4, fp16=130),
    _peak(r"V100-PCIE", "V100 data sheet (2020), V100 PCIe", fp32=14, fp16=112),
    _peak(r"V100-SXM", "V100 data sheet (2020), V100 SXM2", fp32=15.7, fp16=125),
    _peak(r"\bT4$", "T4 data sheet", fp32=8.1, fp16=65),
    _peak(r"\bA[18]00\b", "A100 and A800 data sheets, without sparsity", fp32=19.5, tf32=156, half=312),
    _peak(r"\bA30\b", "A30 data sheet, without sparsity", fp32=10.3, tf32=82, half=165),
    _peak(r"\bA40\b", "A40 data sheet, without sparsity", fp32=37.4, tf32=74.8, half=149.7),
    _peak(r"\bA10$", "A10 data sheet, without sparsity", fp32=31.2, tf32=62.5, half=125),
    _peak(r"RTX A6000", "GA102 white paper, RTX A6000, fp32 accumulation", fp32=38.7, tf32=77.4, half=154.8),
    _peak(r"RTX 3090$", "GA102 white paper, RTX 3090, fp32 accumulation", fp32=35.6, tf32=35.6, half=71.2),
    _peak(r"\bL4$", "L4 data sheet, half of the figures with sparsity", fp32=30.3, tf32=60, half=121, fp8=242.5),
    _peak(r"\bL40$", "L40 data sheet, without sparsity", fp32=90.5, tf32=90.5, half=181.05, fp8=362),
    _peak(r"\bL40S\b", "L40S data sheet, without sparsity", fp32=91.6, tf32=183, half=362.05, fp8=733),
    _peak(
        r"RTX 6000 Ada", "Ada white paper, RTX 6000, fp32 accumulation", fp32=91.1, tf32=182.1, half=364.2, fp8=728.5
    ),
    _peak(r"RTX 4090$", "Ada white paper, RTX 4090, fp32 accumulation", fp32=82.6, tf32=82.6, half=165.2, fp8=330.3),
    _peak(
        r"RTX 5090$",
        "RTX Blackwell white paper, RTX 5090, fp32 accumulation",
        fp32=104.8,
        tf32=104.8,
        half=209.5,
        fp8=419,
    ),
    _peak(
        r"\bH[12]00 NVL\b",
        "H100 NVL and H200 NVL data sheets, half of the figures with sparsity",
        fp32=60,
        tf32=417.5,
        half=835.5,
        fp8=1670.5,
    ),
    _peak(
        r"\bH[18]00 PCIe\b",
        "H100 and H800 data sheets, PCIe, half of the figures with sparsity",
        fp32=51,
        tf32=378,
        half=756.5,
        fp8=1513,
    ),
    _peak(
        r"\b(H100|H200|H800|GH200)\b(?!.*HBM2)",
        "H100, H200, H800 (SXM) and GH200 data sheets, half of the figures with sparsity",
        fp32=67,
        tf32=494.5,
        half=989.5,
        fp8=1979,
    ),
    _peak(
        r"\bB[23]00\b",
        "HGX B200 and B300 data sheets, an eighth of the board, half of the figures with sparsity",
        fp32=75,
        tf32=1125,
        half=2250,
        fp8=4500,
    ),
    _peak(
        r"\bGB[23]00\b",
        "GB200 and GB300 NVL72 data sheets, per GPU, half of the figures with sparsity",
        tf32=1250,
        half=2500,
        fp8=5000,
    ),
    # AMD, matrix figures. An MI250X is two devices to ROCm; a driver that reports "MI250X / MI250" names neither.
    _peak(r"\bMI100\b", "Instinct MI100 data sheet", fp32=46.1, fp16=184.6, bf16=92.3),
    _peak(r"\bMI210\b", "Instinct MI210 data sheet", fp32=45.3, half=181),
    _peak(r"\bMI250X\b(?! ?/)", "Instinct MI250X data sheet, half of it: one of two dies", fp32=47.9, half=191.5),
    _peak(r"(?<!/ )(?<!/)\bMI250\b", "Instinct MI250 data sheet, half of it: one of two dies", fp32=45.3, half=181.05),
    _peak(r"\bMI300A\b", "Instinct MI300A data sheet", fp32=122.6, tf32=490.3, half=980.6, fp8=1961.2),
    _peak(
        r"\bMI3(00|25)X\b", "Instinct MI300X and MI325X data sheets", fp32=163.4, tf32=653.7, half=1307.4, fp8=2614.9
    ),
    _peak(r"\bMI350X\b", "Instinct MI350X data sheet", fp32=144.2, half=2306.9, fp8=4613.7),
    _peak(r"\bMI355X\b", "Instinct MI355X data sheet", fp32=157.3, half=2516.6, fp8=5033.2),
    # Huawei. Data sheets of the 910B give whole servers of several variants, so no figure of one device is here.
    _peak(r"\bAscend910A?$", "Hot Chips 31, the Ascend 910 slides", fp16=256),
)


def peak_flops_per_second(device: str, dtype: str) -> float | None:
    """Return the dense peak of `device` in `dtype` (one of DTYPES), or None if no vendor's figure is known."""
    if _SLICE.search(device):
        return None
    for row in PEAKS:
        if re.search(row.pattern, device):
            tflops = row.tflops.get(dtype)
            return None if tflops is None else tflops * _TERA
    return None
