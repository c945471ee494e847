"""Parameters of a device from measured operators: what made the measurements is found again, and bounds hold."""

from dataclasses import replace

import pytest

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.calibration.calibrate import with_parameters
from lockstep.simulator.calibration.device_fit import (
    DeviceMeasurements,
    MeasuredAllReduce,
    MeasuredAttention,
    MeasuredCopy,
    MeasuredProduct,
    fit_device,
)
from lockstep.simulator.hardware.cluster import Cluster, Device, Level
from lockstep.simulator.hardware.clusters import dgx_a100
from lockstep.simulator.hardware.collectives import ALL_REDUCE, RING, Link, collective_cost
from lockstep.simulator.lowering.costs import attention_seconds

CPU = Cluster(
    name="host",
    device=Device(name="core", flops_per_second=1e11, memory_bytes_per_second=2e10, memory_bytes=8e9),
    levels=(Level(name="loopback", fanout=4, link=Link(bytes_per_second=2e9, launch_s=1e-4)),),
)


def measured(cluster, *, ranks=4):
    """Return what would be measured on the first devices of `cluster`, without noise."""
    device, link = cluster.device, cluster.levels[0].link
    sizes = [(n, 4 * n, n) for n in (256, 512, 1024, 2048, 4096)]
    products = [MeasuredProduct(rows=m, columns=n, inner=k, seconds=1.0) for m, n, k in sizes]
    ratio = collective_cost(ALL_REDUCE, RING, ranks).ratio
    tokens = (256, 1024, 4096, 8192)
    return DeviceMeasurements(
        products=[
            replace(each, seconds=device.arithmetic_seconds(each.flops, 1.0, (each.shape,))) for each in products
        ],
        copies=[MeasuredCopy(moved_bytes=size, seconds=device.memory_seconds(size)) for size in (1e8, 2e8, 4e8)],
        attention=[
            MeasuredAttention(tokens=n, flops=1e9 * n, seconds=sum(attention_seconds(1e9 * n, n, device)))
            for n in tokens
        ],
        all_reduces=[
            MeasuredAllReduce(
                ranks=ranks, size_bytes=size, seconds=link.launch_s + ratio * size / link.bytes_per_second
            )
            for size in (0.0, 16e6, 32e6, 64e6)
        ],
    )


@pytest.mark.parametrize("cluster", [CPU, dgx_a100(1)], ids=["without tiles", "with tiles"])
def test_what_made_the_measurements_is_found(cluster):
    """Efficiencies, the speed of attention and links, with operators held out met exactly."""
    truth = {"matrix_efficiency": 0.4, "memory_efficiency": 0.6, "attention_ratio": 0.7}
    true = with_parameters(
        cluster, truth | ({} if cluster.device.tiling else {"half_flops": 3e8, "attention_fill": 400})
    )
    found = fit_device(cluster, measured(true))
    fitted = with_parameters(cluster, found.parameters).device
    for name in ("matrix_efficiency", "memory_efficiency", "attention_ratio", "attention_fill", "half_flops"):
        assert getattr(fitted, name) == pytest.approx(getattr(true.device, name), rel=1e-6), name
    assert found.held_out_errors == pytest.approx({"products": 0, "memory": 0, "attention": 0}, abs=1e-6)


@pytest.mark.parametrize("fill", [0.0, 100.0, 2000.0])
def test_attention_is_slower_at_short_sequences(fill):
    """Of a device without known kernels, held-out sequences are met; with one speed for all they are not."""
    true = CPU.with_device(attention_fill=fill)
    found = fit_device(CPU, measured(true))
    assert found.held_out_errors["attention"] == pytest.approx(0, abs=1e-6)
    assert found.parameters["attention_fill"] == pytest.approx(fill, abs=1e-3)


def test_attention_that_is_faster_at_short_sequences_has_one_speed():
    """Where caches hold short sequences, no number of tokens slows them."""
    made = measured(CPU)
    faster = [replace(each, seconds=each.seconds * each.tokens**0.3) for each in made.attention]
    parameters = fit_device(CPU, replace(made, attention=faster)).parameters
    assert "attention_fill" not in parameters
    assert 0 < parameters["attention_ratio"] < 1


def test_links_are_ratios_of_the_declared_ones():
    """All-reduces at half of the bandwidth with twice the latency give these ratios of the first level."""
    slower = replace(CPU, levels=(CPU.levels[0].scaled(bandwidth=0.5, latency=2.0),))
    parameters = fit_device(CPU, measured(slower)).parameters
    assert parameters["loopback/bandwidth_ratio"] == pytest.approx(0.5, rel=1e-6)
    assert parameters["loopback/latency_ratio"] == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("name", ["flops_per_second", "memory_bytes_per_second"])
def test_a_device_faster_than_its_peak_is_refused(name):
    """An efficiency above 1 means a wrong peak, which the message names."""
    fast = CPU.with_device(**{name: 3 * getattr(CPU.device, name)})
    with pytest.raises(ConfigError, match=rf"cluster\.device\.{name}"):
        fit_device(CPU, measured(fast))
