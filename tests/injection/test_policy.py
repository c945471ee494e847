"""The chart's MutatingAdmissionPolicy changes each pod as the webhook does; CEL is evaluated, not compared as text."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.injection.addition import read_addition
from lockstep.injection.pod_patch import JOB_LABELS, patch_pod
from tests.helm.charts import CHART, ci_values, merged, pick, render
from tests.injection.admission_policy import AdmissionPolicy
from tests.injection.json_patch import apply_patch

POLICY = ci_values(CHART / "ci" / "injection-policy-values.yaml")
SIDECAR = merged(ci_values(CHART / "ci" / "sidecar-values.yaml"), POLICY)
SITE = "/opt/lockstep/lockstep/agent/site"


def ways(values):
    """Return (policy, addition of the webhook) of one release."""
    items = render(values)
    part = yaml.safe_load(pick(items, "ConfigMap", "-join")["data"]["pod.yaml"])
    return AdmissionPolicy(pick(items, "MutatingAdmissionPolicy")), read_addition(part, "pod.yaml")


WAYS = {"daemonset": ways(POLICY), "sidecar": ways(SIDECAR)}


def present(**members):
    """Return an object without what is empty: the API server's types leave that out."""
    return {name: value for name, value in members.items() if value not in (None, "", [], {})}


def mapped(keys, values):
    """Return a strategy of some of the keys with values."""
    return st.dictionaries(st.sampled_from(keys), values, max_size=3)


NAMES = st.sampled_from(["llm", "a.b_c", "-no", "not/a name", "x" * 200])
VARIABLES = st.builds(
    lambda name, value, is_elsewhere: (
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        if is_elsewhere
        else {"name": name, **present(value=value)}
    ),
    st.sampled_from(["PYTHONPATH", "LOCKSTEP_RUN", "LOCKSTEP_DIR", "A"]),
    st.sampled_from(["", "/src", "/a:/b"]),
    st.booleans(),
)
MOUNTS = st.builds(
    lambda name, path: {"name": name, "mountPath": path},
    st.sampled_from(["own", "dshm", "lockstep-rings"]),
    st.sampled_from(["/dev/shm", "/run/lockstep", "/data"]),
)
CONTAINERS = st.builds(
    lambda command, env, mounts: present(command=command, env=env, volumeMounts=mounts),
    st.sampled_from([None, ["torchrun", "train.py"], ["sh", "-c", 'exec "$0"']]),
    st.lists(VARIABLES, max_size=3),
    st.lists(MOUNTS, max_size=2, unique_by=lambda mount: mount["mountPath"]),
)
ANNOTATIONS = st.builds(
    lambda asked, default, start: present(
        **{
            "lockstep-containers": asked,
            "kubectl.kubernetes.io/default-container": default,
            "lockstep-start": start,
        }
    ),
    st.sampled_from([None, "c0", " c1,c0", "c1, gone", "gone"]),
    st.sampled_from([None, "c1", "gone"]),
    st.sampled_from([None, "wrapper", "environment", "other"]),
)
PODS = st.builds(
    lambda labels, injection, annotations, owners, names, containers, volumes, init, spec: {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": present(
            labels={**labels, **present(**{"lockstep-injection": injection})},
            annotations=annotations,
            ownerReferences=[{"name": name} for name in owners],
            **names,
        ),
        "spec": {
            "containers": [{"name": f"c{index}", **one} for index, one in enumerate(containers)],
            **present(volumes=[{"name": name, "emptyDir": {}} for name in volumes], initContainers=init, **spec),
        },
    },
    mapped(["lockstep-run", "lockstep-exporter", "app", *JOB_LABELS], NAMES),
    st.sampled_from([None, "enabled", "enabled"]),
    ANNOTATIONS,
    st.lists(NAMES, max_size=1),
    st.sampled_from([{}, {"name": "llm-0"}, {"generateName": "llm-"}, {"generateName": "llm"}]),
    st.lists(CONTAINERS, min_size=1, max_size=3),
    st.lists(st.sampled_from(["own", "dshm", "lockstep-rings", "lockstep-agent"]), max_size=2, unique=True),
    st.sampled_from([[], [{"name": "fetch"}]]),
    st.fixed_dictionaries(
        {},
        optional={
            "imagePullSecrets": st.sampled_from([[{"name": "pull"}], [{"name": "theirs"}]]),
            "shareProcessNamespace": st.booleans(),
            "securityContext": st.sampled_from(
                [{"fsGroup": 7}, {"supplementalGroups": [7]}, {"supplementalGroups": [2000]}]
            ),
        },
    ),
)


@pytest.mark.parametrize("mode", WAYS)
@settings(max_examples=150)
@given(pod=PODS)
def test_policy_and_webhook_make_the_same_pod(mode, pod):
    """Whatever the pod has: labels, annotations, variables, mounts, volumes, commands."""
    policy, addition = WAYS[mode]
    assert apply_patch(pod, policy.operations(pod)) == apply_patch(pod, patch_pod(pod, addition).operations)


@pytest.mark.parametrize("mode", WAYS)
def test_the_policy_keeps_what_the_pod_and_its_image_have(mode):
    """The command is wrapped, PYTHONPATH is not set, and nothing of the pod's own is written again."""
    policy, _ = WAYS[mode]
    container = {"name": "trainer", "command": ["python", "train.py"], "env": [{"name": "A", "value": "b"}]}
    pod = {"metadata": {"labels": {"job-name": "llm"}}, "spec": {"containers": [container]}}
    operations = policy.operations(pod)
    (after,) = apply_patch(pod, operations)["spec"]["containers"]
    assert after["command"] == ["sh", f"{SITE}/start.sh", "python", "train.py"]
    assert {one["name"] for one in after["env"]} >= {"A", "LOCKSTEP_RUN", "LOCKSTEP_DIR"}
    assert "PYTHONPATH" not in {one["name"] for one in after["env"]}
    assert not {"/spec/containers/0/command", "/spec/containers/0/env", "/spec/containers"} & {
        one["path"] for one in operations
    }


def test_a_pod_that_joined_or_starts_by_its_image_is_left_alone():
    """No operation at all."""
    policy, _ = WAYS["daemonset"]
    pod = {"metadata": {"labels": {"job-name": "llm"}}, "spec": {"containers": [{"name": "trainer"}]}}
    assert policy.operations(pod) == []
    pod["spec"]["containers"][0]["command"] = ["python"]
    joined = apply_patch(pod, policy.operations(pod))
    assert joined != pod
    assert policy.operations(joined) == []
