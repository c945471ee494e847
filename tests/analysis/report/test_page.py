"""The page states what the summary states: who, what, why, how much, and what is missing."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.analysis.report import render
from lockstep.analysis.report.page import SECTIONS
from tests.analysis.report import made
from tests.analysis.report.reader import read
from tests.analysis.report.test_escaping import HOSTILE, with_texts


def page(summary):
    """Return the document, after what holds for every page."""
    text = render(summary)
    assert not re.search(
        r"\b(nan|inf|None|null|undefined)\b", re.sub(r"<(style|script).*?</\1>", "", text, flags=re.DOTALL)
    )
    document = read(text)
    assert [each.attributes["id"] for each in document.find("section")] == list(SECTIONS)
    assert {each.attributes["href"] for each in document.find("nav")[0].find("a")} == {f"#{name}" for name in SECTIONS}
    return document


def section(document, name):
    return document.find("section", id=name)[0]


def headline(document):
    return document.find("article", id="verdict")[0].find("h2")[0].text


def values(row):
    return [each.attributes.get("data-value") for each in row.find("td")]


class TestHeadline:
    def test_names_rank_function_cause_and_gain(self):
        """The first sentence has who, where, why and how much; the card has what to do."""
        document = page(made.summary())
        assert headline(document) == (
            f"Rank 5 holds the job back: slow data processing in {made.LOADER}; "
            "removing it would give back 22% of the window."
        )
        card = document.find("article", id="verdict")[0].text
        assert "rank 5 on node-000" in card
        assert "num_workers=4" in card
        assert "89.5 ms" in card

    def test_prefers_the_reason_to_its_symptom(self):
        """That others wait for a rank gives way to why it is late, unless that explains less than half of it."""
        summary = made.summary()
        waiting, cause = summary["findings"][:2]
        assert waiting["predicted_gain_ratio"] > cause["predicted_gain_ratio"]
        cause["predicted_gain_ratio"] = 0.1
        assert "waiting for a slow rank" in headline(page(summary))

    @pytest.mark.parametrize(
        ("ranks", "expected_start"),
        [
            ([], "The job is held back: "),
            ([2, 3, 4], "Ranks 2-4 hold the job back: "),
            (list(range(8)), "All 8 ranks hold the job back: "),
        ],
    )
    def test_states_how_many(self, ranks, expected_start):
        """One rank, some and all are distinguished."""
        summary = made.summary() | {"findings": [made.finding(ranks=ranks)]}
        assert headline(page(summary)).startswith(expected_start)

    def test_states_that_nothing_was_found(self):
        """No finding is reported as such, and so is a folder without a trace."""
        assert headline(page(made.summary() | {"findings": []})) == "Nothing was found that holds the job back."
        assert headline(page({})) == "No trace was analysed."


class TestFindings:
    def test_are_ordered_by_gain_and_unknown_gains_come_last(self):
        """Cards and advice follow the predicted gain; without one the lost time decides."""
        found = [
            made.finding("gc", gain=None, lost_ns=5, subject="a"),
            made.finding("gc", gain=0.1, subject="b"),
            made.finding("gc", gain=None, lost_ns=9, subject="c"),
            made.finding("gc", gain=0.3, subject="d"),
        ]
        document = page(made.summary() | {"findings": found})
        cards = section(document, "findings").find("article")
        assert [each.find("h3")[0].find("code")[0].text for each in cards] == ["d", "b", "c", "a"]
        gains = [float(values(row)[0]) for row in section(document, "advice").find("tbody")[0].find("tr")]
        assert gains == sorted(gains, reverse=True)
        assert gains[0] == pytest.approx(0.3)

    def test_what_ranks_repeat_is_one_loss(self):
        """Each rank's own list names other kernels of the loss that the summary has for all of them."""
        summary = made.summary() | {"findings": [made.finding("dispatch", ranks=(1, 2), subject="mul + add")]}
        for number, subject in ((1, "mul + add"), (2, "add + mul")):
            summary["ranks"][number]["findings"] = [made.finding("dispatch", ranks=(number,), subject=subject)]
        (card,) = section(page(summary), "findings").find("article")
        assert "ranks 1-2" in card.text

    def test_an_unknown_cause_has_its_own_name(self):
        """A cause that the table of remedies lacks is shown by its key."""
        assert "1. Solar flare" in section(page({"findings": [made.finding("solar_flare")]}), "findings").text


class TestBreakdown:
    def test_classes_and_bars_sum_to_the_window(self):
        """The figures are the summary's to the nanosecond; the bar's parts lie end to end and are as long as the window."""
        summary = made.summary()
        part = section(page(summary), "breakdown")
        rows = part.find("table")[0].find("tbody")[0].find("tr")
        for row, rank in zip(rows, summary["ranks"], strict=True):
            number, _, steps, window, *classes = values(row)
            class_ns = [int(each) for each in classes[:5]]
            assert (int(number), int(steps), int(window)) == (rank["rank"], made.STEPS, rank["window_ns"])
            assert class_ns == [
                rank["breakdown"][f"{name}_ns"] for name in ("compute", "communication", "host", "overlap", "free")
            ]
            assert sum(class_ns) == rank["window_ns"]
        bars = [each for each in part.find("figure")[0].find("rect") if each.children and "x" in each.attributes]
        longest = max(rank["window_ns"] for rank in summary["ranks"])
        for number, rank in enumerate(summary["ranks"]):
            mine = [each for each in bars if f"rank {number} " in each.text]
            assert len(mine) == 5
            reached = 0.0
            for each in mine:
                assert float(each.attributes["x"].rstrip("%")) == pytest.approx(reached, abs=1e-4)
                reached += float(each.attributes["width"].rstrip("%"))
            assert reached == pytest.approx(100 * rank["window_ns"] / longest, abs=1e-3)

    def test_a_sum_that_is_not_the_window_is_reported(self):
        """What no class covers is a part of its own, and the page states that."""
        summary = made.summary(2, slow=1)
        summary["ranks"][0]["breakdown"]["free_ns"] -= 20_000_000
        part = section(page(summary), "breakdown").text
        assert "On 1 rank the classes do not sum to the window." in part
        assert "not in any class" in part

    def test_a_rank_without_one_is_counted(self):
        """Missing is reported, never drawn as nothing."""
        summary = made.summary(3, slow=1)
        summary["ranks"][2]["breakdown"] = None
        part = section(page(summary), "breakdown")
        assert "1 rank without a breakdown." in part.text
        assert len(part.find("table")[0].find("tbody")[0].find("tr")) == 2


def test_the_critical_path_covers_the_window_and_marks_what_was_guessed():
    """The bars' shares sum to one, and the share guessed by alignment is reported with the rank that has most of it."""
    part = section(page(made.summary()), "critical-path")
    assert "1.2% to 3.1% (rank 5)" in part.text
    bars = part.find("ul", **{"class": "bars"})[0].find("rect")
    shares = [float(each.attributes["width"].rstrip("%")) for each in bars if each.attributes["class"] != "track"]
    assert sum(shares) == pytest.approx(100, abs=0.01)
    assert "On the path of rank 5" in part.find("h3")[0].text


def test_waiting_names_the_straggler():
    """The group that waits most comes first, with the rank that it waits for."""
    bars = section(page(made.summary()), "waiting").find("ul")[0].find("li")
    assert "dp dp0, 8 ranks: waits for rank 5 (92% of the waiting)27%" in bars[0].text
    assert "for each in turn" in bars[1].text


def test_rooflines_have_roofs_points_and_figures():
    """Every operator has a mark per shown rank with its figures; the named rank's differ in shape."""
    part = section(page(made.summary()), "rooflines")
    titles = [each.text for each in part.find("title")]
    assert sum("aten::mm, rank 5" in each for each in titles) == 1
    assert any(each.startswith("roof of bf16: 312 TFLOP/s, 2.04 TB/s") for each in titles)
    flagged = part.find("path", **{"class": "mark flagged"})
    assert len(flagged) == len(made.ranks_points()) + 1  # the legend's
    assert len(part.find("tbody")[0].find("tr")) == 2 * len(made.ranks_points())


def test_components_are_bars_of_what_holds_the_kernels():
    """Shares by bound, as `rank` sends them, become a bar with a part for each."""
    summary = made.summary(2, slow=1)
    summary["ranks"][1]["components"] = {"mte_bound": 0.5, "inefficient_mte": 0.3, "undecided": 0.2}
    part = section(page(summary), "rooflines")
    assert "Components" in [each.text for each in part.find("h3")]
    bars = [each for each in part.find("rect") if "rank 1" in each.text]
    assert [each.attributes["class"] for each in bars] == ["memory", "overlap", "free"]


def test_patterns_flag_the_ranks_that_localisation_names():
    """The slow rank's function is a diamond in both pictures, the others are circles."""
    part = section(page(made.summary()), "patterns")
    flagged = [each.find("title")[0].text for each in part.find("path") if each.find("title")]
    assert len(flagged) == 2
    assert flagged[0].startswith(f"{made.LOADER}, rank 5 on node-000: beta 2")
    assert flagged[1].startswith("rank 5 on node-000: beta 2")


def test_a_function_of_the_named_rank_alone_is_shown():
    """What no other rank has is the strongest difference of all, and its picture has a place for every rank."""
    summary = made.summary()
    for rank in summary["ranks"]:
        rank["patterns"] = [each for each in rank["patterns"] if each["function"] != made.LOADER or rank["rank"] == 5]
    figure = section(page(summary), "patterns").find("div", **{"class": "side-by-side"})[0].find("figure")[0]
    assert "on 1 of 8 ranks" in figure.text
    assert len(figure.find("path", **{"class": "mark flagged"})) == 1
    assert {"0", "2", "4", "6"} <= {each.text for each in figure.find("text")}


def test_gaps_are_reported():
    """What could not be evaluated is grouped over ranks; what was skipped has its reason."""
    document = page(made.summary())
    assert "no clock was sampled0-7" in section(document, "not-evaluated").text
    assert "got the end of the file" in section(document, "skipped").text


@pytest.mark.parametrize("missing", [{}, {"ranks": None, "findings": None}, {"ranks": [], "groups": [], "skipped": []}])
def test_an_empty_summary_is_called_empty_everywhere(missing):
    """Every section without data is one line; no table and no picture is left empty."""
    document = page(missing)
    for name in set(SECTIONS) - {"definitions", "waiting"}:
        assert len(section(document, name).find("p")) == 1
    assert not document.find("table")
    assert not document.find("svg")


def test_ranks_without_parts_leave_out_their_sections():
    """A summary of ranks that could not answer still makes a page."""
    bare = {"rank": 0, "window_ns": None, "breakdown": None, "critical_path": [], "roofline": None, "patterns": None}
    document = page({"ranks": [bare, bare | {"rank": 1, "breakdown": {}}]})
    assert headline(document) == "Nothing was found that holds the job back."
    assert not document.find("svg")


def test_ten_thousand_ranks_stay_readable():
    """The page stays below 5 MB, shows the named ranks and the ones that differ most, and states that."""
    one = made.summary(40, slow=5)
    ranks = [
        one["ranks"][5 if number == 7000 else number % 40 if number % 40 != 5 else 6] | {"rank": number}
        for number in range(10_000)
    ]
    finding = made.finding(ranks=(7000,))
    summary = one | {"ranks": ranks, "findings": [finding], "groups": made.groups(10_000, 7000)}
    summary["localisation"][0]["ranks"] = [7000]
    text = render(summary)
    assert len(text.encode()) < 1_000_000
    assert len(render(with_texts(summary, HOSTILE * 100)).encode()) < 5_000_000
    document = read(text)
    assert "Rank 7000 holds the job back" in headline(document)
    part = section(document, "breakdown")
    assert "of 10,000 ranks are shown" in part.text
    named = [each.text for each in part.find("text", **{"class": "named"})]
    assert "rank 7000" in named
    flagged = [each for each in section(document, "patterns").find("path") if "rank 7000" in each.text]
    assert len(flagged) == 2


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)


def _places(value, place=()):
    """Return the places of all values in a summary."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place] * bool(place) + [each for key, below in inner for each in _places(below, (*place, key))]


_PLACES = _places(made.summary(2, slow=1))


def _put(summary, place, value):
    """Put a value at a place of a summary, unless another one took the place's surroundings away."""
    *above, last = place
    at = summary
    for key in above:
        if not (key in at if isinstance(at, dict) else isinstance(at, list) and key in range(len(at))):
            return
        at = at[key]
    if isinstance(at, dict) or (isinstance(at, list) and last in range(len(at))):
        at[last] = value


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(_PLACES), _JSON), min_size=1, max_size=8))
def test_wrong_values_anywhere_cost_no_page(changes):
    """Whatever stands in the place of a value, the page is made, whole and without NaN."""
    summary = made.summary(2, slow=1)
    for place, value in changes:
        _put(summary, place, value)
    document = read(render(summary))
    assert len(document.find("section")) == len(SECTIONS)
    marks = [each for name in ("rect", "circle", "line", "svg") for each in document.find(name)]
    places = [each.attributes.get(key) or "" for each in marks for key in ("x", "y", "cx", "cy", "x1", "y1", "width")]
    assert not [each for each in places if "nan" in each or "inf" in each]
