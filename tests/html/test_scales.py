"""Axes: round ticks, few of them, and every value inside."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lockstep.html import scales
from lockstep.html.units import UNKNOWN, format_ns, format_ranks, format_rate, format_share

POSITIVE = st.floats(1e-9, 1e15)


@given(POSITIVE)
def test_a_linear_axis_holds_its_values_with_few_ticks(highest):
    """The axis begins at 0, reaches the highest value, wastes less than half, and its ticks are even and round."""
    axis = scales.linear("", highest)
    assert axis.low == 0
    assert highest * (1 - 1e-9) <= axis.high <= 2 * highest
    assert 2 <= len(axis.ticks) <= scales.TICKS_MAX + 1
    assert axis.at(0) == 0
    assert axis.at(axis.ticks[-1][0]) == 1
    texts = [text for _, text in axis.ticks]
    assert len(set(texts)) == len(texts)


@given(st.lists(st.floats(1e-6, 1e18), min_size=1, max_size=5))
def test_a_logarithmic_axis_has_whole_decades(values):
    """Values lie between decades, ticks are decades, and a tenfold value lies a fixed distance further."""
    assume(max(values) / min(values) < 1e10)
    axis = scales.decades("", values)
    assert axis.low <= min(values) * (1 + 1e-9)
    assert axis.high >= max(values) * (1 - 1e-9)
    assert 2 <= len(axis.ticks) <= scales.TICKS_MAX + 1
    assert axis.at(axis.low * 10) - axis.at(axis.low) == pytest.approx(axis.at(axis.high) - axis.at(axis.high / 10))


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=9))
def test_ranks_have_whole_ticks_inside_the_axis(ranks):
    """No tick is a fraction or outside; no rank lies on the edge."""
    axis = scales.numbers("rank", ranks)
    assert all(value == int(text) and axis.low <= value <= axis.high for value, text in axis.ticks)
    assert len(axis.ticks) <= scales.TICKS_MAX + 1
    assert all(0 < axis.at(rank) < 1 for rank in ranks)


def test_a_time_axis_ends_at_the_longest_bar():
    """The longest bar takes the whole width, and the unit is the title's."""
    axis = scales.times("time", 412_345_678)
    assert (axis.title, axis.high) == ("time, ms", 412_345_678)
    assert [text for _, text in axis.ticks] == ["0", "100", "200", "300", "400"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_ns(None), UNKNOWN),
        (format_ns(0), "0 ns"),
        (format_ns(999), "999 ns"),
        (format_ns(89_512_345), "89.5 ms"),
        (format_ns(412_345_678_901_234), "412,346 s"),
        (format_share(0.0), "0%"),
        (format_share(1e-5), "<0.1%"),
        (format_share(0.0123), "1.2%"),
        (format_share(0.996), "100%"),
        (format_share(None), UNKNOWN),
        (format_rate(2.039e12, "B/s"), "2.04 TB/s"),
        (format_ranks([3, 1, 2, 7, 7]), "1-3, 7"),
        (format_ranks([]), UNKNOWN),
        (format_ranks(range(0, 40, 2), runs_max=2), "0, 2 and more, 20 in all"),
    ],
)
def test_figures_are_short(text, expected):
    """Three digits and a unit; what is not known is a dash."""
    assert text == expected
