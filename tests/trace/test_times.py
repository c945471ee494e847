import numpy as np
import pytest
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


@given(st.integers(-(1 << 52) * 1000, (1 << 52) * 1000), st.sampled_from(["{}", '"{}"']))
def test_times_as_text_are_exact(value, form):
    """Times since 1970 with decimals are exact as text, quoted or not."""
    assert times.ns_of_text(form.format(us(value)).encode()) == value


@given(
    st.lists(st.integers(0, (1 << 52) * 1000), max_size=5), st.sampled_from([b"", b"7", b"x", b"1.5,2.250", b"1.5e3"])
)
def test_many_texts_are_what_each_of_them_is(values, other):
    """Times of one form are read at once, and one of another form changes none of the others."""
    for texts in ([us(value).encode() for value in values], [*(us(value).encode() for value in values), other]):
        start_ns, known = times.ns_of_texts(texts)
        expected = [times.ns_of_text(text) for text in texts]
        assert [
            start if is_known else None for start, is_known in zip(start_ns.tolist(), known, strict=True)
        ] == expected


def test_times_beyond_the_limit_are_unknown_at_once():
    """What overflows or lies beyond the year 2112 is unknown among times that are not, of one length or several."""
    for first, first_ns in ((b"1.000", 1000), (b"1000000000000000.001", 10**18 + 1)):
        start_ns, known = times.ns_of_texts([first, b"9999999999999999.999", b"4503599627370496.000"])
        assert known.tolist() == [True, False, True]
        assert start_ns[[0, 2]].tolist() == [first_ns, 4503599627370496000]


@pytest.mark.parametrize("other", [b"[5,6].000", b"1,3.4,.56", b"12345,789", b"1234/.789", b"12:45.789", b"+2345.789"])
def test_texts_of_one_length_that_are_no_times_are_unknown(other):
    """Commas, characters next to the digits and signs in the place of digits are seen among times of the same length."""
    texts = [b"12345.001", other, b"99999.999"]
    start_ns, known = times.ns_of_texts(texts)
    expected = [times.ns_of_text(text) for text in texts]
    assert [start if is_known else None for start, is_known in zip(start_ns.tolist(), known, strict=True)] == expected


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"1712195495406752.123", 1712195495406752123),
        (b"1712195495406752", 1712195495406752000),
        (b"1.5", 1500),
        (b"1.0005", 1000),
        (b"1.5e3", 1500000),
        (b"-0.001", -1),
        (b"", None),
        (b"null", None),
        (b"nan", None),
        (b"sNaN", None),
        (b"Infinity", None),
        (b"1e999999", None),
        (b"9999999999999999.000", None),
        (b"1e-999999999", 0),
        (b"[1.5]", None),
        (b"\xff", None),
        (b"1" * 5000 + b".123", None),
        (b"\xd9\xa1.\xd9\xa1", None),
    ],
)
def test_texts_of_all_kinds_are_times_or_none(text, ns):
    """What a file may hold in a time's place is read if it is a number within limits; digits of other scripts are not."""
    assert times.ns_of_text(text) == ns


def test_epoch_times_with_decimals_are_recognised():
    """A float64 that has lost digits is distinguished from a whole number of the same size."""
    assert times.needs_decimals(np.array([1712195495406752.75]))
    assert not times.needs_decimals(np.array([1712195495406752.0, np.nan]))


def test_times_that_make_no_sense_are_not_usable():
    """Missing, infinite, negative or absurdly long times are refused, zero length is not."""
    start = np.array([0.0, np.nan, 0.0, np.inf, 1e300, 0.0, 0.0])
    duration = np.array([0.0, 1.0, np.nan, 1.0, 1.0, -1.0, 1e13])
    assert times.usable(start, duration).tolist() == [True, False, False, False, False, False, False]
