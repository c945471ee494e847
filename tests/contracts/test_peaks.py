"""The table of peaks: the right row for the names that frameworks report, none for others."""

import re

import pytest

from lockstep.contracts.peaks import DTYPES, PEAKS, peak_flops_per_second

TERA = 1e12


@pytest.mark.parametrize(
    ("device", "dtype", "tflops"),
    [
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("Tesla V100-PCIE-16GB", "fp16", 112),
        ("Tesla V100S-PCIE-32GB", "fp16", 130),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA A100-PCIE-40GB", "fp32", 19.5),
        ("NVIDIA A100-SXM4-80GB", "fp8", None),
        ("NVIDIA A800-SXM4-80GB", "bf16", 312),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA A10G", "bf16", None),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40", "bf16", 181.05),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5),
        ("NVIDIA H100 80GB HBM3", "fp8", 1979),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA H200", "bf16", 989.5),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA GH200 480GB", "bf16", 989.5),
        ("NVIDIA H800", "bf16", 989.5),
        ("NVIDIA H800 PCIe", "bf16", 756.5),
        ("NVIDIA H20", "bf16", None),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
        ("NVIDIA RTX 6000 Ada Generation", "bf16", 364.2),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("AMD Instinct MI300A", "bf16", 980.6),
        ("AMD Instinct MI325X", "fp8", 2614.9),
        ("AMD Instinct MI355X", "bf16", 2516.6),
        ("AMD Instinct MI250X", "bf16", 191.5),
        ("AMD Instinct MI250", "bf16", 181.05),
        ("AMD Instinct MI250X/MI250", "bf16", None),
        ("AMD Instinct MI250X / MI250", "bf16", None),
        ("Ascend910A", "fp16", 256),
        ("Ascend910B3", "fp16", None),
        ("Ascend910B1", "fp16", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", None),
        ("GRID A100-40C", "bf16", None),
        ("NVIDIA H100 80GB HBM2e", "bf16", None),
        ("NVIDIA GB200", "fp32", None),
        ("cpu", "fp32", None),
        ("", "bf16", None),
        ("NVIDIA H100 80GB HBM3", "", None),
    ],
)
def test_peak_of_a_device(device, dtype, tflops):
    """Variants of one chip have their own rows, and what no vendor published has none."""
    assert peak_flops_per_second(device, dtype) == (None if tflops is None else pytest.approx(tflops * TERA))


@pytest.mark.parametrize("row", PEAKS, ids=lambda row: row.pattern)
def test_a_row_is_dense_and_has_a_source(row):
    """Formats are known ones, none is faster than half its width allows, and the source is reported."""
    assert row.source
    assert re.compile(row.pattern)
    assert set(row.tflops) <= set(DTYPES)
    order = [row.tflops[dtype] for dtype in ("fp32", "tf32", "bf16", "fp8") if dtype in row.tflops]
    assert order == sorted(order)
    if {"bf16", "fp8"} <= set(row.tflops):
        assert row.tflops["fp8"] / row.tflops["bf16"] == pytest.approx(2, rel=0.02)
    if {"tf32", "bf16"} <= set(row.tflops):  # twice as wide, half as fast; GA102, AD102 and CDNA 3 agree
        assert row.tflops["bf16"] / row.tflops["tf32"] == pytest.approx(2, rel=0.02)
