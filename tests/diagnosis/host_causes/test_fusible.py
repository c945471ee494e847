import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.diagnosis.host_causes.fusible import FusibleSequence, _candidates, _line, fusible_sequences
from tests.diagnosis.host_causes.scenes import copy, kernel, view

SLOT_US = 10


def _line_of(text, busy_us=2, **more):
    """Return a window with a kernel for each letter, one every 10 us."""
    return view([kernel(letter, at * SLOT_US, busy_us, **more) for at, letter in enumerate(text)], SLOT_US * len(text))


def test_a_sequence_is_reported_with_its_count_and_times():
    """Five times "ab": 12 us from a's start to b's end, 4 of them in kernels, 8 idle."""
    (found,) = fusible_sequences(_line_of("abXabYabZabVabW"))
    assert (found.kernels, found.count) == (("a", "b"), 5)
    assert (found.wall_ns, found.kernel_ns, found.idle_ns) == (60_000, 20_000, 40_000)


def test_four_times_are_too_few():
    """Five is the vendor's limit."""
    assert fusible_sequences(_line_of("abXabYabZabV")) == []


def test_the_longest_sequence_holds_most_and_its_parts_are_not_reported_again():
    """A kernel counts in one sequence only."""
    (found,) = fusible_sequences(_line_of("abcdXabcdYabcdZabcdVabcdW"))
    assert (found.kernels, found.count) == (("a", "b", "c", "d"), 5)


@pytest.mark.parametrize(
    ("text", "unit"),
    [("ab", "ab"), ("abcabcabca", "abc"), ("abab", "ab"), ("aaaaa", "aa"), ("aab", "aab"), ("abcab", "abcab")],
)
def test_what_a_sequence_repeats_is_its_unit(text, unit):
    """Ten kernels of a loop over three are reported as those three; a sequence that comes back once is no loop."""
    assert FusibleSequence(tuple(text), 5, 1, 1, 1).unit == tuple(unit)


def test_what_remains_of_a_shared_part_is_reported_separately():
    """Of "abc" and "ab" alone each comes often enough: they are two sequences."""
    text = "".join(f"abc{filler}" for filler in "UVWXYZ") + "".join(f"ab{filler}" for filler in "12345")
    found = fusible_sequences(_line_of(text))
    assert [(each.kernels, each.count) for each in found] == [(("a", "b", "c"), 6), (("a", "b"), 5)]


def test_sequences_that_overlap_themselves_are_counted_apart():
    """Ten times "a" hold the pair five times, not nine."""
    (found,) = fusible_sequences(_line_of("aaaaaaaaaa"), longest=2)
    assert found.count == 5


def test_no_sequence_is_longer_than_ten():
    """Longer ones would be the step itself."""
    found = fusible_sequences(_line_of("abcdefghijkl" * 5))
    assert [(each.kernels, each.count) for each in found] == [(tuple("abcdefghij"), 5), (tuple("kl"), 5)]


def test_busy_sequences_are_not_worth_fusing():
    """Kernels that hold 0.4 of the time and more are not bound by the host."""
    text = "abXabYabZabVabW"
    assert fusible_sequences(_line_of(text, busy_us=2.5)) == []
    assert fusible_sequences(_line_of(text, busy_us=2.4)) != []


def test_sequences_below_a_hundredth_of_the_window_are_not_reported():
    """60 us of 6,001."""
    events = [kernel(letter, at * SLOT_US, 2) for at, letter in enumerate("abXabYabZabVabW")]
    assert fusible_sequences(view(events, 6000)) != []
    assert fusible_sequences(view(events, 6001)) == []


@pytest.mark.parametrize("between", [copy("Memcpy DtoD", 0, 1), kernel("c", 0, 1, stream=8)])
def test_what_ends_a_sequence(between):
    """A copy between two kernels does; a kernel of another stream does not, it only makes the device busy."""
    events = [kernel(letter, at * SLOT_US, 2) for at, letter in enumerate("abXabYabZabVabW")]
    events += [between._replace(start_ns=start * 1000) for start in (4, 34, 64, 94, 124)]
    found = fusible_sequences(view(events, 150))
    if between.category == "gpu_memcpy":
        assert found == []
    else:
        assert [(each.count, each.idle_ns) for each in found] == [(5, 35_000)]


def test_long_gaps_end_a_sequence():
    """What the host does for more than 1 ms between two kernels is no dispatch."""
    for gap_us, count in ((1000, 1), (1001, 0)):
        events = []
        for at in range(5):
            events += [kernel("a", at * 5000, 2), kernel("b", at * 5000 + 2 + gap_us, 2)]
        assert len(fusible_sequences(view(events, 25_000))) == count


def test_serial_numbers_in_names_do_not_distinguish_operators():
    """Ascend's graph mode numbers every operator."""
    names = [f"Mul-op{at}" if at % 3 == 0 else f"Add_{at}" if at % 3 == 1 else f"filler{at}x" for at in range(15)]
    events = [kernel(name, at * SLOT_US, 2) for at, name in enumerate(names)]
    (found,) = fusible_sequences(view(events, 150))
    assert (found.kernels, found.count) == (("Mul", "Add"), 5)


@settings(max_examples=60, deadline=None)
@given(st.text("abc", min_size=2, max_size=60))
def test_windows_of_equal_names_are_found_exactly(text):
    """The numbering by doubling finds the same repeated windows as comparing texts."""
    line, names = _line(_line_of(text))
    found = {}
    for length, starts, _ in _candidates(line, 10, 0.0):
        word = "".join(names[code] for code in line.code[starts[0] : starts[0] + length].tolist())
        found[word] = starts.tolist()
    expected = {}
    for length in range(2, 11):
        for start in range(len(text) - length + 1):
            expected.setdefault(text[start : start + length], []).append(start)
    assert found == {word: starts for word, starts in expected.items() if len(starts) >= 5}


def test_a_window_without_kernels_has_no_sequences():
    """Nothing to fuse, nothing to fail."""
    assert fusible_sequences(view([copy("Memcpy", 0, 1)], 10)) == []
    assert fusible_sequences(view([kernel("a", 0, 1)], 10)) == []
