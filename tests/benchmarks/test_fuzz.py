"""The fuzzer sees what it is for, and ten thousand of its cases find nothing."""

import contextlib
import mmap
import time
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from benchmarks.fuzz import harness, mutate
from benchmarks.fuzz.__main__ import main
from benchmarks.fuzz.areas.answers import Answers
from benchmarks.fuzz.harness import ACCEPTED, HangError, Report
from benchmarks.fuzz.parts import AREAS, run_areas

SEED = 20_251


class Planted:
    """An area whose cases end as given by their numbers; of each hundred it leaks `leaked_bytes`."""

    name = "planted"

    def __init__(self, outcomes: dict[int, str | BaseException], *, leaked_bytes: int = 0) -> None:
        self.outcomes = outcomes
        self.leaked_bytes = leaked_bytes
        self.leaked: list[mmap.mmap] = []  # pages of their own: an allocator may have others to spare
        self.begun = self.closed = 0

    def begin(self, _: Random) -> None:
        self.begun += 1

    def close(self) -> None:
        self.closed += 1

    def run(self, randoms: Sequence[Random]) -> Iterator[str | BaseException]:
        for number, _ in enumerate(randoms):
            if self.leaked_bytes and number % 100 == 0:
                self.leaked.append(mmap.mmap(-1, self.leaked_bytes))
                self.leaked[-1].write(b"x" * self.leaked_bytes)
            outcome = self.outcomes.get(number, ACCEPTED)
            if isinstance(outcome, HangError):
                raise outcome
            yield outcome


def test_what_became_of_each_case_is_counted():
    """Accepted, refused by reason, and surprises with what brings them back."""
    area = Planted({1: "malformed", 2: "malformed", 7: OverflowError("too large")})
    report = harness.run_cases(area, 3, 2 * harness.BLOCK, harness.BLOCK)
    assert (report.cases, report.accepted, dict(report.refused)) == (harness.BLOCK, harness.BLOCK - 3, {"malformed": 2})
    assert (report.exceptions, report.hangs, report.is_good()) == (1, 0, False)
    (failure,) = report.failures
    assert failure.replay == f"planted:3:{2 * harness.BLOCK + 7}"
    assert "OverflowError: too large" in failure.text
    assert area.begun == area.closed == 1


def test_a_hang_ends_its_block_and_no_other():
    """The rest of the block would run on an unknown state."""
    area = Planted({4: HangError("for ever")})
    report = harness.run_cases(area, 1, 0, 2 * harness.BLOCK)
    assert (report.hangs, report.cases, report.accepted) == (2, 10, 8)
    assert not report.is_good()
    assert area.begun == area.closed == 2


def test_a_case_that_computes_for_ever_is_a_hang():
    """The process's own time counts; a failure boundary does not catch it."""

    def compute() -> None:
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0)

    with pytest.raises(HangError, match="CPU in one case"), harness.watchdog(0.05):
        compute()


def test_memory_that_grows_is_a_failure():
    """From the end of the first block on."""
    area = Planted({}, leaked_bytes=1 << 20)
    report = harness.run_cases(area, 1, 0, 5 * harness.BLOCK)
    assert report.growth_bytes > 20 << 20
    assert not report.is_good(growth_max_bytes=20 << 20)
    assert report.is_good()
    for leaked in area.leaked:
        leaked.close()
    assert Report("planted", start_bytes=100, end_bytes=90).is_good()


def test_a_replayed_case_follows_those_of_its_block():
    """Runs and rings have a history."""
    area = Planted({9: ValueError("bad")})
    report = harness.replay(area, 1, 9)
    assert (report.cases, report.exceptions) == (10, 1)


def test_the_same_seed_brings_the_same_cases():
    """Else a finding could not be looked at."""
    one, other, third = (harness.run_cases(Answers(), seed, 0, harness.BLOCK) for seed in (1, 1, 2))
    assert (one.accepted, one.refused) == (other.accepted, other.refused)
    assert (one.accepted, one.refused) != (third.accepted, third.refused)


def test_mutations_reach_every_kind_of_value():
    """Boundary integers, NaN, half pairs, other types, missing, doubled and nested values."""
    random = Random(1)
    seen = [mutate.changed_value(random, {"a": 1, "b": [2.5, "text"], "c": {"d": b"x"}}) for _ in range(5000)]
    flat = str(seen)
    for sign in ("9223372036854775808", "nan", "inf", "\\ue000", "None", "'text', 'text'", "{'a': {'a': {"):
        assert sign in flat
    assert any(list(each) == ["a", "b"] for each in seen if isinstance(each, dict))


@pytest.mark.timeout(600)  # half a minute of computing on one core
def test_ten_thousand_cases_find_nothing():
    """Of every area; the million of `make fuzz` are others each day."""
    reports = run_areas(list(AREAS), 10_000, SEED, 1)
    assert {report.area for report in reports} == set(AREAS)
    assert sum(report.cases for report in reports) >= 10_000
    for report in reports:
        assert report.failures == [], report.area
        assert report.is_good()
        assert report.accepted > report.cases * 0.05, report.area  # else it tests the first check only
        assert report.refused


def test_it_prints_a_table_and_how_to_see_a_case_again(capsys):
    """From the command line, in this process."""
    assert main(["--areas", "answers", "--cases", "2000", "--processes", "1", "--seed", "4"]) == 0
    printed = capsys.readouterr().out
    assert "| answers | 2000 |" in printed
    assert "seed 4, 2000 cases" in printed
    assert main(["--replay", "answers:4:1003"]) == 0
    assert "4 cases, 0 unexpected exceptions, 0 hangs" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--areas", "answers,nothing"], ["--replay", "nothing:1:1"], ["--replay", "answers"]]
)
def test_a_wrong_option_is_named(arguments, capsys):
    """With what is there."""
    with pytest.raises(SystemExit):
        main(arguments)
    assert "expected" in capsys.readouterr().err
