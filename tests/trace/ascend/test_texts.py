import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.trace.ascend import texts
from lockstep.trace.columns import ABSENT

_USUAL = "1736405443863674.400"


@given(st.lists(st.integers(10**18, 4 * 10**18), min_size=1, max_size=20))
def test_usual_times_are_exact_to_the_ns(times_ns):
    """Sixteen digits, a point and three digits are read digit by digit."""
    written = [f"{ns // 1000}.{ns % 1000:03d}" for ns in times_ns]
    assert texts.ns_of_times(written).tolist() == times_ns


@given(st.integers(0, 4 * 10**18))
def test_other_forms_of_a_time_are_exact_too(ns):
    """Decimals from JSON numbers, trailing tabs and a missing fraction change nothing."""
    text = f"{ns // 1000}.{ns % 1000:03d}"
    assert texts.ns_of_times([text + "\t", Decimal(text), _USUAL]).tolist() == [ns, ns, 1736405443863674400]
    assert texts.ns_of_time(f"{ns // 1000}") == ns // 1000 * 1000


@pytest.mark.parametrize(
    "value",
    [
        "",
        "N/A",
        "-1.000",
        "nan",
        "inf",
        "1e400",
        "9" * 16 + ".000",
        "1" * 5000,
        "17364054438636x4.400",
        None,
        float("nan"),
    ],
)
def test_what_is_no_time_is_absent(value):
    """No text of any length or form raises, alone or among good ones."""
    assert texts.ns_of_times([_USUAL, value]).tolist() == [1736405443863674400, ABSENT]


def test_empty_cells_are_nan_or_absent_and_zero_is_zero():
    """Missing is never 0, and a measured zero is."""
    assert [math.isnan(each) for each in texts.numbers(["", "N/A", "x", "inf", "0"])] == [True] * 4 + [False]
    assert texts.integers(["", "N/A", "x", "1.5", "0", "2.0", "9" * 30]).tolist() == [-1, -1, -1, -1, 0, 2, -1]
    assert texts.durations_ns(texts.numbers(["0.0005", "50.621", "-1", "1e30", ""])).tolist() == [0, 50621, -1, -1, -1]
