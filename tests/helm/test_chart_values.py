"""values.yaml, its schema, the table in README.md and the services' own configuration state the same; what is wrong is refused."""

import json
from dataclasses import fields

import jsonschema
import pytest
import yaml
from helm_python.errors import HelmValuesError

from alerts.policy import AlertPolicy
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.thresholds import catalogue, check_values
from exporter.config import ExporterConfig
from lockstep.cli.chart.blocks import FORMS, OWNED, keys_of
from lockstep.cli.chart.files import generated_files
from lockstep.cli.chart.values import read_values, value_at
from lockstep.cli.generate import differing_files
from lockstep.cli.main import build_parser
from lockstep.contracts.settings import build_config, descriptions_of
from tests.helm.charts import CHART, CI, chart, ci_values, pick, pod_of, render

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DOCUMENTED = read_values((CHART / "values.yaml").read_text())
SERVICES = {"exporter": ExporterConfig, "coordinator": CoordinatorConfig}
WRONG = [
    ({"exporters": {}}, "exporters"),
    ({"exporter": {"mode": "deployment"}}, "mode"),
    ({"exporter": {"user": 0}}, "user"),
    ({"exporter": {"config": {"tick_second": 1}}}, "tick_second"),
    ({"exporter": {"config": {"tick_seconds": 0}}}, "tick_seconds"),
    ({"exporter": {"config": {"broker_host": "mqtt"}}}, "broker_host"),
    ({"exporter": {"image": {"digest": "sha256:1"}}}, "digest"),
    ({"exporter": {"updateStrategy": {"maxUnavailable": "ten"}}}, "maxUnavailable"),
    ({"exporter": {"hostPath": {"path": "dev/shm"}}}, "path"),
    ({"exporter": {"mountPath": "/run/../etc"}}, "mountPath"),
    ({"coordinator": {"policy": {"excess.floor": 0.03}}}, "excess.floor"),
    ({"coordinator": {"policy": {"excess.floor_ratio": 100}}}, "floor_ratio"),
    ({"coordinator": {"config": {"runs_max": 2.5}}}, "runs_max"),
    ({"coordinator": {"persistence": {"size": "four"}}}, "size"),
    ({"coordinator": {"port": 80}}, "port"),
    ({"broker": {"auth": {"exporterUsername": "a\nuser root"}}}, "exporterUsername"),
    ({"prometheusRule": {"runLabels": "run) or vector(1"}}, "runLabels"),
    ({"prometheusRule": {"thresholds": {"slow_ratio": -1}}}, "slow_ratio"),
    ({"prometheusRule": {"alerts": {"LockstepRunSlwo": {}}}}, "LockstepRunSlwo"),
    ({"prometheusRule": {"alerts": {"LockstepRunSlow": {"severity": "page"}}}}, "severity"),
    ({"prometheusRule": {"alerts": {"LockstepRunSlow": {"for": "soon"}}}}, "for"),
    ({"monitoring": {"exporterJob": 'x"} or up{'}}, "exporterJob"),
    ({"commonLabels": {"a": 1}}, "commonLabels"),
]


@pytest.mark.parametrize("form", FORMS.values(), ids=lambda form: form.__name__)
def test_every_key_has_a_description_of_its_own(form):
    """One sentence or more."""
    descriptions = descriptions_of(form)
    assert all(text.endswith(".") for text in descriptions.values())
    assert len(set(descriptions.values())) == len(descriptions)


def test_everything_generated_is_up_to_date():
    """`make generate` would change nothing in the chart."""
    assert differing_files(generated_files()) == []


def test_the_schema_is_one():
    """Draft 7, as Helm reads it."""
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_every_value_is_documented_and_has_a_schema():
    """Each leaf of values.yaml has its comment, and each mapping of ours refuses what it does not know."""
    documented = {value.path for value in DOCUMENTED}
    assert all(value.text for value in DOCUMENTED)

    def compare(tree, schema, path):
        assert schema["additionalProperties"] is False, path
        assert set(schema["properties"]) == set(tree), path
        for key, default in tree.items():
            inner = f"{path}.{key}" if path else key
            if inner not in documented:
                assert isinstance(default, dict), f"{inner} has no comment"
                compare(default, schema["properties"][key], inner)

    compare(VALUES, SCHEMA, "")


@pytest.mark.parametrize("path", FORMS)
def test_values_hold_the_keys_and_defaults_of_the_code(path):
    """Each setting of a service can be set in values.yaml, or is given by the chart: nothing is forgotten."""
    assert value_at(VALUES, path) == keys_of(path)
    assert keys_of(path).keys() | OWNED.get(path, set()) == {field.name for field in fields(FORMS[path])}


def test_the_coordinators_policy_is_the_catalogue():
    """Each threshold by its dotted name, with the range that the coordinator takes."""
    properties = SCHEMA["properties"]["coordinator"]["properties"]["policy"]["properties"]
    assert properties.keys() == catalogue().keys()
    assert SCHEMA["properties"]["prometheusRule"]["properties"]["thresholds"]["properties"].keys() == {
        field.name for field in fields(AlertPolicy)
    }


def test_defaults_and_every_file_of_ci_fit_the_schema():
    """No one is refused who follows the examples."""
    for values in [{}, *(ci_values(path) for path in CI)]:
        chart().validate_schema(values)


@pytest.mark.parametrize(("values", "named"), WRONG, ids=[named for _, named in WRONG])
def test_what_is_wrong_is_refused_by_name(values, named):
    """Before anything is rendered."""
    with pytest.raises(HelmValuesError, match=named):
        chart().validate_schema(values)


@pytest.mark.parametrize("path", CI, ids=lambda path: path.stem)
def test_the_services_take_what_is_rendered(path):
    """Their own reader takes each file; the chart's keys are in it, and the values that were set."""
    items = render(ci_values(path))
    for name, form in SERVICES.items():
        found = [item for item in items if item["kind"] == "ConfigMap" and f"{name}.yaml" in item.get("data", {})]
        for item in found:
            config = build_config(form, file=yaml.safe_load(item["data"][f"{name}.yaml"]), prefix="NONE_")
            assert config.broker_port in (1883, 8883)
            assert config.http_host == ("::" if ci_values(path).get("ipv6") else "0.0.0.0")
    policy = yaml.safe_load(pick(items, "ConfigMap", "-coordinator")["data"]["policy.yaml"]) or {}
    check_values(policy, where="policy.yaml")
    for item in items:
        if item["kind"] in ("DaemonSet", "StatefulSet"):
            (container,) = pod_of(item)["containers"]
            assert build_parser().parse_args(container["args"]).config.startswith("/etc/lockstep/")


def test_values_reach_the_service_as_they_were_set():
    """Whole numbers beyond a million, shares, truth and text arrive as such; so do thresholds."""
    values = {
        "coordinator": {
            "config": {
                "record_quota_bytes": 5_000_000_000,
                "notify_min_devices_lost": 0.0125,
                "evidence_from_nodes": True,
            },
        },
        "exporter": {"config": {"tick_seconds": 0.05, "spool_max_bytes": 1 << 33}},
    }
    items = render(values)
    written = yaml.safe_load(pick(items, "ConfigMap", "-coordinator")["data"]["coordinator.yaml"])
    config = build_config(CoordinatorConfig, file=written, prefix="NONE_")
    assert (config.record_quota_bytes, config.notify_min_devices_lost, config.evidence_from_nodes) == (
        5 * 10**9,
        0.0125,
        True,
    )
    exporter = yaml.safe_load(pick(items, "ConfigMap", "-exporter")["data"]["exporter.yaml"])
    assert (exporter["tick_seconds"], exporter["spool_max_bytes"]) == (0.05, 1 << 33)


def test_small_thresholds_are_written_without_exponents():
    """YAML 1.1, which the coordinator reads, takes 1e-06 for text."""
    values = {"link.step_share": 2e-6}
    policy = pick(render({"coordinator": {"policy": values}}), "ConfigMap", "-coordinator")["data"]["policy.yaml"]
    assert yaml.safe_load(policy) == values
