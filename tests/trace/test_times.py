from decimal import Decimal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lockstep.trace import times
from tests.trace.traces import us

_RELATIVE_NS = st.integers(0, (1 << 43) * 1000 - 1)


@given(st.lists(_RELATIVE_NS, min_size=1))
def test_float_times_since_the_base_are_exact(values):
    """Every ns of a quarter of a year survives the way through decimal text and float64."""
    read = np.array([float(us(value)) for value in values])
    assert not times.needs_decimals(read)
    assert times.ns_of_us(read).tolist() == values


@given(st.integers(0, (1 << 52) * 1000))
def test_decimal_times_are_exact(value):
    """Times since 1970 with decimals are exact as decimals."""
    assert times.ns_of_decimal(Decimal(us(value))) == value


def test_epoch_times_with_decimals_are_recognised():
    """A float64 that has lost digits is told from a whole number of the same size."""
    assert times.needs_decimals(np.array([1712195495406752.75]))
    assert not times.needs_decimals(np.array([1712195495406752.0, np.nan]))


def test_times_that_make_no_sense_are_not_usable():
    """Missing, infinite, negative or absurdly long times are refused, zero length is not."""
    start = np.array([0.0, np.nan, 0.0, np.inf, 1e300, 0.0, 0.0])
    duration = np.array([0.0, 1.0, np.nan, 1.0, 1.0, -1.0, 1e13])
    assert times.usable(start, duration).tolist() == [True, False, False, False, False, False, False]
