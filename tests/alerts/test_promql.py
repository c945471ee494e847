"""The extractor that the other tests trust: it must see what is wrong."""

import pytest

from tests.alerts.promql import parse, problems


def test_selectors_matchers_ranges_and_functions_are_found():
    """Metrics, matchers with braces in strings, ranges and enclosing functions are distinguished from words and labels."""
    found = parse('sum by (run, phase) (rate(lockstep_steps_total{run="a}",rank=~"1|2"}[5m])) > 2 and on (run) time()')
    assert found.grouping == ["run", "phase", "run"]
    (selector,) = found.selectors
    assert (selector.metric, selector.range, selector.function) == ("lockstep_steps_total", "[5m]", "rate")
    assert selector.matchers == {"run": ("=", "a}"), "rank": ("=~", "1|2")}


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("lockstep_step_count", "not in the catalogue"),
        ("lockstep_run_step_duration_seconds", "not in the catalogue"),
        ("max(lockstep_run_ranks_bucket)", "not in the catalogue"),
        ('lockstep_run_ranks{rank="1"}', "has no label rank"),
        ('lockstep_run_state{state="sick"}', "never 'sick'"),
        ('lockstep_run_state{state=~"lost|sick"}', "never 'sick'"),
        ("sum(lockstep_steps_total)", "outside of rate"),
        ("sum by (run) (lockstep_steps_total) > count by (run) (lockstep_steps_total)", "outside of rate"),
        ("avg_over_time(lockstep_steps_total[5m])", "outside of rate"),
        ("rate(lockstep_step[5m])", "no counter"),
        ("sum by (pod) (lockstep_run_ranks)", "grouping by pod"),
    ],
)
def test_each_kind_of_mistake_is_named(expression, problem):
    """Unknown names, labels and values, bare counters, rates of gauges and foreign grouping labels are reported."""
    assert any(problem in found for found in problems(expression)), problems(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "histogram_quantile(0.99, sum by (le) (rate(lockstep_run_step_duration_seconds_bucket[5m])))",
        'sum by (run) (rate(lockstep_steps_total{instance="a"}[5m]))',
        'run_phase:lockstep_phase_time_seconds_per_step:ratio_rate1m{phase="gc"}',
        'count by (job) (up{job="x"} == 0)',
        "count by (run, rank) (lockstep_steps_total) > 1",
        'count(lockstep_steps_total{run="a"})',
        "vector(1)",
    ],
)
def test_what_is_right_passes(expression):
    """Catalogue, recorded and Prometheus' own series with their labels raise no problem."""
    assert problems(expression) == []
