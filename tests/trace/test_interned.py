from lockstep.trace.columns import ABSENT
from lockstep.trace.interned import Codes, Interned


def test_codes_count_in_the_order_of_first_appearance():
    """A value's code is how many different ones came before it."""
    codes = Codes()
    assert [codes[value] for value in "abacb"] == [0, 1, 0, 2, 1]
    assert list(codes) == ["a", "b", "c"]


def test_sources_of_one_value_share_its_code_and_are_made_once():
    """Two ways to write a value are one code; asking again makes nothing."""
    made = []
    interned = Interned(lambda source: made.append(source) or source.strip(), 10, 100)
    assert [interned[source] for source in (b"x", b" x", b"y", b" x")] == [0, 0, 1, 0]
    assert interned.values_in_order() == [b"x", b"y"]
    assert made == [b"x", b" x", b"y"]


def test_values_beyond_a_limit_are_absent_and_later_ones_that_fit_are_not():
    """Count and bytes are limits of their own, and what was there before keeps its code."""
    few = Interned(str, 2, 100)
    assert [few[value] for value in "abcab"] == [0, 1, ABSENT, 0, 1]
    short = Interned(str, 10, 3)
    assert [short[value] for value in ("aa", "bb", "c", "aa")] == [0, ABSENT, 1, 0]


def test_sources_are_kept_within_the_same_limits():
    """Endless ways to write one value take no more room than the limits allow."""
    interned = Interned(str.strip, 3, 100)
    assert {interned[" " * spaces + "x"] for spaces in range(50)} == {0}
    assert len(interned) == 3
