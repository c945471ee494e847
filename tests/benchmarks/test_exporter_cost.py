"""The benchmark of the exporter fails where a budget is missed."""

from benchmarks import exporter_cost

WITHIN = {
    "ranks": 8,
    "collectives": 200,
    "cpu_ratio": exporter_cost.CPU_BUDGET_RATIO,
    "host_watch_ratio": exporter_cost.HOST_WATCH_BUDGET_RATIO,
    "processes": 100,
    "resident_mb": exporter_cost.MEMORY_BUDGET_MB,
    "scrape_p50_ms": exporter_cost.SCRAPE_BUDGET_MS,
    "scrape_max_ms": 1000.0,
    "plain_cpu_ratio": 0.01,
    "plain_scrape_p50_ms": 4.0,
}


def missed(**changed):
    return [check.what for check in exporter_cost.checks_of(WITHIN | changed) if check.is_met is False]


def test_each_budget_is_checked():
    """Every figure beyond its budget is named, and none within."""
    assert missed() == []
    assert missed(cpu_ratio=0.031) == ["CPU, scrapes included"]
    assert missed(host_watch_ratio=0.006) == ["host watch, a part of it"]
    assert missed(resident_mb=81) == ["memory"]
    assert missed(scrape_p50_ms=5.1) == ["time of a scrape, median"]


def test_a_step_has_the_collectives_that_were_asked_for():
    """Each is issued once, under the ordinals of its step."""
    template = exporter_cost.StepTemplate(6)
    kinds = [[mark[1] for mark in template.marks(step, 0)] for step in (0, 1)]
    issue, begin = exporter_cost.MarkKind.ISSUE, exporter_cost.MarkKind.BEGIN
    assert [(each.count(issue), each.count(begin)) for each in kinds] == [(6, 1), (6, 0)]
