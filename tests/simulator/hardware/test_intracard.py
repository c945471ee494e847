import pytest

from lockstep.simulator.hardware.intracard import (
    SUNWAY,
    bandwidth_large,
    csc_bandwidth,
    csc_bandwidth_small,
    fused_seconds,
    fusion_gain_ratio,
    ring_bandwidth,
    ring_bandwidth_small,
    unfused_seconds,
)

GB = 1e9


@pytest.mark.parametrize(
    ("megabytes", "ring", "csc", "ratio"),
    [
        (1, 7.018, 16.000, 2.2800),
        (4, 24.242, 47.059, 1.9412),
        (8, 41.026, 69.565, 1.6957),
        (32, 85.333, 108.475, 1.2712),
        (40, 91.954, 112.676, 1.2254),
        (256, 124.574, 129.620, 1.0405),
    ],
)
def test_t11_equations_3_and_4(megabytes, ring, csc, ratio):
    """The ring reaches 41 and CSC 69.6 GB/s at 8 MB, as published, and what the equations give elsewhere."""
    volume = megabytes * 1e6
    assert ring_bandwidth(volume) / GB == pytest.approx(ring, abs=5e-4)
    assert csc_bandwidth(volume) / GB == pytest.approx(csc, abs=5e-4)
    assert csc_bandwidth(volume) / ring_bandwidth(volume) == pytest.approx(ratio, abs=5e-5)


@pytest.mark.parametrize(
    ("megabytes", "small_ring", "small_csc", "large"),
    [(1, 7.407, 18.182, 44.444), (4, 29.63, 72.73, 88.889), (8, 59.26, 145.5, 106.667)],
)
def test_t11_limits(megabytes, small_ring, small_csc, large):
    """Equations 5 to 8 give the published limits, each above what it is the limit of."""
    volume = megabytes * 1e6
    assert ring_bandwidth_small(volume) / GB == pytest.approx(small_ring, rel=5e-4)
    assert csc_bandwidth_small(volume) / GB == pytest.approx(small_csc, rel=5e-4)
    assert bandwidth_large(volume) / GB == pytest.approx(large, abs=5e-4)
    assert ring_bandwidth(volume) < min(ring_bandwidth_small(volume), bandwidth_large(volume))


def test_t11_limits_of_the_gain():
    """CSC gains 135/55 where only fixed costs count, not the threefold of the paper, and nothing on large volumes."""
    assert csc_bandwidth(1.0) / ring_bandwidth(1.0) == pytest.approx(135 / 55, rel=1e-4)
    assert csc_bandwidth(1e15) == pytest.approx(4 / 3 * SUNWAY.bytes_per_second, rel=1e-6)


def test_t11_fusion():
    """Equations 9 to 11: 288.33 and 156.67 us at 2 MB, and half the movement saved at r = 0.75."""
    before = unfused_seconds(2e6, local_bytes_per_second=75e9)
    after = fused_seconds(2e6, local_bytes_per_second=75e9)
    assert before * 1e6 == pytest.approx(288.33, abs=5e-3)
    assert after * 1e6 == pytest.approx(156.67, abs=5e-3)
    assert 1 - after / before == pytest.approx(0.4566, abs=5e-5)
    assert [fusion_gain_ratio(r, 1.0) for r in (1, 0.75)] == pytest.approx([0.4444, 0.5], abs=5e-5)
