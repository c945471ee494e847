"""Every alert against synthetic series, by Prometheus' own rule engine (`promtool test rules`).

A scenario file is promtool's format. What is the same in every expectation (severity, summary, links) is filled in from the
rule itself or by `constant`; the description, which is what a person reads, is always written out, and so is each link to an
incident.
"""

import subprocess
from pathlib import Path

import pytest
import yaml

from alerts import links, rules
from alerts.policy import Site
from lockstep.contracts.limits import SUSPECTS_MAX

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))
SUSPECT = "Rank {rank} on {hostname} holds run {run} back: {cause}."
SUSPECTS = "Ranks on {hostname} hold run {run} back: {cause}."
RULES = {alert.name: alert.to_yaml(Site()) for alert in rules.alerts()}


def run_promtool(document, tmp_path):
    """Run the tests of `document` against the rendered rules; returns the finished process."""
    document = {"rule_files": [str(rules.RENDERED)], "evaluation_interval": "1m", **document}
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(document))
    return subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)


def constant(notes, labels):
    """Return the annotations of an alert with these labels as they are while no incident, function or rank is looked up."""
    run, rank = labels.get("run", ""), labels.get("rank", "")
    where = f"?var-run={run}" if run else "?"
    board = {"": f"lockstep-run{where}&" if run else "lockstep-self-monitoring?"}.get(
        rank, f"lockstep-rank{where}&var-rank={rank}&"
    )
    of_rank = {"summary": SUSPECT.format(**{"rank": "", **labels})} if "hostname" in labels else {}
    if of_rank and not rank:
        of_rank = {"summary": SUSPECTS.format(**labels)}
    return {
        **notes,
        "dashboard_url": f"{Site().grafana_url}/d/{board}{links.HOURS}",
        "incident_url": f"{Site().coordinator_url}/{f'runs/{run}' if run else ''}",
        **of_rank,
    }


def completed(document):
    """Return the scenario with the constant part of each expectation filled in."""
    for case in document["tests"]:
        for check in case["alert_rule_test"]:
            rule = RULES[check["alertname"]]
            check["exp_alerts"] = [
                {
                    "exp_labels": {**expected["exp_labels"], **rule["labels"]},
                    "exp_annotations": {
                        **constant(rule["annotations"], expected["exp_labels"]),
                        **expected["exp_annotations"],
                    },
                }
                for expected in check["exp_alerts"]
            ]
    return document


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path, tmp_path):
    """The alert fires, stays away, resolves and reads as the scenario states."""
    done = run_promtool(completed(yaml.safe_load(path.read_text())), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_that_expects_nothing_fails(path, tmp_path):
    """A scenario can fail: with the expected alerts of its first firing case struck out, promtool refuses it."""
    document = yaml.safe_load(path.read_text())
    case = next(case for case in document["tests"] if any(c["exp_alerts"] for c in case["alert_rule_test"]))
    for check in case["alert_rule_test"]:
        check["exp_alerts"] = []
    assert run_promtool({**document, "tests": [case]}, tmp_path).returncode != 0


@pytest.mark.parametrize("name", RULES)
def test_every_alert_has_a_whole_scenario(name):
    """Each alert is tested firing, silent, resolved, and with data missing."""
    document = yaml.safe_load((SCENARIOS[0].parent / f"{name}.yaml").read_text())
    named = " ".join(case["name"] for case in document["tests"])
    checks = [bool(c["exp_alerts"]) for case in document["tests"] for c in case["alert_rule_test"]]
    assert "fires" in named or any(checks)
    assert "resolve" in named
    assert any(word in named for word in ("missing data", "no data", "no target", "without a baseline", "vanished"))
    assert any(checks)
    assert name == "LockstepWatchdog" or not all(checks)


@pytest.mark.parametrize(("ranks_per_host", "alerts"), [(1, SUSPECTS_MAX), (8, SUSPECTS_MAX // 8)])
def test_ten_thousand_slow_ranks_are_few_alerts(ranks_per_host, alerts, tmp_path):
    """What a coordinator exports of 10,000 slow ranks is one ticket per host of exported suspects, and one page."""
    series = [
        {
            "series": (
                f'lockstep_suspect_slowdown_ratio{{run="a",rank="{rank}",hostname="n{rank // ranks_per_host}",'
                'domain_kind="dp",cause="compute"}'
            ),
            "values": "0.5+0x9",
        }
        for rank in range(SUSPECTS_MAX)
    ]
    series.append({"series": 'lockstep_run_suspects_omitted{run="a"}', "values": f"{10_000 - SUSPECTS_MAX}+0x9"})
    series.append({"series": 'lockstep_run_ranks{run="a"}', "values": "10240+0x9"})
    case = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": 'count by (run) (ALERTS{alertname="LockstepSlowDeviceFound",alertstate="firing"})',
                "eval_time": "6m",
                "exp_samples": [{"labels": '{run="a"}', "value": alerts}],
            },
            {
                "expr": 'count by (alertname) (ALERTS{severity="critical",alertstate="firing"})',
                "eval_time": "6m",
                "exp_samples": [{"labels": '{alertname="LockstepDevicesLost"}', "value": 1}],
            },
        ],
    }
    done = run_promtool({"tests": [case]}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
