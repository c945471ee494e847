"""Evaluates evidence queries over the samples stored by nodes, with the semantics of Prometheus. Pure.

Functions, and their handling of counter resets and range boundaries, are those of Prometheus 3
(https://prometheus.io/docs/prometheus/latest/querying/functions/).
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from coordinator.evidence.prometheus import InstantSeries
from coordinator.evidence.promql import (
    Aggregation,
    Binary,
    FunctionCall,
    Matcher,
    Node,
    PromqlError,
    Selector,
    Subquery,
)

LOOKBACK_S = 300.0
"""Largest age of a sample that an instant selector returns."""
_STEPS_MAX = 1000
_NAME = "__name__"
_SAMPLES_MIN = 2  # in a range: a single sample has no slope

Labels = tuple[tuple[str, str], ...]
"""Sorted pairs; the metric's name is the label `__name__`."""
Vector = dict[Labels, float]
Points = list[tuple[float, float]]
"""Unix seconds and values, ascending."""


@dataclass(frozen=True, slots=True)
class SampledSeries:
    """One series of a node: values of shape (n_samples,) at the ascending `times_s` (unix seconds)."""

    labels: Labels
    times_s: Sequence[float]
    values: Sequence[float]


class SampleStore:
    """The series of all nodes in one reading."""

    def __init__(self, series: Sequence[SampledSeries]) -> None:
        self._by_name: dict[str, list[SampledSeries]] = {}
        for each in series:
            self._by_name.setdefault(dict(each.labels).get(_NAME, ""), []).append(each)

    def query(self, tree: Node, at_s: float) -> list[InstantSeries]:
        """Return the instant vector of an expression at a time.

        Raises
        ------
        PromqlError
            It uses an unsupported function or combination of operands.
        """
        found = self._eval(tree, at_s)
        if isinstance(found, float):
            raise PromqlError("got a number, expected series")
        return [InstantSeries(dict(labels), value if math.isfinite(value) else None) for labels, value in found.items()]

    def _eval(self, node: Node, at_s: float) -> Vector | float:
        if isinstance(node, float):
            return node
        if isinstance(node, Selector):
            if node.range_s is not None:
                raise PromqlError("got a range, expected a function of it")
            points = self._select(node.matchers, at_s, LOOKBACK_S)
            return {labels: own[-1][1] for labels, own in points.items()}
        if isinstance(node, Aggregation):
            return _aggregated(node, self._vector(node.inner, at_s))
        if isinstance(node, Binary):
            return _combined(node, self._eval(node.left, at_s), self._eval(node.right, at_s))
        if isinstance(node, FunctionCall):
            return self._call(node, at_s)
        raise PromqlError("got a sub-query, expected a function of it")

    def _vector(self, node: Node, at_s: float) -> Vector:
        found = self._eval(node, at_s)
        if isinstance(found, float):
            raise PromqlError("got a number, expected series")
        return found

    def _call(self, node: FunctionCall, at_s: float) -> Vector:
        first, *more = node.arguments
        if node.function in _OF_RANGE and not more:
            range_s, points = self._range(first, at_s)
            function = _OF_RANGE[node.function]
            keeps_name = node.function == "last_over_time"
            results = ((labels, function(own, at_s - range_s, at_s)) for labels, own in points.items())
            return {labels if keeps_name else _unnamed(labels): value for labels, value in results if value is not None}
        if node.function == "floor" and not more:
            return {_unnamed(labels): float(math.floor(v)) for labels, v in self._vector(first, at_s).items()}
        if node.function == "clamp_max" and len(more) == 1 and isinstance(more[0], float):
            limit = more[0]
            return {_unnamed(labels): min(value, limit) for labels, value in self._vector(first, at_s).items()}
        raise PromqlError(f"got the function {node.function!r} of {len(node.arguments)} arguments")

    def _range(self, node: Node, at_s: float) -> tuple[float, dict[Labels, Points]]:
        if isinstance(node, Selector) and node.range_s is not None:
            return node.range_s, self._select(node.matchers, at_s, node.range_s)
        if not isinstance(node, Subquery):
            raise PromqlError("got an expression, expected a range")
        if node.range_s / node.step_s > _STEPS_MAX:
            raise PromqlError(f"got a sub-query of more than {_STEPS_MAX} steps")
        found: dict[Labels, Points] = {}
        step = math.floor((at_s - node.range_s) / node.step_s) + 1
        while step * node.step_s <= at_s:
            for labels, value in self._vector(node.inner, step * node.step_s).items():
                found.setdefault(labels, []).append((step * node.step_s, value))
            step += 1
        return node.range_s, found

    def _select(self, matchers: tuple[Matcher, ...], at_s: float, range_s: float) -> dict[Labels, Points]:
        tests = [(matcher.label, matcher.predicate()) for matcher in matchers]
        named = [test for label, test in tests if label == _NAME]
        series = [own for name, own in self._by_name.items() if all(test(name) for test in named)]
        found: dict[Labels, Points] = {}
        for each in (each for own in series for each in own):
            labels = dict(each.labels)
            if all(test(labels.get(label, "")) for label, test in tests):
                first, end = bisect_right(each.times_s, at_s - range_s), bisect_right(each.times_s, at_s)
                if first < end:
                    times, values = each.times_s[first:end], each.values[first:end]
                    found[each.labels] = list(zip(times, values, strict=True))
        return found


def _unnamed(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != _NAME)


def _picked(labels: Labels, names: tuple[str, ...]) -> Labels:
    return tuple(pair for pair in labels if pair[0] in names)


_AGGREGATES: Mapping[str, Callable[[list[float]], float]] = {"sum": math.fsum, "avg": fmean, "min": min, "max": max}


def _aggregated(node: Aggregation, vector: Vector) -> Vector:
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        groups.setdefault(_picked(labels, node.by), []).append(value)
    return {labels: _AGGREGATES[node.function](values) for labels, values in groups.items()}


def _divided(left: float, right: float) -> float:
    if right:
        return left / right
    return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left)


_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divided,
    "%": lambda left, right: math.fmod(left, right) if right and math.isfinite(left) else math.nan,
}
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": lambda left, right: left > right,
    "<": lambda left, right: left < right,
}


def _combined(node: Binary, left: Vector | float, right: Vector | float) -> Vector | float:
    if isinstance(left, dict) and isinstance(right, dict):
        return _matched(node, left, right)
    if node.sign in _COMPARISONS:
        if not isinstance(left, dict) or isinstance(right, dict):
            raise PromqlError("got a comparison, expected one of series with a number")
        return {labels: value for labels, value in left.items() if _COMPARISONS[node.sign](value, right)}
    apply = _ARITHMETIC[node.sign]
    if isinstance(left, dict):
        assert isinstance(right, float)
        return {_unnamed(labels): apply(value, right) for labels, value in left.items()}
    if isinstance(right, dict):
        return {_unnamed(labels): apply(left, value) for labels, value in right.items()}
    return apply(left, right)


def _matched(node: Binary, left: Vector, right: Vector) -> Vector:
    if node.sign not in _ARITHMETIC:
        raise PromqlError("got a comparison of series with series")

    def key(labels: Labels) -> Labels:
        return _unnamed(labels) if node.on is None else _picked(labels, node.on)

    many, one = (right, left) if node.many == "right" else (left, right)
    ones: dict[Labels, float] = {}
    for labels, value in one.items():
        if key(labels) in ones:
            raise PromqlError("got several series that match on the side where only one may")
        ones[key(labels)] = value
    found: Vector = {}
    for labels, value in many.items():
        if key(labels) not in ones:
            continue
        other = ones[key(labels)]
        operands = (other, value) if node.many == "right" else (value, other)
        result = _unnamed(labels) if node.many or node.on is None else key(labels)
        if result in found:
            raise PromqlError("got several series that match one, expected group_left or group_right")
        found[result] = _ARITHMETIC[node.sign](*operands)
    return found


def _extrapolated(points: Points, start_s: float, end_s: float, *, is_counter: bool) -> float | None:
    """Return the growth over a range, extrapolated from the samples within it by at most half an interval per side."""
    if len(points) < _SAMPLES_MIN:
        return None
    (first_s, first), (last_s, last) = points[0], points[-1]
    grown = last - first
    if is_counter:
        grown += math.fsum(before for (_, before), (_, now) in pairwise(points) if now < before)
    sampled_s = last_s - first_s
    interval_s = sampled_s / (len(points) - 1)
    to_start_s, to_end_s = first_s - start_s, end_s - last_s
    if to_start_s >= 1.1 * interval_s:  # Prometheus' threshold: the series began within the range
        to_start_s = interval_s / 2
    if is_counter and grown > 0 and first >= 0:
        to_start_s = min(to_start_s, sampled_s * first / grown)  # a counter is never below zero
    if to_end_s >= 1.1 * interval_s:
        to_end_s = interval_s / 2
    return grown * (sampled_s + to_start_s + to_end_s) / sampled_s


def _rate(points: Points, start_s: float, end_s: float) -> float | None:
    grown = _extrapolated(points, start_s, end_s, is_counter=True)
    return None if grown is None else grown / (end_s - start_s)


def _slope(points: Points, _start_s: float, _end_s: float) -> float | None:
    """Return the least-squares slope per second."""
    if len(points) < _SAMPLES_MIN:
        return None
    mean_s, mean = fmean(at for at, _ in points), fmean(value for _, value in points)
    spread = math.fsum((at - mean_s) ** 2 for at, _ in points)
    return math.fsum((at - mean_s) * (value - mean) for at, value in points) / spread


_OF_RANGE: Mapping[str, Callable[[Points, float, float], float | None]] = {
    "avg_over_time": lambda points, _start, _end: fmean(value for _, value in points),
    "min_over_time": lambda points, _start, _end: min(value for _, value in points),
    "max_over_time": lambda points, _start, _end: max(value for _, value in points),
    "last_over_time": lambda points, _start, _end: points[-1][1],
    "rate": _rate,
    "increase": lambda points, start, end: _extrapolated(points, start, end, is_counter=True),
    "delta": lambda points, start, end: _extrapolated(points, start, end, is_counter=False),
    "deriv": _slope,
}
