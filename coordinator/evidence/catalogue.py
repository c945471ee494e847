"""The catalogue of evidence queries: `queries.toml`, and an optional file of the site in the same format.

docs/evidence.md documents every key. An error names the file, table and key.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.settings import build_config

F = TypeVar("F")

FILE = "queries.toml"
VERSION = 1
ABOVE, BELOW, CODE = COMPARISONS = ("above", "below", "code")
"""Which side of the control counts as evidence. "code": a number that has changed and is not zero."""
DEVICE, HOST, RANK = SCOPES = ("device", "host", "rank")
TARGETS, WINDOW, METRIC = "$targets", "$window", "$metric"
_QUERIES_MAX = 200
_FILE_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceSource:
    """An exporter: the scope of its series, and the labels that identify it; empty if there is no such label.

    Series of scope "rank" have Lockstep's own labels `run` and `rank`; those of other scopes need the label `host`.
    `resolve` is a metric that maps a host name (its label `resolve_host`) to the value of the label `host`.
    """

    title: str
    scope: str
    host: str = ""
    uuid: str = ""
    index: str = ""
    pod: str = ""
    resolve: str = ""
    resolve_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceCause:
    """A cause that queries give evidence of; dropped for a rank that also shows one of `explained_by`."""

    title: str
    advice: str
    explained_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceCode:
    """The meaning of one number of a query that compares codes."""

    cause: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceQuery:
    """One query (PromQL with `$targets` and `$window`) and the condition under which its value is evidence.

    `limit` is an additional bound in `unit` that the value must have passed. `requires` is a cause that the same rank
    must also show for this query to count. Series that differ in the labels `by` are compared separately.
    """

    name: str
    source: str
    cause: str
    meaning: str
    unit: str
    query: str
    compare: str
    min_difference: float = 0.0
    min_ratio: float = 0.0
    limit: float | None = None
    requires: str = ""
    by: tuple[str, ...] = ()
    codes: Mapping[int, EvidenceCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceCatalogue:
    """Sources, causes and queries; the order of the causes is the order in which deviations are reported."""

    sources: Mapping[str, EvidenceSource]
    causes: Mapping[str, EvidenceCause]
    queries: tuple[EvidenceQuery, ...]


def load_catalogue(site_file: str = "") -> EvidenceCatalogue:
    """Return Lockstep's own queries, extended by a site's file, whose entries replace those of the same name.

    Raises
    ------
    ConfigError
        The site's file cannot be used; the message names the key.
    """
    own = _parse(files(__package__).joinpath(FILE).read_text("utf-8"), FILE)
    if not site_file:
        return _checked(own, FILE)
    path = Path(site_file)
    where = f"evidence_queries_file {site_file}"
    try:
        with path.open("rb") as stream:
            body = stream.read(_FILE_MAX_BYTES + 1)
        text = body.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: expected a TOML file in UTF-8: {error}") from None
    if len(body) > _FILE_MAX_BYTES:
        raise ConfigError(f"{where}: got more than {_FILE_MAX_BYTES} bytes, expected fewer")
    site = _parse(text, where)
    return _checked({section: own[section] | site[section] for section in own}, where)


def _parse(text: str, where: str) -> dict[str, dict[str, Any]]:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: expected TOML: {error}") from None
    if document.pop("version", None) != VERSION:
        raise ConfigError(f"{where}: expected version = {VERSION}")
    sections: dict[str, dict[str, Any]] = {"sources": {}, "causes": {}, "queries": {}}
    for name, tables in document.items():
        if name not in sections:
            raise ConfigError(f"{where}: got {name!r:.100}, expected one of {', '.join(sections)}")
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            raise ConfigError(f"{where}: {name}: expected tables, [{name}.NAME]")
        sections[name] = tables
    return sections


def _checked(sections: dict[str, dict[str, Any]], where: str) -> EvidenceCatalogue:
    if len(sections["queries"]) > _QUERIES_MAX:
        raise ConfigError(f"{where}: got {len(sections['queries'])} queries, expected at most {_QUERIES_MAX}")
    catalogue = EvidenceCatalogue(
        sources={
            name: _built(EvidenceSource, each, f"{where}: sources.{name}") for name, each in sections["sources"].items()
        },
        causes={
            name: _built(EvidenceCause, each, f"{where}: causes.{name}") for name, each in sections["causes"].items()
        },
        queries=tuple(
            query
            for name, each in sections["queries"].items()
            for query in _queries(name, each, f"{where}: queries.{name}")
        ),
    )
    for name, source in catalogue.sources.items():
        _expect(source.scope in SCOPES, f"{where}: sources.{name}: scope", source.scope, f"one of {SCOPES}")
        _expect(bool(source.host) or source.scope == RANK, f"{where}: sources.{name}: host", source.host, "a label")
    for query in catalogue.queries:
        _check_query(query, catalogue, f"{where}: queries.{query.name}")
    return catalogue


def _check_query(query: EvidenceQuery, catalogue: EvidenceCatalogue, where: str) -> None:
    _expect(query.source in catalogue.sources, f"{where}: source", query.source, "a table of sources")
    causes = (query.cause, *(code.cause for code in query.codes.values()), *filter(None, (query.requires,)))
    for cause in causes:
        _expect(cause in catalogue.causes, f"{where}: cause", cause, "a table of causes")
    _expect(query.compare in COMPARISONS, f"{where}: compare", query.compare, f"one of {COMPARISONS}")
    _expect(TARGETS in query.query, f"{where}: query", query.query, f"PromQL with {TARGETS}")
    bounds = (query.min_difference, query.min_ratio)
    _expect(all(bound >= 0 for bound in bounds), f"{where}: min_difference, min_ratio", bounds, "numbers from 0")
    if query.compare != CODE:
        _expect(any(bounds), f"{where}: min_difference, min_ratio", bounds, "one of them above 0")


def _queries(name: str, table: dict[str, Any], where: str) -> Iterator[EvidenceQuery]:
    """Yield the query of a table, or one for each of its `metrics`."""
    metrics = table.get("metrics", [""])
    is_list = isinstance(metrics, list) and bool(metrics) and all(isinstance(metric, str) for metric in metrics)
    _expect(is_list, f"{where}: metrics", metrics, "a list of names")
    own = {key: value for key, value in table.items() if key not in ("metrics", "codes")}
    codes = table.get("codes", {})
    _expect(isinstance(codes, dict), f"{where}: codes", codes, "a table")
    for number, code in codes.items():
        _expect(number.isdecimal() and isinstance(code, dict), f"{where}: codes", number, "NUMBER = {cause, meaning}")
    parsed = {int(number): _built(EvidenceCode, code, f"{where}: codes.{number}") for number, code in codes.items()}
    for metric in metrics:
        query = _built(EvidenceQuery, {**own, "name": f"{name}:{metric}" if len(metrics) > 1 else name}, where)
        if metric:
            _expect(METRIC in query.query, f"{where}: query", query.query, f"PromQL with {METRIC}")
        yield replace(
            query,
            codes=parsed,
            query=query.query.replace(METRIC, metric),
            meaning=query.meaning.replace(METRIC, metric),
        )


def _built(form: type[F], table: dict[str, Any], where: str) -> F:
    """Return a dataclass built from a table; strings must be a single line."""
    for key, value in table.items():
        is_line = not isinstance(value, str) or value.isprintable()
        _expect(is_line, f"{where}: {key}", value, "text of one line")
    return build_config(form, file=table, file_name=where)


def _expect(good: bool, where: str, got: object, expected: str) -> None:  # noqa: FBT001  (the condition itself)
    if not good:
        raise ConfigError(f"{where}: got {got!r:.100}, expected {expected}")
