import pytest

from benchmarks.intracard_collectives import CSC, RING
from benchmarks.intracard_fit import Point, error_ratio, fit, predict_s
from lockstep.simulator.hardware.collectives import Link

LINK = Link(bytes_per_second=2e9, launch_s=25e-6, sync_s=15e-6, step_s=5e-6)
SIZES = (1_000, 100_000, 10_000_000)


def points_of(link, ranks, copies=None):
    """Return what `link` makes of both methods at all sizes, as if it were measured."""
    empty = [Point(m, ranks, size, 1.0, copies and copies[m]) for size in SIZES for m in (CSC, RING)]
    return [Point(p.method, ranks, p.volume_bytes, predict_s(p, link), p.copies) for p in empty]


def test_the_constants_that_made_the_times_are_found():
    """Times of equations 3 and 4 give back their launch, step and bandwidth."""
    found = fit(points_of(LINK, 4), LINK.sync_s)
    assert found.launch_s == pytest.approx(LINK.launch_s)
    assert found.step_s == pytest.approx(LINK.step_s)
    assert found.bytes_per_second == pytest.approx(LINK.bytes_per_second)


def test_two_ranks_predict_though_launch_and_step_are_one():
    """With two ranks the step counts as launch, and what is predicted is right all the same."""
    points = points_of(LINK, 2)
    found = fit(points, LINK.sync_s)
    assert found.step_s == 0
    assert found.launch_s == pytest.approx(LINK.launch_s + LINK.step_s)
    assert [error_ratio(point, found) for point in points] == pytest.approx([0] * len(points), abs=1e-9)


def test_a_copy_more_takes_its_time():
    """The publishing write is one more V/n; the ring has one for each read."""
    plain, counted = points_of(LINK, 4)[-2:], points_of(LINK, 4, {CSC: 4, RING: 6})[-2:]
    copy_s = SIZES[-1] / 4 / LINK.bytes_per_second
    assert counted[0].seconds - plain[0].seconds == pytest.approx(copy_s)
    assert counted[1].seconds - plain[1].seconds == pytest.approx(3 * copy_s)


def test_no_constant_is_below_zero():
    """Times below the synchronisation alone give a launch of nothing, not a negative one."""
    points = [Point(CSC, 4, size, 5e-6 + size * 1e-9) for size in SIZES]
    found = fit(points, 50e-6)
    assert min(found.launch_s, found.step_s) >= 0
    assert found.bytes_per_second > 0
