"""Runs cases of one area and counts what became of them: accepted, refused by reason, surprises, hangs, memory.

A case is known by area, seed and number. Areas keep state (runs, rings), so they begin again every `BLOCK` cases: case
N is replayed by running its block up to it.
"""

import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Protocol

BLOCK = 1000
HANG_CPU_S = 20.0
"""Of the process's own time, so that a busy machine is no hang; the slowest case that is none takes 0.3 s."""
GROWTH_MAX_BYTES = 96 << 20
"""From the end of the first block on. Caches of parsers and of NumPy settle within it."""
ACCEPTED = "accepted"
_FRAMES_KEPT = 12
_FAILURES_KEPT = 20
_PAGE_BYTES = 4096


class HangError(BaseException):
    """A case took too long; no `Exception`, so that no failure boundary takes it for its own."""


class SurpriseError(Exception):
    """What an area met that is no exception by itself: an answer of 500, a message that does not come back equal."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that ended as no case may: `kind` is exception or hang."""

    area: str
    seed: int
    number: int
    kind: str
    text: str

    @property
    def replay(self) -> str:
        """Argument of `--replay`."""
        return f"{self.area}:{self.seed}:{self.number}"


class Area(Protocol):
    """One kind of input and the entry points that it goes through."""

    name: str

    def begin(self, random: Random, /) -> None:
        """Set up for another block of cases."""

    def run(self, randoms: Sequence[Random]) -> Iterator[str | BaseException]:
        """Yield what became of each case in order: `ACCEPTED`, the reason of its refusal, or what it raised."""

    def close(self) -> None:
        """Give everything back."""


@dataclass(slots=True)
class Report:
    """What became of the cases of one area in one process."""

    area: str
    cases: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    exceptions: int = 0
    hangs: int = 0
    failures: list[Failure] = field(default_factory=list)
    start_bytes: int = 0
    end_bytes: int = 0
    seconds: float = 0.0

    def add(self, other: "Report") -> None:
        """Take the report of another process on the same area."""
        self.cases += other.cases
        self.accepted += other.accepted
        self.refused += other.refused
        self.exceptions += other.exceptions
        self.hangs += other.hangs
        self.failures += other.failures
        if other.growth_bytes >= self.growth_bytes:
            self.start_bytes, self.end_bytes = other.start_bytes, other.end_bytes
        self.seconds = max(self.seconds, other.seconds)

    @property
    def growth_bytes(self) -> int:
        """By how much the resident memory grew after the first block; of the process where it was most."""
        return self.end_bytes - self.start_bytes

    def is_good(self, growth_max_bytes: int = GROWTH_MAX_BYTES) -> bool:
        """Whether nothing happened that may not."""
        return not self.exceptions and not self.hangs and self.growth_bytes <= growth_max_bytes


def random_of(area: str, seed: int, number: int) -> Random:
    """Return the generator of one case."""
    return Random(f"{area}/{seed}/{number}")  # noqa: S311  (a case must come again)


def run_cases(area: Area, seed: int, first: int, count: int) -> Report:
    """Run `count` cases from number `first` on, which must begin a block."""
    assert first % BLOCK == 0
    report, begin_s = Report(area.name, start_bytes=resident_bytes()), time.monotonic()
    for block in range(first, first + count, BLOCK):
        numbers = range(block, min(block + BLOCK, first + count))
        _run_block(area, seed, numbers, report)
        if block == first:
            report.start_bytes = resident_bytes()
    report.end_bytes = resident_bytes()
    report.seconds = time.monotonic() - begin_s
    return report


def replay(area: Area, seed: int, number: int) -> Report:
    """Run the block of a case up to it."""
    report = Report(area.name)
    _run_block(area, seed, range(number - number % BLOCK, number + 1), report)
    return report


def _run_block(area: Area, seed: int, numbers: range, report: Report) -> None:
    area.begin(random_of(area.name, seed, -1 - numbers.start))
    at = numbers.start
    try:
        with watchdog() as rewind:
            for outcome in area.run([random_of(area.name, seed, number) for number in numbers]):
                rewind()
                _count(report, seed, at, outcome)
                at += 1
        assert at == numbers.stop, f"{area.name}: {at - numbers.start} outcomes of {len(numbers)} cases"
    except HangError as hang:  # the rest of the block is not run: its state cannot be trusted
        report.cases += 1
        report.hangs += 1
        _keep(report, Failure(area.name, seed, at, "hang", _text(hang)))
    finally:
        area.close()


def _count(report: Report, seed: int, number: int, outcome: str | BaseException) -> None:
    report.cases += 1
    if isinstance(outcome, BaseException):
        report.exceptions += 1
        _keep(report, Failure(report.area, seed, number, "exception", _text(outcome)))
    elif outcome == ACCEPTED:
        report.accepted += 1
    else:
        report.refused[outcome] += 1


def _keep(report: Report, failure: Failure) -> None:
    """Keep the first of each: what a case leaves behind fails again and again until its block ends."""
    if len(report.failures) < _FAILURES_KEPT and all(failure.text != each.text for each in report.failures):
        report.failures.append(failure)


def _text(error: BaseException) -> str:
    frames = "".join(traceback.format_tb(error.__traceback__, limit=-_FRAMES_KEPT))
    return f"{frames}{type(error).__name__}: {error!s:.1000}"


@contextmanager
def watchdog(cpu_s: float = HANG_CPU_S) -> Iterator["Rewind"]:
    """Raise `HangError` in the block when it computes for `cpu_s` without a rewind; main thread only."""

    def bark(_: int, frame: FrameType | None) -> None:
        raise HangError(f"more than {cpu_s:g} s of CPU in one case, in {frame}")

    before = signal.signal(signal.SIGPROF, bark)
    rewind = Rewind(cpu_s)
    rewind()
    try:
        yield rewind
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


class Rewind:
    """Begins the watchdog's time again."""

    def __init__(self, cpu_s: float) -> None:
        self._cpu_s = cpu_s

    def __call__(self) -> None:
        """Let the next case have all the time."""
        signal.setitimer(signal.ITIMER_PROF, self._cpu_s)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
