"""Runs a dashboard's queries against a Prometheus, with variables filled in.

A failed query raises no error: the panel shows the error instead.
"""

import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.json_text import answered_object

POINTS = 240
_ANSWER_MAX_BYTES = 64 << 20
_TIMEOUT_S = 30
_LEAST_SPAN_S = 60.0
_OF_A_RUN = 'count(lockstep_run_ranks{run="$run"})'
_OF_ANY = 'count({__name__=~"lockstep_(run_ranks|exporter_build_info|coordinator_build_info)"})'
_LOOKUP = re.compile(r"label_values\((.*), (\w+)\)")
_NAME = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")


@dataclass(frozen=True, slots=True)
class Series:
    """Labels, legend, and values by Unix second, ascending; an instant query has one value."""

    labels: dict[str, str]
    legend: str
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        """The youngest value."""
        return self.points[-1][1]


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The result of one query of a panel, or the error."""

    letter: str
    series: tuple[Series, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """The Prometheus and the time range, Unix seconds."""

    url: str
    begin_s: float
    end_s: float

    @property
    def step_s(self) -> float:
        """Time between two points."""
        return max((self.end_s - self.begin_s) / POINTS, 15.0)


def fill(board: dict[str, Any], window: TimeWindow, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the values of a dashboard's variables: as chosen, otherwise all if it allows several, otherwise the first.

    Raises
    ------
    OSError
        Prometheus does not answer.
    ValueError
        It answers with an error.
    """
    values: dict[str, str] = {}
    for item in board["templating"]["list"]:
        name = item["name"]
        if name in chosen:
            values[name] = chosen[name]
        elif item["type"] == "textbox":
            values[name] = item["query"]
        elif item.get("multi"):
            values[name] = item["allValue"]
        elif item["type"] == "query":
            found = _lookup(item["definition"], window, values)
            values[name] = found[0] if found else ""
    return values


def narrowed(window: TimeWindow, values: Mapping[str, str]) -> TimeWindow:
    """Return the part of the window that begins with the first data of the chosen run, or of any run without one.

    Raises
    ------
    OSError
        Prometheus does not answer.
    ValueError
        It answers with an error.
    """
    expr = replaced(_OF_A_RUN if values.get("run") else _OF_ANY, values, window)
    span = {"start": window.begin_s, "end": window.end_s, "step": window.step_s}
    found = _get(window.url, "/api/v1/query_range", {"query": expr, **span})["result"]
    first_s = min((float(each["values"][0][0]) for each in found), default=window.begin_s)
    return replace(window, begin_s=max(window.begin_s, min(first_s, window.end_s - _LEAST_SPAN_S)))


def ask(panel: Mapping[str, Any], window: TimeWindow, values: Mapping[str, str]) -> list[QueryResult]:
    """Return the results of a panel's queries, in order."""
    return [_answer(target, window, values) for target in panel.get("targets", [])]


def alerts(selector: str, window: TimeWindow, values: Mapping[str, str]) -> QueryResult:
    """Return the firing and pending alerts that match `selector`."""
    inner = selector.strip("{}")
    matchers = f'alertstate=~"firing|pending"{"," if inner else ""}{inner}'
    return _answer({"expr": f"ALERTS{{{matchers}}}", "instant": True, "refId": "A"}, window, values)


def replaced(text: str, values: Mapping[str, str], window: TimeWindow) -> str:
    """Return an expression as Grafana would send it."""
    known = {
        "__rate_interval": f"{max(int(window.step_s + 15), 60)}s",
        "__range": f"{int(window.end_s - window.begin_s)}s",
        **values,
    }

    def value(match: re.Match[str]) -> str:
        return known.get(match[1] or match[2], match[0])

    return _NAME.sub(value, text)


def _lookup(definition: str, window: TimeWindow, values: Mapping[str, str]) -> list[str]:
    match = _LOOKUP.fullmatch(definition)
    if match is None:
        raise ValueError(f"variable: got {definition!r}, expected label_values(selector, label)")
    parameters = {"match[]": replaced(match[1], values, window), "start": window.begin_s, "end": window.end_s}
    found = _get(window.url, f"/api/v1/label/{match[2]}/values", parameters)
    return sorted(map(str, found), key=lambda value: (len(value), value))


def _answer(target: Mapping[str, Any], window: TimeWindow, values: Mapping[str, str]) -> QueryResult:
    expr, letter = replaced(target["expr"], values, window), str(target["refId"])
    try:
        if target["instant"]:
            got = _get(window.url, "/api/v1/query", {"query": expr, "time": window.end_s})
        else:
            span = {"start": window.begin_s, "end": window.end_s, "step": window.step_s}
            got = _get(window.url, "/api/v1/query_range", {"query": expr, **span})
    except (OSError, ValueError, MalformedError) as error:
        return QueryResult(letter, error=str(error))
    return QueryResult(letter, tuple(_series(each, str(target.get("legendFormat", ""))) for each in got["result"]))


def _series(each: Mapping[str, Any], legend: str) -> Series:
    labels = {str(key): str(value) for key, value in each["metric"].items()}
    pairs = each["values"] if "values" in each else [each["value"]]
    named = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), legend)
    return Series(labels, named or ", ".join(labels.values()), tuple((float(t), float(v)) for t, v in pairs))


def _get(url: str, path: str, parameters: Mapping[str, Any]) -> Any:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"Prometheus: got {url!r}, expected an address that begins with http:// or https://")
    text = urllib.parse.urlencode(parameters)
    by_post = path.startswith("/api/v1/query")  # other parts of the API use GET
    address = f"{url}{path}" if by_post else f"{url}{path}?{text}"
    request = urllib.request.Request(address, data=text.encode() if by_post else None)  # noqa: S310  (checked above)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:  # noqa: S310
            body = reply.read(_ANSWER_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:  # Prometheus sends its reason as JSON
        body = error.read(_ANSWER_MAX_BYTES)
    if len(body) > _ANSWER_MAX_BYTES:
        raise ValueError(f"{path}: got more than {_ANSWER_MAX_BYTES} bytes")
    answer = answered_object(body, where=f"{url}{path}", expected="JSON of the API of a Prometheus")
    if answer.get("status") != "success":
        raise ValueError(f"{path}: {answer.get('error', 'no success')}")
    return answer["data"]
