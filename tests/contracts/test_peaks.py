"""The table of peaks: the right row for the names that frameworks report, none for others."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.contracts.peaks import DTYPES, PEAKS, memory_bytes_per_second, peak_flops_per_second

TERA = 1e12
GIGA = 1e9
ROOT = Path(__file__).parents[2]
TABLE = ROOT / "lockstep/contracts/peaks.py"
PACKAGES = ("lockstep", "exporter", "coordinator", "dashboards", "alerts", "benchmarks")


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


@pytest.mark.parametrize(
    ("device", "gigabytes"),
    [
        ("Tesla V100-DGXS-32GB", 900),
        ("NVIDIA A800 80GB PCIe", 1935),
        ("NVIDIA A800-SXM4-40GB", None),
        ("NVIDIA H200 NVL", 4800),
        ("NVIDIA GH200 480GB", None),
        ("AMD Instinct MI250X / MI250", 1638.4),
        ("AMD Instinct MI325X", 6000),
        ("Ascend910B2", None),
        ("GRID A100-40C", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("cpu", None),
    ],
)
def test_memory_of_a_device(device, gigabytes):
    """That of a whole device: a slice shares it, and what no vendor published is not there."""
    assert memory_bytes_per_second(device) == (None if gigabytes is None else pytest.approx(gigabytes * GIGA))


def significant_digits(figure: float) -> int:
    return len(f"{figure:g}".replace(".", "").rstrip("0"))


def figures_of_the_table() -> set[float]:
    """Return what other numbers hardly are: figures of four significant digits, or of two in units of a second."""
    figures = {each for row in PEAKS for each in (*row.tflops.values(), row.memory_gigabytes_per_second) if each}
    plain = {each for each in figures if significant_digits(each) >= 4}
    return plain | {each * unit for each in figures for unit in (GIGA, TERA) if significant_digits(each) >= 2}


def numbers_of(source: str) -> Iterator[tuple[int, float]]:
    """Yield the line and the value of each number in Python source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield node.lineno, node.value


def test_no_second_table_of_devices():
    """A figure of a device stands in the table alone."""
    figures = figures_of_the_table()
    second = [
        f"{path.relative_to(ROOT)}:{line}: {value:g}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if path != TABLE
        for line, value in numbers_of(path.read_text())
        if value in figures
    ]
    assert second == []


def test_a_second_table_would_be_found():
    """The last ones had 2039 GB/s and 3350e9 bytes/s; most of the table's own rows are found by their figures."""
    figures = figures_of_the_table()
    assert {2039, 3350e9, 989.5e12, 5300e9} <= figures
    found = {line for line, value in numbers_of(TABLE.read_text()) if value in figures}
    assert len(found) >= 20
