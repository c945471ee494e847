"""The notes of an install name the real next step for the chosen mode; seen in a dry run."""

import re

import pytest
from helm_python.config import Config

from tests.helm.charts import CHART, CI, ci_values, join_pod, render

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
users: [{name: none, user: {}}]
current-context: none
"""


def notes(values=None):
    """Return the notes of an install that asks no cluster."""
    with Config(kubeconfig_content=KUBECONFIG, namespace="lockstep") as config:
        release = config.install(str(CHART), "demo", values or {}, namespace="lockstep", dry_run="client")
    return release["notes"] if "notes" in release else release["info"]["notes"]


@pytest.mark.parametrize("path", CI, ids=lambda path: path.stem)
def test_every_feature_installs_dry(path):
    """And each object that the notes name is rendered."""
    values = ci_values(path)
    text = notes(values)
    names = {item["metadata"]["name"] for item in render(values)}
    named = re.findall(r"kubectl get configmap (\S+)", text) + re.findall(r"service/(\S+)", text)
    assert len(named) == 2
    assert set(named) <= names


def test_the_step_of_each_mode():
    """hostPath: the namespace's label and the group; sidecar: the pod's label and the namespaces."""
    node = notes()
    assert "pod-security.kubernetes.io/enforce=privileged" in node
    assert "Trainers run as root" in node
    assert "Trainers have group 2000" in notes({"exporter": {"sharedGroup": 2000}})
    sidecar = notes({"exporter": {"mode": "sidecar", "sidecar": {"namespaces": ["team-a"]}}})
    assert "privileged" not in sidecar
    assert "lockstep-exporter: demo-lockstep" in sidecar
    assert "lockstep, team-a" in sidecar
    unprepared = " ".join(notes({"exporter": {"hostPath": {"prepare": {"enabled": False}}}}).split())
    assert "must exist on each node already, with a directory .exporter in it that user 65532 owns" in unprepared
    assert "must exist on each" not in node


def test_what_is_left_to_do_is_printed():
    """Prometheus, where no monitor is asked for; and own secrets, for who renders without a cluster."""
    assert "Prometheus does not scrape Lockstep yet" in notes()
    assert "Prometheus does not scrape Lockstep yet" not in notes({"exporter": {"podMonitor": {"enabled": True}}})
    assert "broker.tls.existingSecret" in notes()
    assert "broker.tls.existingSecret" not in notes({"broker": {"tls": {"existingSecret": "cert"}}})


def test_what_a_training_pod_adds_differs_by_mode():
    """Over the node's directory, or with an exporter of its own and memory of the pod."""
    volumes = {}
    for mode in ("daemonset", "sidecar"):
        pod = join_pod(render({"exporter": {"mode": mode}}))["spec"]
        volumes[mode] = {volume["name"]: volume for volume in pod["volumes"]}
        environment = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
        assert environment["LOCKSTEP_DIR"] == "/run/lockstep"
        assert environment["LOCKSTEP_EXPORTER_UID"] == "65532"
        assert "PYTHONPATH" not in environment  # it would replace the image's; the wrapper goes before it
        assert pod["containers"][0]["command"][:2] == ["sh", "/opt/lockstep/lockstep/agent/site/start.sh"]
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} <= set(volumes[mode])
    assert volumes["daemonset"]["lockstep-rings"]["hostPath"]["path"] == "/dev/shm/lockstep"
    assert volumes["sidecar"]["lockstep-rings"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
