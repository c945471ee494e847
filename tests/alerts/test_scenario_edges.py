"""Every alert whose series vanish while it fires, made from its own scenario; counters that begin again at a boundary.

The boundary is where it decides: while the alert waits, as it is about to fire, and just below its threshold.
"""

import re

import pytest
import yaml

from alerts import rules
from alerts.policy import AlertPolicy
from tests.alerts.test_scenarios import SCENARIOS, run_promtool

POLICY = AlertPolicy()
ALERTS = {alert.name: alert for alert in rules.alerts()}
ON_ABSENCE = {
    *("LockstepCoordinatorDown", "LockstepCoordinatorStaysDown", "LockstepCoordinatorUnreachable"),
    *("LockstepExporterAbsent", "LockstepWatchdog"),
}
"""Alerts that missing data does not end: it is what they are there for."""


def seconds(duration):
    """Return the seconds of `90s`, `15m` or `1h30m`."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", duration))


def spelt_out(values):
    """Return promtool's series notation value by value."""
    found = []
    for item in values.split():
        match = re.fullmatch(r"(_|-?[\d.]+)(?:([+-][\d.]+))?x(\d+)", item)
        if match is None:
            found.append(item)
        elif match[1] == "_":
            found += ["_"] * int(match[3])
        else:
            begin, step = float(match[1]), float(match[2] or 0)
            found += [f"{begin + step * place:g}" for place in range(int(match[3]) + 1)]
    return found


def vanishing(name):
    """Return a test in which all series of an alert's scenario end as it fires for the first time."""
    document = yaml.safe_load((SCENARIOS[0].parent / f"{name}.yaml").read_text())
    case, check = next((c, k) for c in document["tests"] for k in c["alert_rule_test"] if k["exp_alerts"])
    interval_s, fires_s = seconds(case["interval"]), seconds(check["eval_time"])
    kept = fires_s // interval_s + 1
    series = [
        {"series": each["series"], "values": " ".join([*spelt_out(each["values"])[:kept], "stale"])}
        for each in case["input_series"]
    ]
    # Absence must last as long as the alert waits for it.
    later_s = fires_s + ALERTS[name].keep_seconds + (ALERTS[name].for_seconds if name in ON_ABSENCE else 0) + 120
    # Rates and last scrapes look back over five minutes; then there is nothing left.
    looks_back = any(each in ALERTS[name].expr for each in ("rate(", "last_over_time("))
    later_s += 300 if looks_back and name not in ON_ABSENCE else 0
    return {
        "name": name,
        "interval": case["interval"],
        "input_series": series,
        "promql_expr_test": [
            firing(name, fires_s, len(check["exp_alerts"])),
            firing(name, later_s, 1 if name in ON_ABSENCE else 0),
        ],
    }


def firing(name, at_s, count):
    """Expect that so many alerts fire."""
    expr = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
    return {"expr": expr, "eval_time": f"{at_s}s", "exp_samples": [{"labels": "{}", "value": count}]}


def test_an_alert_whose_series_vanish_ends_unless_absence_is_its_matter(tmp_path):
    """A run that is forgotten, a node that is gone: nothing goes on firing for it."""
    done = run_promtool({"tests": [vanishing(name) for name in ALERTS]}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


STEPS = 'lockstep_steps_total{job="lockstep-exporter",instance="n1",run="a",rank="0"}'
LOST = 'lockstep_exporter_records_lost_total{job="lockstep-exporter",instance="n1",reason="lapped"}'
DELAYED = 'lockstep_exporter_training_delay_seconds_total{job="lockstep-exporter",instance="n1"}'
DROPPED = 'lockstep_coordinator_records_recorded_total{job="c",instance="a",state="dropped"}'


def reset(name, series, *checks):
    """Return a test of counters that begin again."""
    inputs = [{"series": key, "values": values} for key, values in series.items()]
    return {"name": name, "interval": "1m", "input_series": inputs, "promql_expr_test": list(checks)}


# 600 steps a minute; the alerts wait for ten minutes; the loss begins at 10m.
RESETS = {
    "a loss goes on over a restart while the alert waits": reset(
        "LockstepRecordsLost",
        {STEPS: "0+600x14 0+600x40", LOST: "0+0x9 60+60x4 0+60x40"},
        firing("LockstepRecordsLost", 19 * 60, 0),
        firing("LockstepRecordsLost", 20 * 60, 1),
    ),
    "and over one in the minute in which it is to fire": reset(
        "LockstepRecordsLost",
        {STEPS: "0+600x19 0+600x40", LOST: "0+0x9 60+60x9 0+60x40"},
        firing("LockstepRecordsLost", 19 * 60, 0),
        firing("LockstepRecordsLost", 20 * 60, 1),
        firing("LockstepRecordsLost", 21 * 60, 1),
    ),
    # The larger of both numbers is forgotten with the restart: 0.9 % must not become more for it.
    "a loss just below the threshold does not reach it by restarts": reset(
        "LockstepRecordsLost",
        {STEPS: "0+1000x14 0+1000x4 0+1000x40", LOST: "0+9x14 0+9x4 0+9x40"},
        firing("LockstepRecordsLost", 25 * 60, 0),
        firing("LockstepRecordsLost", 40 * 60, 0),
    ),
    "a loss that ends with the restart resolves": reset(
        "LockstepRecordsLost",
        {STEPS: "0+600x24 0+600x40", LOST: "0+0x9 60+60x14 0+0x40"},
        firing("LockstepRecordsLost", 24 * 60, 1),
        firing("LockstepRecordsLost", 30 * 60, 0),
    ),
    "a recording drops on over a restart in the minute in which the alert is to fire": reset(
        "LockstepRecordingIncomplete",
        {DROPPED: "0+0x9 480+480x9 0+480x40"},
        firing("LockstepRecordingIncomplete", 19 * 60, 0),
        firing("LockstepRecordingIncomplete", 20 * 60, 1),
    ),
    "services that slow training restart while the alert waits": reset(
        "LockstepSlowsTraining",
        {DELAYED: "0+0x9 3+3x4 0+3x40"},
        firing("LockstepSlowsTraining", 15 * 60, 0),
        firing("LockstepSlowsTraining", 25 * 60, 1),
    ),
    "a count that begins again at the same number has dropped nothing": reset(
        "LockstepRecordingIncomplete",
        {DROPPED: "480+0x9 0+0x4 0+0x40"},
        firing("LockstepRecordingIncomplete", 20 * 60, 0),
        firing("LockstepRecordingIncomplete", 30 * 60, 0),
    ),
}


def test_counters_that_begin_again_neither_fire_nor_hold_an_alert(tmp_path):
    """Restarts at each moment that decides, of each alert that rates a counter."""
    done = run_promtool({"tests": list(RESETS.values())}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {case["name"] for case in RESETS.values()} == {a.name for a in ALERTS.values() if "rate(" in a.expr}


@pytest.mark.parametrize("title", RESETS)
def test_a_restart_that_expects_the_opposite_fails(title, tmp_path):
    """Each of these can fail."""
    case = RESETS[title]
    wrong = [
        {**check, "exp_samples": [{"labels": "{}", "value": 1 - check["exp_samples"][0]["value"]}]}
        for check in case["promql_expr_test"]
    ]
    assert run_promtool({"tests": [{**case, "promql_expr_test": wrong}]}, tmp_path).returncode != 0


@pytest.mark.parametrize(
    ("notation", "values"),
    [("0+2x3 stale", ["0", "2", "4", "6", "stale"]), ("_x2 1x1 5-1x2", ["_", "_", "1", "1", "5", "4", "3"])],
)
def test_the_notation_is_promtools(notation, values):
    """What the generated tests are made from is read as promtool reads it."""
    assert spelt_out(notation) == values
