"""Parser of the subset of PromQL in which evidence queries are written. Pure; `samples.py` evaluates the result.

The subset: selectors with matchers, ranges and sub-queries, functions, aggregations with `by`, arithmetic, and one
comparison with `on`, `group_left` and `group_right`. Everything else is rejected by name, so a site's own query is
either evaluated as by Prometheus, or not at all.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

_TOKEN = re.compile(
    r"\s*(?:(?P<duration>\d+(?:ms|s|m|h)\b)|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_:]*)|(?P<text>\"(?:[^\"\\]|\\.)*\")|(?P<sign>!=|=~|!~|[-+*/%(){}\[\],=:<>]))"
)
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_AGGREGATIONS = frozenset({"sum", "avg", "min", "max"})
_PRECEDENCE = {">": 1, "<": 1, "+": 2, "-": 2, "*": 3, "/": 3, "%": 3}
_DEPTH_MAX = 40
_ESCAPE = re.compile(r"\\(.)")


class PromqlError(ValueError):
    """An expression outside of the supported subset of PromQL."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """A label matcher: label, operator and text."""

    label: str
    sign: str
    text: str

    def predicate(self) -> Callable[[str], bool]:
        """Return a predicate on the label's value; a regular expression must match the whole value."""
        if self.sign in ("=", "!="):
            return lambda value: (value == self.text) == (self.sign == "=")
        pattern = re.compile(self.text)
        return lambda value: (pattern.fullmatch(value) is not None) == (self.sign == "=~")


@dataclass(frozen=True, slots=True)
class Selector:
    """A selection of series by name and labels; without `range_s`, an instant selector."""

    matchers: tuple[Matcher, ...]
    range_s: float | None = None


@dataclass(frozen=True, slots=True)
class Subquery:
    """A sub-query: an expression evaluated at every step of a range."""

    inner: "Node"
    range_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function call; some functions take a number as second argument."""

    function: str
    arguments: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregation of all series that agree in the labels `by`."""

    function: str
    by: tuple[str, ...]
    inner: "Node"


@dataclass(frozen=True, slots=True)
class Binary:
    """A binary operation; vectors are matched `on` labels (None: all labels).

    `many` is the side with several matches.
    """

    sign: str
    left: "Node"
    right: "Node"
    on: tuple[str, ...] | None = None
    many: str = ""


Node = float | Selector | Subquery | FunctionCall | Aggregation | Binary


@lru_cache(512)
def parse_promql(text: str) -> Node:
    """Return the syntax tree of an expression.

    Raises
    ------
    PromqlError
        The expression is outside of the supported subset.
    """
    parser = _Parser(_tokens(text))
    tree = parser.expression(0)
    parser.expect("")
    return tree


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise PromqlError(f"got {text[at : at + 20]!r}")
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return [*found, ("end", "")]


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def _next(self) -> str:
        kind, text = self._tokens[self._at]
        return "" if kind == "text" else text

    def _advance(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def expect(self, text: str) -> None:
        kind, got = self._advance()
        if got != text or kind == "text":
            raise PromqlError(f"got {got!r}, expected {text or 'the end'!r}")

    def _kind(self, kind: str) -> str:
        got_kind, got = self._advance()
        if got_kind != kind:
            raise PromqlError(f"got {got!r}, expected a {kind}")
        return got

    def expression(self, least: int) -> Node:
        """Parse operators with a precedence above `least`, left-associative."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise PromqlError("got an expression that is nested too deeply")
        left = self._postfix(self._primary())
        while _PRECEDENCE.get(self._next, 0) > least:
            sign = self._advance()[1]
            on, many = self._matching()
            left = Binary(sign, left, self.expression(_PRECEDENCE[sign]), on, many)
        self._depth -= 1
        return left

    def _matching(self) -> tuple[tuple[str, ...] | None, str]:
        if self._next != "on":
            return None, ""
        self._advance()
        on, many = self._names(), ""
        if self._next in ("group_left", "group_right"):
            many = "left" if self._advance()[1] == "group_left" else "right"
            if self._next == "(" and self._names():
                raise PromqlError("got labels to copy with group_left or group_right")
        return on, many

    def _names(self) -> tuple[str, ...]:
        self.expect("(")
        names = []
        while self._next != ")":
            names.append(self._kind("name"))
            if self._next == ",":
                self._advance()
        self.expect(")")
        return tuple(names)

    def _primary(self) -> Node:
        kind, text = self._tokens[self._at]
        if kind == "number":
            return float(self._advance()[1])
        if text == "(" and kind == "sign":
            self._advance()
            inner = self.expression(0)
            self.expect(")")
            return inner
        if text == "{" and kind == "sign":
            return Selector(self._matchers())
        name = self._kind("name")
        if name in _AGGREGATIONS and self._next in ("by", "("):
            return self._aggregation(name)
        if self._next == "(":
            return self._call(name)
        own = (Matcher("__name__", "=", name),)
        return Selector(own + (self._matchers() if self._next == "{" else ()))

    def _aggregation(self, name: str) -> Aggregation:
        by: tuple[str, ...] = ()
        if self._next == "by":
            self._advance()
            by = self._names()
        self.expect("(")
        inner = self.expression(0)
        self.expect(")")
        return Aggregation(name, by, inner)

    def _call(self, name: str) -> FunctionCall:
        self.expect("(")
        arguments = [self.expression(0)]
        while self._next == ",":
            self._advance()
            arguments.append(self.expression(0))
        self.expect(")")
        return FunctionCall(name, tuple(arguments))

    def _matchers(self) -> tuple[Matcher, ...]:
        self.expect("{")
        found = []
        while self._next != "}":
            label, sign = self._kind("name"), self._advance()[1]
            if sign not in ("=", "!=", "=~", "!~"):
                raise PromqlError(f"got {sign!r}, expected a comparison of labels")
            found.append(Matcher(label, sign, _ESCAPE.sub(r"\1", self._kind("text")[1:-1])))
            if self._next == ",":
                self._advance()
        self.expect("}")
        return tuple(found)

    def _postfix(self, inner: Node) -> Node:
        if self._next != "[":
            return inner
        self._advance()
        range_s = _seconds(self._kind("duration"))
        step_s = None
        if self._next == ":":
            self._advance()
            step_s = _seconds(self._kind("duration"))
        self.expect("]")
        if step_s is not None:
            return Subquery(inner, range_s, step_s)
        if not isinstance(inner, Selector):
            raise PromqlError("got a range of an expression, expected one of series, or a sub-query")
        return Selector(inner.matchers, range_s)


def _seconds(text: str) -> float:
    unit = text.lstrip("0123456789")
    return int(text[: -len(unit)]) * _UNIT_S[unit]
