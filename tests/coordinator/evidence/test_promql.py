"""Expressions mean what they do in Prometheus; what is outside of the part that is evaluated is refused."""

import pytest

from coordinator.evidence.promql import PromqlError, parse_promql
from coordinator.evidence.samples import SampledSeries, SampleStore

TIMES = [float(at) for at in range(0, 120, 15)]


def series(name: str, values: list[float], **labels: str) -> SampledSeries:
    return SampledSeries(tuple(sorted({"__name__": name, **labels}.items())), TIMES[: len(values)], values)


STORE = SampleStore(
    [
        series("up", [1, 1, 0, 1, 1, 1, 1, 1], host="a", dev="x"),
        series("up", [2, 2, 2, 2, 2, 2, 2, 2], host="b", dev="x"),
        series("total", [0, 30, 60, 10, 40, 70, 100, 130], host="a"),
        series("limit", [10.0] * 8, host="a"),
    ]
)


def values(expression: str, at_s: float = 105.0) -> dict[str, float | None]:
    return {each.labels.get("host", ""): each.value for each in STORE.query(parse_promql(expression), at_s)}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("up", {"a": 1, "b": 2}),
        ('up{host="a"}', {"a": 1}),
        ('up{host!="a"}', {"b": 2}),
        ('{__name__=~"(my_)?up",host=~"a|c"}', {"a": 1}),
        ('up{host!~"a.*"}', {"b": 2}),
        ('up{host=~"a\\\\.b"}', {}),
        ("min_over_time(up[2m])", {"a": 0, "b": 2}),
        ("avg_over_time(up[30s])", {"a": 1, "b": 2}),
        ("last_over_time(up[40s])", {"a": 1, "b": 2}),
        ("sum by (dev) (up)", {"": 3}),
        ("max by (host) (up) * 3 + 1", {"a": 4, "b": 7}),
        ("1 - avg by (dev) (up) / 3", {"": 0.5}),
        ("up / on (host) limit", {"a": 0.1}),
        ("limit * on (host) group_right () up", {"a": 10}),
        ("up * on (host) group_left limit", {"a": 10}),
        ("up / on (host) (limit > 10)", {}),
        ("up / on (host) (limit > 9)", {"a": 0.1}),
        ("floor(total / 32) % 4", {"a": 0}),
        ("clamp_max(total, 7)", {"a": 7}),
        ("deriv(total[45s])", {"a": 2}),
        ("rate(total[60s])", {"a": 2}),
        ("delta(total[60s])", {"a": 120}),
        ("avg_over_time((clamp_max(up, 1))[60s:15s])", {"a": 1, "b": 1}),
        ("rate(up[10s])", {}),
    ],
)
def test_values(expression: str, expected: dict[str, float]):
    """By host; the catalogue's forms among them."""
    assert values(expression) == pytest.approx(expected)


def test_a_counter_that_was_reset():
    """Growth counts on from the reset: 60 before it and 30 after, within a range that samples do not fill."""
    [found] = STORE.query(parse_promql("increase(total[60000ms])"), 60.0)
    assert found.value == pytest.approx(30 + 10 + 30, rel=0.35)


def test_a_sample_of_long_ago_is_no_value():
    """Prometheus looks back five minutes."""
    assert values("up", 404.0) == {"a": 1, "b": 2}
    assert values("up", 406.0) == {}


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "up{",
        'up{host="a"',
        "up[5m]",
        "sum(up[5m])",
        "histogram_quantile(0.9, up)",
        "up and limit",
        "topk(1, up)",
        "up offset 5m",
        "up / up{a=b}",
        "3",
        "up / on (dev) up",
        "(" * 60 + "up" + ")" * 60,
        "avg_over_time((up)[9h:1ms])",
        "rate(up)",
        "up; up",
    ],
)
def test_what_is_not_evaluated(expression: str):
    """By name, and never by another exception."""
    with pytest.raises(PromqlError):
        STORE.query(parse_promql(expression), 105.0)
