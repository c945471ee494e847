"""The table of causes and remedies, `remedies.toml`: loaded, checked, and matched with findings.

Hermes' Table 4 and the ASPLOS paper's Table 1 combined. The file is part of the package and read once; errors in it
name the key that is wrong.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import Any

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.finding import BOTTLENECKS, Advice, Finding
from lockstep.contracts.metrics import CAUSES as INCIDENT_CAUSES
from lockstep.diagnosis.frames import readable

VERSION = 1
FILE = "remedies.toml"
PYTORCH, MINDSPORE, ASCEND = FRAMEWORKS = ("pytorch", "mindspore", "ascend")

EXPLAINED = "explained"
"""The remedy removes the excess of the named function over the peers, or the finding's whole cost."""
EXCESS = "excess"
"""The remedy removes the rank's whole excess, or the finding's whole cost."""
REST = "rest"
"""The remedy removes the excess outside the named function, or everything if none was named."""
FUSED = "fused"
"""The remedy removes what fusing collectives with neighbouring operators saves (`neighbour_fusion`)."""
UNKNOWN = "unknown"
"""The capture does not show how much the remedy removes."""
_FUSED_LEAST_RATIO = 0.005
"""Share of the window that fusing must save to be advised; less would be printed as 0 %."""
_REMOVES = (EXPLAINED, EXCESS, REST, FUSED, UNKNOWN)
_PLACES = {"function", "operator"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """A class of causes; `share_ratio` is its share of Hermes' 135 cases."""

    title: str
    share_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A cause that a rule may name: how it is found, its source, and its published frequency, if any."""

    bottleneck: str
    title: str
    rule: str
    source: str
    share_ratio: float | None = None
    share_of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One remedy, for causes of findings and of incidents. `how` is by framework; the fields are the file's."""

    suggestion: str
    how: Mapping[str, str]
    removes: str
    source: str
    causes: tuple[str, ...] = ()
    incidents: tuple[str, ...] = ()
    key: str = ""
    when: str = ""
    unless: str = ""

    def applies(self, names: list[str]) -> bool:
        """Whether the remedy applies, given the names on a path or a finding's subject."""
        if self.unless and any(self.unless in name for name in names):
            return False
        return not self.when or any(self.when in name for name in names)

    def how_in(self, framework: str) -> str:
        """Return how to apply it in a framework; if the table has no entry, PyTorch's or the only one."""
        return self.how.get(framework) or self.how.get(PYTORCH) or next(iter(self.how.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRemedy:
    """An operator and the remedies (keys by cause) that made it faster, from the ASPLOS paper's Table 1."""

    operator: str
    speedup: float
    by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The whole file."""

    bottlenecks: Mapping[str, Bottleneck]
    causes: Mapping[str, Cause]
    remedies: tuple[TableRow, ...]
    measured: tuple[MeasuredRemedy, ...]


@cache
def table() -> Table:
    """Return the packaged table. Raises MalformedError if the file is invalid."""
    return parse_table(files("lockstep.diagnosis").joinpath(FILE).read_text("utf-8"))


def parse_table(text: str, *, where: str = FILE) -> Table:
    """Parse the table in `text`.

    Raises
    ------
    MalformedError
        Invalid TOML, another version, a key that is missing, unknown or of another type, an unknown name, or a cause
        without a remedy.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MalformedError("table of remedies", where=where, got=error, expected="TOML") from error
    parts = {"version", "bottlenecks", "causes", "remedies", "measured"}
    if document.keys() != parts or document["version"] != VERSION:
        got = f"version {document.get('version')}, parts {sorted(document)}"
        raise MalformedError("table of remedies", where=where, got=got, expected=f"version {VERSION}, {sorted(parts)}")
    found = Table(
        bottlenecks={
            key: Bottleneck(**_read(fields, _BOTTLENECK, f"bottlenecks.{key}", where))
            for key, fields in document["bottlenecks"].items()
        },
        causes={
            key: Cause(**_read(fields, _CAUSE, f"causes.{key}", where)) for key, fields in document["causes"].items()
        },
        remedies=tuple(
            TableRow(**_read(fields, _ROW, f"remedies[{at}]", where)) for at, fields in enumerate(document["remedies"])
        ),
        measured=tuple(
            MeasuredRemedy(**_read(fields, _MEASURED, f"measured[{at}]", where))
            for at, fields in enumerate(document["measured"])
        ),
    )
    _check_names(found, where)
    return found


def advise_finding(finding: Finding, window_ns: int, *, framework: str = PYTORCH) -> Finding:
    """Return the finding with its advice, the largest predicted gain first, and the gain of the best.

    Predicted gain = min(lost, window) / window for remedies that remove the finding's loss; for remedies that fuse, at
    most the saving of fusion; None for others, for an unknown loss, and for a loss in only one of several steps. Fusion
    is advised only if it saves at least `_FUSED_LEAST_RATIO`. A finding whose cause is not in the table is returned
    without advice.
    """
    subject, named = finding.subject, readable(finding.subject)
    lost_ns = finding.lost_ns or 0
    is_known = lost_ns > 0 and window_ns > 0 and not finding.is_once
    gain_ratio = min(lost_ns, window_ns) / window_ns if is_known else None
    gains = {EXPLAINED: gain_ratio, EXCESS: gain_ratio}
    if gain_ratio is not None and finding.fused_ns is not None:
        gains[FUSED] = min(gain_ratio, finding.fused_ns / window_ns)
    advice = [
        Advice(
            suggestion=row.suggestion.format(function=named or "the rank", operator=named or "the operator"),
            how=row.how_in(framework),
            predicted_gain_ratio=gains.get(row.removes),
            source=row.source,
        )
        for row in table().remedies
        if finding.cause in row.causes
        and row.applies([subject, *finding.context])
        and (row.removes != FUSED or (finding.fused_ns or 0) >= _FUSED_LEAST_RATIO * window_ns)
    ]
    advice.sort(key=lambda each: -(each.predicted_gain_ratio or 0.0))
    best = advice[0].predicted_gain_ratio if advice else None
    return replace(finding, advice=tuple(advice), predicted_gain_ratio=best)


_TEXT, _NUMBER, _TEXTS, _TEXT_BY_NAME, _TEXTS_BY_NAME = "text", "number", "list of texts", "texts", "lists of texts"
_BOTTLENECK = {"title": _TEXT, "share_ratio": _NUMBER}
_CAUSE = {"bottleneck": _TEXT, "title": _TEXT, "rule": _TEXT, "source": _TEXT}
_CAUSE |= {"share_ratio?": _NUMBER, "share_of?": _TEXT}
_ROW = {"suggestion": _TEXT, "removes": _TEXT, "source": _TEXT, "how": _TEXT_BY_NAME}
_ROW |= {"causes?": _TEXTS, "incidents?": _TEXTS, "key?": _TEXT, "when?": _TEXT, "unless?": _TEXT}
_MEASURED = {"operator": _TEXT, "speedup": _NUMBER, "by": _TEXTS_BY_NAME}
"""Fields of the file's parts and their types; a question mark lets one be absent."""


def _read(fields: object, expected: Mapping[str, str], what: str, where: str) -> dict[str, Any]:
    """Return the fields of one part, with lists as tuples; raise MalformedError for an invalid one."""
    if not isinstance(fields, dict):
        raise MalformedError(what, where=where, got=fields, expected="a table")
    kinds = {key.removesuffix("?"): kind for key, kind in expected.items()}
    missing = {key for key in expected if not key.endswith("?")} - fields.keys()
    if missing or fields.keys() - kinds:
        raise MalformedError(what, where=where, got=f"keys {sorted(fields)}", expected=f"keys {sorted(expected)}")
    for key, value in fields.items():
        if not _is(kinds[key], value):
            raise MalformedError(f"{what}.{key}", where=where, got=value, expected=kinds[key])
    return {key: _frozen(value) for key, value in fields.items()}


def _is(kind: str, value: object) -> bool:
    if kind == _NUMBER:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == _TEXT:
        return isinstance(value, str) and bool(value)
    if kind == _TEXTS:
        return isinstance(value, list) and bool(value) and all(_is(_TEXT, each) for each in value)
    each_kind = _TEXT if kind == _TEXT_BY_NAME else _TEXTS
    return isinstance(value, dict) and bool(value) and all(_is(each_kind, each) for each in value.values())


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(each) for key, each in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _check_names(found: Table, where: str) -> None:
    """Check that all names in one part refer to existing entries of another."""
    _check_known("bottlenecks", found.bottlenecks, BOTTLENECKS, where)
    for key, cause in found.causes.items():
        _check_known(f"causes.{key}.bottleneck", [cause.bottleneck], BOTTLENECKS, where)
    for at, row in enumerate(found.remedies):
        what = f"remedies[{at}]"
        _check_known(f"{what}.causes", row.causes, found.causes, where)
        _check_known(f"{what}.incidents", row.incidents, INCIDENT_CAUSES, where)
        _check_known(f"{what}.removes", [row.removes], _REMOVES, where)
        _check_known(f"{what}.how", row.how, FRAMEWORKS, where)
        _check_known(f"{what}.suggestion", _places(row.suggestion, what, where), _PLACES, where)
        if not row.causes and not row.incidents:
            raise MalformedError(what, where=where, got=row.suggestion, expected="at least one cause or incident")
    remedied = {cause for row in found.remedies for cause in row.causes}
    _check_known("causes", found.causes, remedied, where, expected="a remedy for each")
    keys = {(cause, row.key) for row in found.remedies for cause in row.causes}
    for each in found.measured:
        named = [(cause, key) for cause, used in each.by.items() for key in used]
        _check_known(f"measured.{each.operator}", named, keys, where)


def _check_known(what: str, names: Any, known: Any, where: str, *, expected: object = None) -> None:
    if strange := [name for name in names if name not in known]:
        raise MalformedError(what, where=where, got=strange, expected=expected or f"of {sorted(known)}")


def _places(suggestion: str, what: str, where: str) -> list[str]:
    try:
        return [name for _, name, _, _ in Formatter().parse(suggestion) if name is not None]
    except ValueError as error:
        raise MalformedError(f"{what}.suggestion", where=where, got=suggestion, expected=error) from error


CAUSES = tuple(table().causes)
"""Every cause that a rule may name."""
