"""The table of devices."""

import pytest

from lockstep.diagnosis.roofline.devices import cube_flops_per_second, rated_mhz, roof_of


@pytest.mark.parametrize(
    ("device", "number", "tflops", "gigabytes"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5, 3350),
        ("NVIDIA H200", "bf16", 989.5, 4800),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312, 2039),
        ("NVIDIA A100-SXM4-40GB", "tf32", 156, 1555),
        ("NVIDIA A100-PG509-200", "fp16", 312, 1555),
        ("NVIDIA A100 80GB PCIe", "fp16", 312, 1935),
        ("NVIDIA B200", "bf16", 2250, 7672),
        ("NVIDIA B300", "bf16", 2250, 8000),
        ("NVIDIA GB200", "bf16", 2500, 8000),
        ("Tesla V100-SXM2-16GB", "fp16", 125, 900),
        ("AMD Instinct MI300X", "bf16", 1307.4, 5300),
        ("Ascend910A", "fp16", 256, 1200),
        ("Ascend910_9392", "bf16", 363.7, 1600),
    ],
)
def test_known_devices(device, number, tflops, gigabytes):
    """Both lines of the roof are the vendor's, and the ridge is where they meet."""
    roof = roof_of(device, number)
    assert roof.flops_per_second == pytest.approx(tflops * 1e12, rel=1e-3)
    assert roof.bytes_per_second == gigabytes * 1e9
    assert roof.ridge == pytest.approx(tflops * 1000 / gigabytes, rel=1e-3)
    assert roof.source


@pytest.mark.parametrize(
    ("device", "number"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16"),
        ("Ascend910B2", "bf16"),
        ("Some GPU", "bf16"),
        ("NVIDIA H100", "int64"),
    ],
)
def test_unknown_lines_are_no_roof(device, number):
    """A slice, a memory that no vendor names, an unknown device or format: None."""
    assert roof_of(device, number) is None


def test_cubes():
    """Cores times clock times 8192; formats that a cube does not know have no peak."""
    assert cube_flops_per_second(24, 1850, "fp16") == pytest.approx(363.7e12, rel=1e-3)
    assert cube_flops_per_second(24, 1850, "int8") == 2 * cube_flops_per_second(24, 1850, "fp16")
    assert cube_flops_per_second(24, 1850, "fp64") is None


def test_rated_clocks():
    """Those of Ascend's cubes; other devices have none here."""
    assert rated_mhz("Ascend910B2") == 1800
    assert rated_mhz("NVIDIA H200") is None
    assert rated_mhz("nothing") is None
