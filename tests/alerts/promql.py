"""What the tests need to know of an expression: its selectors, its grouping labels and which function holds a selector.

A tokenizer, no grammar: that the expression is valid is checked by promtool and Prometheus.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache

from alerts import rules
from dashboards import external_metrics
from lockstep.contracts.metrics import BY_NAME, Metric

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<range>\[[^\]]*\])
      | (?P<ident>[a-zA-Z_:][a-zA-Z0-9_:]*)
      | (?P<number>[0-9.]+[a-z]*)
      | (?P<punct>=~|!~|!=|==|>=|<=|\S)""",
    re.VERBOSE,
)
_LISTS = ("by", "without", "on", "ignoring", "group_left", "group_right")
_WORDS = (*_LISTS, "and", "or", "unless", "bool", "offset", "inf", "nan")
_TARGET = ("job", "instance")
_EXTERNAL = {"cluster": ("=~", "$cluster")}
"""Labels that a site may add to all series, in the form that also matches series without them."""
_OF_ALERTS = (*_TARGET, "alertname", "severity", "run", "rank", "hostname", "cause")
_OF_PROMETHEUS = {
    "up": _TARGET,
    **{name: (*_TARGET, *labels) for name, labels in external_metrics.LABELS.items()},
    "ALERTS": (*_OF_ALERTS, "alertstate"),
    "ALERTS_FOR_STATE": _OF_ALERTS,
}
RATES = ("rate", "irate", "increase", "resets")
COUNTS = "count"
"""Of series, whatever their values."""


@dataclass
class Selector:
    metric: str
    matchers: dict[str, tuple[str, str]]
    range: str
    function: str


@dataclass
class Expression:
    selectors: list[Selector] = field(default_factory=list)
    grouping: list[str] = field(default_factory=list)


def parse(text: str) -> Expression:
    """Return the selectors and grouping labels of a PromQL expression."""
    tokens = [(match.lastgroup, match.group()) for match in _TOKEN.finditer(text)]
    found, functions, at, grouped = Expression(), [""], 0, ""

    def value(index: int) -> str:
        return tokens[index][1] if index < len(tokens) else ""

    while at < len(tokens):
        kind, token = tokens[at]
        if kind == "ident" and token in _LISTS:
            if value(at + 1) == "(":
                end = next(i for i in range(at, len(tokens)) if tokens[i][1] == ")")
                grouped = tokens[at - 1][1] if token in ("by", "without") and at else ""
                found.grouping += [tokens[i][1] for i in range(at + 2, end) if tokens[i][0] == "ident"]
                at = end
        elif kind == "ident" and token.lower() not in _WORDS and value(at + 1) not in ("(", "by", "without"):
            selector, at = _selector(tokens, at, functions[-1])
            found.selectors.append(selector)
        elif token == "(":
            functions.append(tokens[at - 1][1] if at and tokens[at - 1][0] == "ident" else grouped)
            grouped = ""
        elif token == ")":
            functions.pop()
        at += 1
    return found


def _selector(tokens, at, function):
    metric, matchers, window = tokens[at][1], {}, ""
    if at + 1 < len(tokens) and tokens[at + 1][1] == "{":
        at += 2
        while tokens[at][1] != "}":
            if tokens[at][0] == "ident":
                matchers[tokens[at][1]] = (tokens[at + 1][1], tokens[at + 2][1][1:-1])
                at += 2
            at += 1
    if at + 1 < len(tokens) and tokens[at + 1][0] == "range":
        at += 1
        window = tokens[at][1]
    return Selector(metric, matchers, window, function), at


def _catalogued(name: str) -> Metric | None:
    if name in BY_NAME:
        return None if BY_NAME[name].type == "histogram" else BY_NAME[name]
    base = re.sub(r"_(bucket|sum|count)\Z", "", name)
    metric = BY_NAME.get(base)
    return metric if metric is not None and metric.type == "histogram" else None


def _recorded() -> dict[str, tuple[str, ...]]:
    return {rule.record: labels_of_recording(rule.expr) for rule in rules.recordings()}


def labels_of_recording(expr: str) -> tuple[str, ...]:
    """Return the labels of a recorded series: the first grouping list of our expressions is the outermost one."""
    match = re.search(r"by \(([^)]*)\)", expr)
    assert match, f"no grouping in {expr!r}"
    return tuple(label.strip() for label in match[1].split(","))


@lru_cache
def labels_of_series(name: str) -> tuple[str, ...]:
    """Return the labels that a scraped or recorded series has; fails on one that no one knows."""
    metric, recorded = _catalogued(name), _recorded()
    if name in recorded:
        return recorded[name]
    labels = (*metric.labels, *_TARGET) if metric else _OF_PROMETHEUS[name]
    return (*labels, "le") if name.endswith("_bucket") else labels


def problems(text: str) -> list[str]:
    """Return what is wrong with an expression by the catalogue: names, labels, values, rates."""
    found, recorded = [], _recorded()
    expression = parse(text)
    known: set[str] = set()
    for selector in expression.selectors:
        name, metric = selector.metric, _catalogued(selector.metric)
        if metric is None and name not in recorded and name not in _OF_PROMETHEUS:
            found.append(f"{name}: not in the catalogue")
            continue
        labels = metric.labels if metric else recorded.get(name) or _OF_PROMETHEUS[name]
        labels = (*labels, *_TARGET, *(("le",) if name.endswith("_bucket") else ()))
        known.update(labels)
        for label, (operator, wanted) in selector.matchers.items():
            if _EXTERNAL.get(label) == (operator, wanted):
                continue
            if label not in labels:
                found.append(f"{name}: has no label {label}")
            elif metric and metric.values and label == metric.labels[-1] and "$" not in wanted:
                alternatives = wanted.split("|") if "~" in operator else [wanted]
                found += [f"{name}: {label} is never {v!r}" for v in alternatives if v not in metric.values]
        found += _rate_problems(selector, metric)
    if expression.selectors:
        found += [f"grouping by {label}: no series here has it" for label in expression.grouping if label not in known]
    return found


def _rate_problems(selector: Selector, metric: Metric | None) -> list[str]:
    counted = metric is not None and metric.type in ("counter", "histogram")
    counted = counted or (selector.metric in external_metrics.LABELS and selector.metric.endswith("_total"))
    rated = bool(selector.range) and selector.function in RATES
    if counted and not rated and selector.function != COUNTS:
        return [f"{selector.metric}: a counter outside of rate or increase"]
    if rated and not counted:
        return [f"{selector.metric}: {selector.function} over what is no counter"]
    return []
