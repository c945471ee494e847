"""Renders the chart without a cluster and looks into what comes out."""

import copy
import json
from functools import cache
from pathlib import Path

import yaml
from helm_python.chart import Chart

from alerts.policy import Site

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "lockstep"
CI = sorted((CHART / "ci").glob("*-values.yaml"))
LINKS = {
    "runbooksUrl": Site().runbooks_url,
    "grafanaUrl": Site().grafana_url,
    "coordinatorUrl": Site().coordinator_url,
}
"""Values with which the chart links to where the rules of the repository do; without them it leaves out what it does not know."""
WORKLOADS = ("DaemonSet", "StatefulSet", "Deployment", "Pod")


@cache
def chart() -> Chart:
    """Return the loaded chart."""
    return Chart.load(str(CHART))


def ci_values(path: Path) -> dict:
    """Return the values of one file of ci/."""
    return yaml.safe_load(path.read_text()) or {}


def merged(*layers: dict) -> dict:
    """Return the values of all layers, the later one wins, as helm takes several files."""
    result: dict = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


def render(values: dict | None = None, *, name: str = "demo", namespace: str = "lockstep") -> list[dict]:
    """Return every object, the test hook among them."""
    files = chart().render(values=values or {}, name=name, namespace=namespace)
    return [
        item
        for path, text in files.items()
        if not path.endswith("NOTES.txt")
        for item in yaml.load_all(text, Loader=yaml.CSafeLoader)
        if item
    ]


def pick(items: list[dict], kind: str, ending: str = "") -> dict:
    """Return the one object of a kind whose name ends so."""
    found = [item for item in items if item["kind"] == kind and item["metadata"]["name"].endswith(ending)]
    assert len(found) == 1, (kind, ending, [item["metadata"]["name"] for item in found])
    return found[0]


def pod_of(item: dict) -> dict:
    """Return the pod's specification of a workload."""
    return item["spec"] if item["kind"] == "Pod" else item["spec"]["template"]["spec"]


def join_pod(items: list[dict]) -> dict:
    """Return the pod that the notes give to trainers, made whole: what they fill in is filled in."""
    part = yaml.safe_load(pick(items, "ConfigMap", "-join")["data"]["pod.yaml"])
    trainer = part["spec"]["containers"][0]
    trainer |= {"image": "example.org/trainer:1", "command": [*trainer["command"], "torchrun"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trainer", **part.get("metadata", {})},
        "spec": part["spec"] | {"restartPolicy": "Never"},
    }


def clear(item: dict) -> str:
    """Return an object as text, for comparisons and messages."""
    return json.dumps(item, indent=1, sort_keys=True)
