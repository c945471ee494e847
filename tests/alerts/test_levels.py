"""The levels of exporters: at each of them every rule has its series, and every alert fires as at level full."""

import re

import pytest
import yaml

from alerts import rules
from alerts.policy import Site
from coordinator.evidence.catalogue import load_catalogue
from lockstep.cli import level_table
from lockstep.contracts.metric import LEVELS
from lockstep.contracts.metrics import BY_NAME, CATALOGUE
from tests.alerts.promql import parse
from tests.alerts.test_rules import queries_of
from tests.alerts.test_scenario_edges import spelt_out
from tests.alerts.test_scenarios import SCENARIOS, completed, run_promtool

LEFT_OUT = {metric.name for metric in CATALOGUE if metric.form("minimal") == "absent"}
ABOVE_MINIMAL = ("run_hostname", "run_rank_hostname", "run_communicator_operation")
"""Recorded series by rank and host, and those of an Inspector, which level minimal does without."""


def read_for_evidence():
    """Return the families of Lockstep that queries for evidence select."""
    return {name for query in load_catalogue().queries for name in re.findall(r"lockstep_\w+", query.query)}


def families(expr):
    """Return the families that an expression selects."""
    named = {selector.metric for selector in parse(expr).selectors}
    return {name if name in BY_NAME else re.sub(r"_(bucket|sum|count)\Z", "", name) for name in named}


@pytest.mark.parametrize("labels", ["run", "cluster, run"])
def test_rules_read_what_every_level_has(labels):
    """All alerts with the queries in their texts, and all recorded series but `ABOVE_MINIMAL`."""
    site = Site(run_labels=labels)
    asked = [query for alert in rules.alerts(site) for query in (alert.expr, *queries_of(alert))]
    asked += [r.expr for r in rules.recordings(site) if not r.record.startswith(ABOVE_MINIMAL)]
    assert set().union(*map(families, asked)).isdisjoint(LEFT_OUT)
    recorded = set().union(*(families(rule.expr) for rule in rules.recordings(site)))
    assert {name for name in recorded & LEFT_OUT if not name.startswith("lockstep_nccl_")} == {"lockstep_rank_info"}


def test_evidence_reads_what_level_default_has():
    lacking = {name for name in read_for_evidence() if BY_NAME[name].form("default") != "whole"}
    assert not lacking


def at_level(series, level):
    """Return promtool's input series as an exporter at `level` would have them, None for one it does not have."""
    name, labels = re.fullmatch(r"(\w+)\{(.*)\}", series["series"]).groups()
    metric = BY_NAME.get(name)
    form = "whole" if metric is None or metric.source != "exporter" else metric.form(level)
    if form == "absent":
        return None
    if form == "node":
        return {**series, "series": f"{name}{{{re.sub(',?rank=.[0-9]+.', '', labels)}}}"}
    if form == "zeros":
        return {**series, "values": " ".join(zeros(spelt_out(series["values"])))}
    return series


def zeros(values):
    """Yield a series that is exported only where it is 0; a scrape without it marks it as stale."""
    for before, value in zip(["_", *values], values, strict=False):
        if value in ("0", "stale"):
            yield value
        else:
            yield "stale" if before == "0" else "_"


@pytest.mark.parametrize("level", LEVELS[:-1])
def test_alerts_fire_as_at_level_full(level, tmp_path):
    """Every scenario whose series depend on the level, with those that the exporters have there."""
    tests = []
    for path in SCENARIOS:
        for case in completed(yaml.safe_load(path.read_text()))["tests"]:
            series = [at_level(each, level) for each in case["input_series"]]
            if series != case["input_series"]:
                assert None not in series, path.stem
                assert len({each["series"] for each in series}) == len(series), path.stem
                tests.append({**case, "input_series": series})
    names = {check["alertname"] for case in tests for check in case["alert_rule_test"] if check["exp_alerts"]}
    expected = {"LockstepAgentDown", "LockstepCoordinatorStale", "LockstepRunUnwatched"}
    assert (names >= expected) == (level == "minimal")
    if tests:
        done = run_promtool({"tests": tests}, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


RANKS = {"n1": (0, 1), "n2": (2, 3)}


def counters(metric, level, run):
    """Yield promtool's series of a counter at `level`, of two nodes with two ranks each, every series with its own rate."""
    form = metric.form(level)
    variants = [{}] if not metric.values else [{metric.labels[-1]: value} for value in metric.values_at(level)]
    for number, more in enumerate(variants):
        for node, ranks in RANKS.items():
            rates = {rank: sum(metric.name.encode()) + 7 * number + rank * rank for rank in ranks}
            shared = {"job": "e", "instance": node, "run": run, **more}
            shown = [({}, sum(rates.values()))] if form == "node" else [({"rank": r}, v) for r, v in rates.items()]
            for own, rate in shown:
                text = ",".join(f'{key}="{value}"' for key, value in {**shared, **own}.items())
                yield {"series": f"{metric.name}{{{text}}}", "values": f"0+{rate}x20"}


@pytest.mark.parametrize("level", LEVELS[:-1])
def test_recorded_series_of_a_run_are_those_of_level_full(level, tmp_path):
    """From sums of a node, every recorded series of a run has the value that it has from its ranks one by one."""
    recorded = [r for r in rules.recordings() if r.record.startswith("run") and not r.record.startswith(ABOVE_MINIMAL)]
    read = {BY_NAME[name] for rule in recorded for name in families(rule.expr)}
    ours = sorted({m for m in read if m.source == "exporter"}, key=lambda metric: metric.name)
    series = [each for run in (level, "full") for metric in ours for each in counters(metric, run, run)]
    assert any("rank" not in each["series"] for each in series)
    checks = []
    for rule in recorded:
        if not all(BY_NAME[name].source == "exporter" for name in families(rule.expr)):
            continue
        here, full = f'{rule.record}{{run="{level}"}}', f'{rule.record}{{run="full"}}'
        same = f"count(abs({here} / ignoring (run) {full} - 1) < 1e-9)"
        checks.append({"expr": f"{same} == bool count({full})", "eval_time": "15m", "exp_samples": [{"value": 1}]})
    assert len(checks) > 10
    done = run_promtool({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}]}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_names_who_misses_something():
    """Every family that a level leaves out or sums is a row, with the panels and runbooks that ask for it."""
    found = {name.strip("`"): cells for name, *cells in level_table.rows()}
    assert set(found) > LEFT_OUT
    assert "lockstep_steps_total" not in found
    minimal, default, panels, runbooks = found["lockstep_gc_collections_total"]
    assert (minimal, default, panels) == ("-", "sum of a node", "Rank: Garbage collections (full)")
    assert "(../alerts/runbooks/LockstepRunSlow.md)" in runbooks
    assert found["lockstep_agent_up"][0] == "where it is 0"
    assert found["lockstep_collectives_total"] == ["-", "-", "none", "none"]
    assert found["lockstep_memory_bytes"][1] == "without device_allocated, device_peak"
