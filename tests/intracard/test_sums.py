import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.intracard_collectives.sums import BLOCK_ELEMENTS, add_in_order, kind_of

UINT16 = np.dtype(np.uint16)


def bfloat16_sum(terms):
    """Return the sum of raw bfloat16 terms."""
    out = np.empty_like(terms[0])
    add_in_order(terms, out, kind_of(UINT16, bfloat16=True))
    return out


def float_of(bits):
    """Return the value of raw bfloat16."""
    return np.array(bits, np.uint32).__lshift__(16).astype(np.uint32).view(np.float32)


@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=5))
def test_bfloat16_is_the_nearest_of_the_float32_sum(bits):
    """No bfloat16 is nearer to the float32 sum than the one given; NaN and infinities stay what they are."""
    terms = [np.array([value], np.uint16) for value in bits]
    with np.errstate(all="ignore"):
        total = float_of(bits[0])
        for value in bits[1:]:
            total = np.float32(total + float_of(value))
    got_bits = int(bfloat16_sum(terms)[0])
    got = float(float_of(got_bits))
    if not np.isfinite(total):
        assert np.array_equal(got, float(total), equal_nan=True)
        return
    below = int(np.float32(total).view(np.uint32)) >> 16
    candidates = [(abs(distance(candidate, total)), candidate & 1, candidate) for candidate in (below, below + 1)]
    assert got_bits == min(candidates)[2]


def distance(bits, total):
    """Return how far raw bfloat16 lie from a float32, the overflow counted as the next power of two."""
    value = 2.0**128 if bits & 0x7FFF == 0x7F80 else abs(float(float_of(bits)))
    return value - abs(float(total))


@pytest.mark.parametrize("bits", [0x7F81, 0xFFFF, 0x7FC0])
def test_a_nan_stays_one(bits):
    """Rounding never turns a NaN into an infinity or a number."""
    assert np.isnan(float_of(int(bfloat16_sum([np.array([bits], np.uint16)])[0])))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "c8"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_terms_are_added_in_their_order_over_all_blocks(dtype, count):
    """Sums longer than a block equal one addition after the other; half precision is rounded once."""
    rng = np.random.default_rng(count)
    terms = [(rng.standard_normal(BLOCK_ELEMENTS + 3) * 1000).astype(dtype) for _ in range(count)]
    total = terms[0].astype("f4" if dtype == "f2" else dtype)
    for term in terms[1:]:
        total = total + term
    out = np.empty_like(terms[0])
    add_in_order(terms, out, kind_of(out.dtype, bfloat16=False))
    assert out.tobytes() == total.astype(dtype).tobytes()


def test_integers_wrap_and_floats_overflow_without_a_word():
    """Neither is an error, as in numpy and on every device."""
    for dtype, value, expected in (("i1", 100, -56), ("f2", 60_000, np.inf)):
        out = np.empty(1, dtype)
        add_in_order([np.array([value], dtype)] * 2, out, kind_of(out.dtype, bfloat16=False))
        assert out[0] == expected
