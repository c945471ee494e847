"""`lockstep export`: what other programs need, whole and as the site calls its parts."""

import json
import subprocess
import sys

import pytest
import yaml

from alerts import rules
from dashboards import catalogue
from lockstep.cli.main import main


def export(*arguments):
    return main(["export", *map(str, arguments)])


def test_all_is_what_the_repository_holds(tmp_path, capsys):
    """Dashboards and rules are the committed ones, each alert has its runbook, and every file is named."""
    assert export("all", tmp_path) == 0
    named = capsys.readouterr().out.split()
    assert sorted(named) == sorted(str(path) for path in tmp_path.rglob("*") if path.is_file())
    for path, text in catalogue.render().items():
        assert (tmp_path / f"lockstep-{path.name}").read_text() == text
    written, committed = ((tmp_path / "lockstep.rules.yaml").read_text(), rules.RENDERED.read_text())
    assert yaml.safe_load(written) == yaml.safe_load(committed)
    assert {path.stem for path in (tmp_path / "runbooks").iterdir()} == {alert.name for alert in rules.alerts()}
    assert yaml.safe_load((tmp_path / "alertmanager.example.yml").read_text())["route"]
    assert yaml.safe_load((tmp_path / "prometheus.example.yml").read_text())["scrape_configs"]


def test_rules_follow_the_site(tmp_path):
    """Addresses, jobs, what identifies a run, and thresholds are the site's; a PrometheusRule holds the same groups."""
    site = ("--grafana-url", "https://g.lan", "--runbooks-url", "https://r.lan", "--run-labels", "cluster, run")
    site = (*site, "--coordinator-url", "https://c.lan")
    own = (*site, "--coordinator-job", "head", "--set", "slow_ratio=0.25", "--set", "slow_for_seconds=60")
    assert export("rules", tmp_path, *own) == 0
    assert export("rules", tmp_path, *own, "--operator") == 0
    groups = yaml.safe_load((tmp_path / "lockstep.rules.yaml").read_text())["groups"]
    resource = yaml.safe_load((tmp_path / "lockstep.prometheusrule.yaml").read_text())
    assert (resource["kind"], resource["spec"]["groups"]) == ("PrometheusRule", groups)
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    slow = alerts["LockstepRunSlow"]
    assert ("0.25" in slow["expr"], slow["for"]) == (True, "1m")
    assert "cluster, run" in slow["expr"]
    assert 'job="head"' in alerts["LockstepCoordinatorDown"]["expr"]
    assert slow["annotations"]["runbook_url"] == "https://r.lan/LockstepRunSlow.md"
    assert "https://c.lan/incidents/" in slow["annotations"]["incident_url"]
    assert "example.invalid" not in json.dumps(groups)


@pytest.mark.servers
def test_exported_rules_pass_promtool(tmp_path):
    """What a site exports with its own thresholds is what Prometheus takes."""
    assert export("rules", tmp_path, "--set", "stalled_age_seconds=900", "--run-labels", "cluster, run") == 0
    command = ["promtool", "check", "rules", str(tmp_path / "lockstep.rules.yaml")]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.servers
def test_the_examples_take_what_is_exported_next_to_them(tmp_path):
    """In the folder of `export all` Prometheus finds its rules, and Alertmanager takes its routes."""
    assert export("all", tmp_path) == 0
    for tool, file in (("promtool", "prometheus.example.yml"), ("amtool", "alertmanager.example.yml")):
        word = ["check", "config"] if tool == "promtool" else ["check-config"]
        checked = subprocess.run([tool, *word, str(tmp_path / file)], check=False, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("given", "expected_text"),
    [
        ("slow_ration=1", "did you mean slow_ratio?"),
        ("slow_ratio=much", "got 'much', expected a number"),
        ("verdicts_max=1.5", "expected an integer"),
        ("slow_ratio=-1", "expected 0 to 10"),
        ("slow_ratio=nan", "expected 0 to 10"),
        ("LockstepRunSlow.severty=none", "did you mean severity?"),
    ],
)
def test_a_threshold_that_is_none_is_refused(tmp_path, capsys, given, expected_text):
    """The error names the threshold and what it should be; nothing is written."""
    assert export("rules", tmp_path, "--set", given) == 2
    assert expected_text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_changed_file_is_kept_unless_forced(tmp_path, capsys):
    """What somebody wrote there is not lost: nothing at all is written before --force is given; equal files are fine."""
    changed = tmp_path / "lockstep-run.json"
    changed.write_text("mine")
    assert export("dashboards", tmp_path) == 2
    assert str(changed) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["lockstep-run.json"]
    assert export("dashboards", tmp_path, "--force") == 0
    assert export("dashboards", tmp_path) == 0
    assert changed.read_text() != "mine"


def test_a_folder_that_cannot_be_made_is_named(tmp_path, capsys):
    """A file where the folder should be is an error of one line."""
    (tmp_path / "file").write_text("")
    assert export("rules", tmp_path / "file") == 2
    assert "expected a file that can be written" in capsys.readouterr().err


def test_dashboards_need_no_generator(tmp_path):
    """From an installed package without grafanalib, dashboards can be written all the same."""
    code = (
        "import sys; sys.modules['grafanalib'] = None; "
        f"from lockstep.cli.main import main; sys.exit(main(['export', 'dashboards', {str(tmp_path)!r}]))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert len(list(tmp_path.iterdir())) == len(catalogue.BOARDS)
