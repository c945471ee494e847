"""The JSON summary of `lockstep analyze` with types: read once, tolerant of everything that is missing."""

from dataclasses import dataclass
from typing import Any

from lockstep.analysis.report import reading
from lockstep.html.markup import cut

CLASSES = ("compute", "communication", "host", "overlap", "free")
"""What a window sums to (`lockstep.trace.step_breakdown`)."""
UNCLASSIFIED = "other"
"""The colour and name of what no class of the summary covers."""
_HOST_MAX = 64  # HOST_NAME_MAX of Linux
_KINDS = {name: name for name in (*CLASSES, "memory", "gap", "idle")} | {"collective": "communication"}

FunctionKey = tuple[str, tuple[str, ...], str]
"""Class, callers and name: what makes a function the same on two ranks."""


def kind_of(name: str) -> str:
    """Return the colour of a class, `UNCLASSIFIED` for an unknown class."""
    return _KINDS.get(name, UNCLASSIFIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A window by class in ns, None where the summary does not record it; `memory_ns` is a part of compute."""

    window_ns: int
    parts: tuple[tuple[str, int | None], ...]
    memory_ns: int | None
    compute_communication_ratio: float | None

    @property
    def stack(self) -> list[tuple[str, int]]:
        """Return the parts of a bar as long as the window; what no class covers comes last."""
        known = [(name, ns or 0) for name, ns in self.parts]
        rest = self.window_ns - sum(ns for _, ns in known)
        return [*known, (UNCLASSIFIED, rest)] if rest > 0 else known

    @property
    def ratios(self) -> tuple[float, ...]:
        """Return the classes' shares of the window."""
        return tuple((ns or 0) / self.window_ns if self.window_ns else 0.0 for _, ns in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEntry:
    """What one name takes of the critical path."""

    name: str
    kind: str
    ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionUsage:
    """A function's behaviour on one rank; `key` is what makes it the same function on another."""

    key: FunctionKey
    beta: float
    mu: float | None
    sigma: float | None

    @property
    def name(self) -> str:
        """Return the function."""
        return self.key[2]

    @property
    def kind(self) -> str:
        """Return its colour."""
        return kind_of(self.key[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank's part of the summary; None and empty are unknown from its trace."""

    number: int
    host: str
    path: str
    vendor: str
    devices: tuple[str, ...]
    window_ns: int | None
    step_count: int | None
    account: Account | None
    stored_steps: Any
    step_numbers: Any
    critical_path: tuple[PathEntry, ...]
    guessed_ratio: float | None
    collectives: tuple[dict[str, Any], ...]
    patterns: tuple[FunctionUsage, ...]
    roofline: dict[str, Any]
    components: Any

    @property
    def steps(self) -> tuple[tuple[str, Account], ...]:
        """Return the steps' accounts by their names; read when asked for, as only a few ranks' are shown."""
        return _steps(self.stored_steps, self.step_numbers)

    @property
    def label(self) -> str:
        """Return how bars call it."""
        return f"rank {self.number}"

    @property
    def title(self) -> str:
        """Return how titles call it."""
        return f"rank {self.number} on {self.host}" if self.host else self.label


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The whole summary; ranks are in order, and a rank without a number is not among them."""

    tool: str
    ranks: tuple[Rank, ...]
    groups: tuple[dict[str, Any], ...]
    collectives: tuple[dict[str, Any], ...]
    localisation: tuple[dict[str, Any], ...]
    findings: tuple[dict[str, Any], ...]
    not_evaluated: tuple[dict[str, Any], ...]
    skipped: tuple[dict[str, Any], ...]


def summary_of(summary: dict[str, Any]) -> Summary:
    """Return the summary with types."""
    found = [rank for each in reading.records(summary.get("ranks")) if (rank := _rank(each)) is not None]
    lists = ("groups", "collectives", "localisation", "findings", "not_evaluated", "skipped")
    return Summary(
        tool=reading.text(summary.get("tool")) or "lockstep analyze",
        ranks=tuple(sorted(found, key=lambda rank: rank.number)),
        **{name: tuple(reading.records(summary.get(name))) for name in lists},
    )


def _rank(stored: dict[str, Any]) -> Rank | None:
    number = reading.rank(stored.get("rank"))
    if number is None:
        return None
    window_ns = reading.nanoseconds(stored.get("window_ns"))
    steps = reading.record(stored.get("steps"))
    count = reading.amount(steps.get("count"))
    return Rank(
        number=number,
        host=cut(reading.text(stored.get("host")), _HOST_MAX),
        path=reading.text(stored.get("path")),
        vendor=reading.text(stored.get("vendor")),
        devices=tuple(reading.texts(stored.get("devices"))),
        window_ns=window_ns,
        step_count=None if count is None else int(count),
        account=_account(stored.get("breakdown"), window_ns),
        stored_steps=stored.get("steps_breakdown"),
        step_numbers=steps.get("numbers"),
        critical_path=tuple(_path(stored.get("critical_path"))),
        guessed_ratio=reading.share(stored.get("critical_path_guessed_ratio")),
        collectives=tuple(reading.records(stored.get("collectives"))),
        patterns=tuple(_patterns(stored.get("patterns"))),
        roofline=reading.record(stored.get("roofline")),
        components=stored.get("components"),
    )


def _account(stored: Any, window_ns: int | None) -> Account | None:
    """Return a breakdown; without a window its classes are the window."""
    values = reading.record(stored)
    parts = tuple((name, reading.nanoseconds(values.get(f"{name}_ns"))) for name in CLASSES)
    known = [ns for _, ns in parts if ns is not None]
    if not known or not (window_ns or sum(known)):
        return None
    return Account(
        window_ns=window_ns or sum(known),
        parts=parts,
        memory_ns=reading.nanoseconds(values.get("memory_ns")),
        compute_communication_ratio=reading.share(values.get("compute_communication_overlap_ratio")),
    )


def _steps(stored: Any, note: Any) -> tuple[tuple[str, Account], ...]:
    """Return the steps' accounts by the steps' numbers, or by their places where numbers are missing."""
    rows = reading.records(stored)
    numbers = note if isinstance(note, list) and len(note) == len(rows) else range(len(rows))
    found = [
        (f"step {number:.12g}", _account(row, None)) for number, row in zip(map(_plain, numbers), rows, strict=True)
    ]
    return tuple((label, account) for label, account in found if account is not None)


def _plain(value: Any) -> float:
    return reading.number(value) or 0


def _path(stored: Any) -> list[PathEntry]:
    entries = [
        (reading.text(each.get("name")), reading.text(each.get("class")), reading.nanoseconds(each.get("ns")))
        for each in reading.records(stored)
    ]
    return [PathEntry(name=name, kind=kind_of(kind), ns=ns) for name, kind, ns in entries if ns]


def _patterns(stored: Any) -> list[FunctionUsage]:
    found = []
    for each in reading.records(stored):
        beta = reading.share(each.get("beta"))
        if beta is None:
            continue
        found.append(
            FunctionUsage(
                key=function_key(each),
                beta=beta,
                mu=reading.share(each.get("mu")),
                sigma=reading.share(each.get("sigma")),
            )
        )
    return found


def function_key(stored: dict[str, Any]) -> FunctionKey:
    """Return class, callers and name of the function that a pattern or a localisation is about."""
    return (
        reading.text(stored.get("class")),
        tuple(reading.texts(stored.get("stack"))),
        reading.text(stored.get("function")),
    )
