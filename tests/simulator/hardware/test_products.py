"""Products by shape: the mechanism, and the shipped devices against published operator times."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulator_frameworks import HBM2E_500_W
from lockstep.simulator.hardware.cluster import Device
from lockstep.simulator.hardware.clusters import A100, B200, H100, MI300X, V100
from lockstep.simulator.hardware.products import Shape, Tiling, product_seconds, tile_rows

OPERATORS = Path(__file__).resolve().parents[1] / "data" / "operators.csv"
HALF_BYTES = 2
ROW_LAUNCH_S = 5e-6
"""Beginning and end of a kernel in the measured rows, which are issued back to back or have the host's part taken off."""
_KERNEL_TIMED = "time of the kernel"
"""What a row's source states where its time is the kernel's alone."""
SHIPPED = [pytest.param(each, id=each.name) for each in (A100, B200, H100, V100)]
TILING = Tiling(multiprocessors=100, narrow_share=0.7)


def seconds(rows, columns, inner, count=1.0, tiling=TILING, **shape):
    """Return the arithmetic of a product where 100 multiprocessors reach 1 TFLOP/s each."""
    return product_seconds(Shape(rows=rows, columns=columns, inner=inner, count=count, **shape), tiling, 100e12)


def test_one_tile_more_than_a_wave_takes_another_wave():
    """100 tiles of 256 x 128 take one wave, 101 take two, and 200 no more."""
    one = seconds(100 * 256, 128, 1000)
    assert one == pytest.approx(2 * 256 * 128 * 1000 / 1e12)
    assert seconds(101 * 256, 128, 1000) == pytest.approx(seconds(200 * 256, 128, 1000)) == pytest.approx(2 * one)


def test_a_part_of_a_tile_costs_a_whole_one():
    """A product of one row costs what one of 128 rows costs, the height of the narrow tile."""
    assert seconds(1, 12800, 1000) == pytest.approx(seconds(128, 12800, 1000))


def test_equal_products_share_waves():
    """Heads of attention fill waves together: 100 products of a tile each take what 60 take, and half of 101."""
    assert seconds(256, 128, 64, count=100) == pytest.approx(seconds(256, 128, 64, count=60))
    assert seconds(256, 128, 64, count=101) == pytest.approx(2 * seconds(256, 128, 64, count=100))


def test_the_inner_dimension_is_cut_where_the_output_fills_no_wave():
    """A gradient of a small weight over many tokens keeps more than one multiprocessor busy."""
    assert seconds(256, 128, 8192) < 2 * 256 * 128 * 8192 / 1e12 / 8


def test_dimensions_that_are_not_aligned_cost_more():
    """A head of 150 features takes longer than one of 152, though it computes less."""
    assert seconds(2048, 150, 2048, count=8) > 1.4 * seconds(2048, 152, 2048, count=8)


def test_interleaved_heads_that_are_not_aligned_do_without_matrix_units():
    """Heads next to each other in a row begin at unaligned addresses, forward and backward; 104 features are aligned."""
    tiling = replace(TILING, unaligned_flops_per_second=5e12)
    slow_s = 2 * 2048 * 108 * 2048 * 8 / 5e12
    forward = Shape(rows=2048, columns=2048, inner=108, count=8, interleaved=True)
    for shape in (forward, *forward.backward()):
        assert product_seconds(shape, tiling, 100e12) == pytest.approx(slow_s)
        assert product_seconds(replace(shape, interleaved=False), tiling, 100e12) < slow_s / 5
    assert seconds(2048, 2048, 104, count=8, tiling=tiling, interleaved=True) < slow_s / 5
    assert seconds(2048, 2048, 108, count=8, interleaved=True) < slow_s / 5  # nothing is known of the device


def test_a_larger_product_never_takes_less():
    """More rows, columns or products never take less time."""
    random = np.random.default_rng(3)
    for _ in range(200):
        sizes = (8 * random.integers(1, 1000, size=3)).tolist()
        count = int(random.integers(1, 20))
        base = seconds(*sizes, count=count)
        assert seconds(*sizes, count=count + 1) >= base
        for place in range(2):
            larger = [size + 8 * (index == place) for index, size in enumerate(sizes)]
            assert seconds(*larger, count=count) >= base * (1 - 1e-9)


def rows_of(device):
    """Return the device's rows."""
    with OPERATORS.open(encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if row["device"] == device.name]


def measured_products(device, rows):
    """Return FLOPs, measured seconds, and predicted over measured seconds of the device's rows: arrays of one shape."""
    flops, measured_s, ratios = [], [], []
    for row in rows:
        shape = Shape(**{name: float(row[name]) for name in ("rows", "columns", "inner", "count")})
        flops.append(2 * shape.rows * shape.columns * shape.inner * shape.count)
        elements = shape.rows * shape.inner + shape.inner * shape.columns + shape.rows * shape.columns
        arithmetic_s = device.arithmetic_seconds(flops[-1], shapes=(shape,))
        predicted_s = device.bound_seconds(arithmetic_s, elements * HALF_BYTES * shape.count, 0.0)
        predicted_s += ROW_LAUNCH_S * (_KERNEL_TIMED not in row["source"])
        measured_s.append(flops[-1] / float(row["tflops"]) / 1e12)
        ratios.append(predicted_s / measured_s[-1])
    return np.array(flops), np.array(measured_s), np.array(ratios)


@pytest.mark.parametrize("device", [*SHIPPED, pytest.param(MI300X, id=MI300X.name)])
def test_shipped_efficiencies_are_those_of_the_largest_products(device: Device):
    """Under sustained load: the largest product, in each format it has, is met to 2 % on average.

    Where a row states that its operands are distributed as those of training are, it counts: zeros and integers take
    less power, and the clocks of an A100 fall by 13 % without them.
    """
    rows = rows_of(device)
    flops, _, ratios = measured_products(device, [row for row in rows if row["operands"]] or rows)
    assert abs(ratios[flops == flops.max()].mean() - 1) <= 0.02


@pytest.mark.parametrize("device", SHIPPED)
def test_shipped_tilings_show_the_measured_dependence_on_shape(device: Device):
    """Apart from a common factor, the devices' clocks, products of all shapes are met to 6 % on average."""
    _, _, ratios = measured_products(device, rows_of(device))
    assert len(ratios) >= 5
    assert np.abs(ratios / np.median(ratios) - 1).mean() <= 0.06


@pytest.mark.parametrize("number_format", ["bf16", "fp8"])
def test_the_limited_h100_meets_products_in_both_formats(number_format):
    """H100 of 500 W: products of half precision and of FP8 are met to 6 % each."""
    device = replace(H100, name="H100 500 W", **HBM2E_500_W)
    rows = [row for row in rows_of(device) if row["format"] == number_format]
    _, _, ratios = measured_products(device.as_fp8() if number_format == "fp8" else device, rows)
    assert len(ratios) == 3
    assert np.abs(ratios - 1).max() <= 0.06


@pytest.mark.parametrize(("columns", "inner", "measured_ms"), [(8192, 5120, 1.31), (5120, 8192, 1.26)])
def test_grouped_products_take_longer_than_those_of_equal_groups(columns, inner, measured_ms):
    """16 uneven groups with 512 rows on average (pytorch/ao, pull request 2490): their last tiles are partly empty."""
    shape = Shape(rows=512, columns=columns, inner=inner, count=16, grouped=True)
    grouped_s, plain_s = (
        product_seconds(each, H100.tiling, H100.reached_flops_per_second)
        for each in (shape, replace(shape, grouped=False))
    )
    assert 0.9 < measured_ms / 1e3 / grouped_s < 1.06
    assert measured_ms / 1e3 / plain_s > 1.12
    alone = replace(shape, count=1, equal_rows=True)
    assert product_seconds(alone, H100.tiling, 1e15) == product_seconds(
        replace(alone, grouped=False), H100.tiling, 1e15
    )


@pytest.mark.parametrize(
    ("fill", "measured_tflops"), [(850.0, (508.77, 398.81)), (290.0, (627.903, 553.945))], ids=["TE 2.2", "TE 2.7"]
)
def test_products_of_experts_of_transformer_engine(fill, measured_tflops):
    """8 groups of 4,096 and 16 of 2,048 rows (NVIDIA/TransformerEngine, pull request 2045): both mean to 6 %."""
    device = replace(H100, grouped_fill=fill)
    ratios = []
    for (count, rows), tflops in zip(((8, 4096), (16, 2048)), measured_tflops, strict=True):
        shape = Shape(rows=rows, columns=768, inner=2048, count=count, grouped=True, equal_rows=True)
        flops = 2.0 * count * rows * 768 * 2048
        ratios.append(device.arithmetic_seconds(flops, 1.0, (shape,)) / (flops / tflops / 1e12))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.06)
    assert np.abs(np.array(ratios) - 1).max() <= 0.17


def test_a_device_has_the_fill_of_its_tiling_unless_another_is_stated():
    shape = Shape(rows=512, columns=768, inner=2048, count=8, grouped=True, equal_rows=True)
    seconds = [replace(H100, grouped_fill=fill).arithmetic_seconds(1.0, 1.0, (shape,)) for fill in (None, 850.0, 0.0)]
    assert seconds[0] == seconds[1] > seconds[2]
    assert seconds[2] == H100.arithmetic_seconds(1.0, 1.0, (replace(shape, grouped=False),))


UNEVEN = (
    (272, 560, 912, 544, 480, 288, 1104, 192, 192, 256, 256, 304, 1072, 1328, 112, 320),
    (464, 544, 656, 944, 304, 384, 288, 384, 992, 64, 208, 720, 1488, 320, 224, 208),
)
"""The groups of pytorch/ao, pull request 2490, as printed."""


@pytest.mark.parametrize("sizes", UNEVEN)
@pytest.mark.parametrize("tile", [128, 256])
def test_groups_of_random_sizes_have_half_a_tile_more(sizes, tile):
    assert len(sizes) * tile_rows(Shape(rows=512, columns=1, inner=1, grouped=True), tile) == pytest.approx(
        sum(-(-size // tile) for size in sizes), abs=1.5
    )


def test_only_rows_that_are_divided_at_run_time_are_uneven():
    shape = Shape(rows=512, columns=1024, inner=2048, count=8, grouped=True)
    inputs, weights = shape.backward()
    assert tile_rows(inputs, 256) == 2.5
    assert tile_rows(weights, 256) == 8
    assert tile_rows(replace(shape, grouped=False), 256) == 2
