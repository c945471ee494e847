"""Fits the parameters of a calibration to operators that were measured on the user's own device.

Every second measurement of a kind is held out; the error is that of those. It is the error of operators, not of steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.calibration.calibrate import BANDWIDTH, LATENCY, MOST, fit_link
from lockstep.simulator.hardware.cluster import Cluster, Device
from lockstep.simulator.hardware.products import Shape
from lockstep.simulator.lowering.costs import attention_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProduct:
    """A product of `rows` x `inner` by `inner` x `columns` elements, and its time."""

    rows: int
    columns: int
    inner: int
    seconds: float

    @property
    def flops(self) -> float:
        """Its FLOPs."""
        return 2.0 * self.rows * self.columns * self.inner

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return Shape(rows=self.rows, columns=self.columns, inner=self.inner)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCopy:
    """Bytes that an element-wise operator reads and writes, and its time."""

    moved_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAttention:
    """Fused causal attention on sequences of `tokens`: FLOPs that its forward pass executes, time of both passes."""

    tokens: int
    flops: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAllReduce:
    """An all-reduce of `size_bytes` among `ranks` ranks of one host, and its time."""

    ranks: int
    size_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMeasurements:
    """What was measured, each kind from the smallest on."""

    products: Sequence[MeasuredProduct]
    copies: Sequence[MeasuredCopy]
    attention: Sequence[MeasuredAttention] = ()
    all_reduces: Sequence[MeasuredAllReduce] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFit:
    """Parameters as `with_parameters` takes them, and the median error of operators that were held out, by kind."""

    parameters: dict[str, float]
    held_out_errors: dict[str, float]


def fit_device(cluster: Cluster, measured: DeviceMeasurements) -> DeviceFit:
    """Return what the measurements make of the cluster's device, and of the links of its first level.

    Raises
    ------
    ConfigError
        Fewer than two measurements of a kind, or the device is faster than its peak in the specification.
    """
    parameters = _fit_products(cluster.device, measured.products[::2])
    parameters["memory_efficiency"] = (
        median(each.moved_bytes / each.seconds for each in measured.copies[::2])
        / cluster.device.memory_bytes_per_second
    )
    for name, what in (("matrix_efficiency", "flops_per_second"), ("memory_efficiency", "memory_bytes_per_second")):
        if parameters[name] > MOST[name]:
            got = f"{getattr(cluster.device, what):.3g}, of which operators reach {parameters[name]:.2f}"
            raise ConfigError(f"cluster.device.{what}: got {got}, expected at least what is measured")
    device = cluster.with_device(**parameters).device
    if measured.attention:
        parameters |= _fit_attention(device, measured.attention[::2])
        device = cluster.with_device(**parameters).device
    errors = {
        "products": [_product_seconds(each, device) / each.seconds - 1 for each in measured.products[1::2]],
        "memory": [device.memory_seconds(each.moved_bytes) / each.seconds - 1 for each in measured.copies[1::2]],
        "attention": [_attention_seconds(each, device) / each.seconds - 1 for each in measured.attention[1::2]],
    }
    if measured.all_reduces:
        parameters |= _fit_links(cluster, measured.all_reduces)
    return DeviceFit(
        parameters=parameters,
        held_out_errors={kind: median(map(abs, each)) for kind, each in errors.items() if each},
    )


def _fit_products(device: Device, products: Sequence[MeasuredProduct]) -> dict[str, float]:
    """Return the efficiency of products; of a device without tiles also the size that reaches half of it."""
    if len(products) < 2:  # noqa: PLR2004  # two unknowns
        raise ConfigError(f"products to fit a device: got {len(products)}, expected at least 2")
    if device.tiling is not None:
        ratios = [_product_seconds(each, device) / each.seconds for each in products]
        return {"matrix_efficiency": device.matrix_efficiency * median(ratios)}
    times = np.array([each.seconds for each in products])
    flops = np.array([each.flops for each in products])
    # Relative errors of (flops + half) / reached count, so that small products weigh as much as large ones.
    (per_flop_s, start_s), *_ = np.linalg.lstsq(np.stack([flops / times, 1 / times], axis=1), np.ones(len(times)))
    if start_s < 0 or per_flop_s <= 0:
        per_flop_s, start_s = median(each.seconds / each.flops for each in products), 0.0
    return {
        "matrix_efficiency": float(1 / per_flop_s / device.flops_per_second),
        "half_flops": float(start_s / per_flop_s),
    }


def _fit_attention(device: Device, measured: Sequence[MeasuredAttention]) -> dict[str, float]:
    """Return the speed of attention; of a device without speeds of kernels also the tokens that reach half of it."""
    plain = replace(device, attention_fill=0.0)
    if device.attention_speed is None and len({each.tokens for each in measured}) > 1:
        # Relative errors of seconds * (1 + fill / tokens) / ratio count.
        shares = np.array([_attention_seconds(each, plain) / each.seconds for each in measured])
        per_token = shares / np.array([each.tokens for each in measured])
        (inverse, fill), *_ = np.linalg.lstsq(np.stack([shares, per_token], axis=1), np.ones(len(shares)))
        if inverse > 0 and fill >= 0:
            ratio = device.attention_ratio / float(inverse)
            return {"attention_ratio": ratio, "attention_fill": float(fill / inverse)}
    ratios = [_attention_seconds(each, plain) / each.seconds for each in measured]
    return {"attention_ratio": device.attention_ratio * median(ratios)}


def _product_seconds(product: MeasuredProduct, device: Device) -> float:
    return device.arithmetic_seconds(product.flops, 1.0, (product.shape,))


def _attention_seconds(attention: MeasuredAttention, device: Device) -> float:
    return sum(attention_seconds(attention.flops, attention.tokens, device))


def _fit_links(cluster: Cluster, all_reduces: Sequence[MeasuredAllReduce]) -> dict[str, float]:
    """Return the ratios of the first level's links: measured over declared bandwidth and latency."""
    level, ranks = cluster.levels[0], all_reduces[0].ranks
    declared = level.measured.get(ranks, (level.link,))[0]
    found = fit_link([each.size_bytes for each in all_reduces], [each.seconds for each in all_reduces], ranks)
    if found.bytes_per_second <= 0:
        raise ConfigError(f"all-reduces among {ranks} ranks: got times that do not grow with their size")
    shortest_s = min(each.seconds for each in all_reduces)  # of the smallest message: latency alone
    return {
        f"{level.name}/{BANDWIDTH}": found.bytes_per_second / declared.bytes_per_second,
        f"{level.name}/{LATENCY}": shortest_s / declared.launch_s if declared.launch_s else 1.0,
    }
