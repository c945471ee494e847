"""What a pod gets, rule by rule; that the result is valid and joins is in tests/helm/test_injection.py."""

import pytest

from lockstep.contracts.errors import ConfigError
from lockstep.injection.addition import read_addition
from lockstep.injection.pod_patch import JOB_LABELS, patch_pod, run_of
from tests.injection.json_patch import apply_patch

SITE = "/opt/lockstep/lockstep/agent/site"
PART = {
    "spec": {
        "initContainers": [
            {"name": "lockstep-agent", "volumeMounts": [{"name": "lockstep-agent", "mountPath": "/opt/lockstep"}]}
        ],
        "containers": [
            {
                "name": "trainer",
                "command": ["sh", f"{SITE}/start.sh"],
                "env": [
                    {"name": "LOCKSTEP_RUN", "value": "my-run"},
                    {"name": "LOCKSTEP_DIR", "value": "/run/lockstep"},
                ],
                "volumeMounts": [
                    {"name": "lockstep-rings", "mountPath": "/run/lockstep"},
                    {"name": "lockstep-agent", "mountPath": "/opt/lockstep", "readOnly": True},
                    {"name": "dshm", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "lockstep-rings", "hostPath": {"path": "/dev/shm/lockstep"}},
            {"name": "lockstep-agent", "emptyDir": {}},
            {"name": "dshm", "emptyDir": {"medium": "Memory"}},
        ],
    }
}
ADDITION = read_addition(PART, "pod.yaml")


def make_pod(*, labels=None, annotations=None, containers=None, **spec):
    """Return a pod as an operator makes it, of the job `llm`."""
    containers = containers or [{"name": "pytorch", "image": "i", "command": ["torchrun", "train.py"]}]
    metadata = {"name": "llm-worker-0", "labels": {"training.kubeflow.org/job-name": "llm"} | (labels or {})}
    return {
        "kind": "Pod",
        "metadata": metadata | {"annotations": annotations},
        "spec": {"containers": containers, **spec},
    }


def patched(pod, addition=ADDITION):
    """Return (pod after the patch, patch)."""
    patch = patch_pod(pod, addition)
    return apply_patch(pod, patch.operations), patch


def variables(container):
    """Return the environment of a container by name."""
    return {one["name"]: one.get("value") for one in container["env"]}


def test_a_pod_of_a_job_gets_agent_volumes_variables_and_the_wrapper():
    """Whatever the image has on PYTHONPATH stays behind the loader, which the wrapper puts in front."""
    pod, patch = patched(make_pod())
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["sh", f"{SITE}/start.sh", "torchrun", "train.py"]
    assert variables(container) == {"LOCKSTEP_DIR": "/run/lockstep", "LOCKSTEP_RUN": "llm"}
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/run/lockstep", "/opt/lockstep", "/dev/shm"]
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["lockstep-rings", "lockstep-agent", "dshm"]
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["lockstep-agent"]
    assert (patch.reason, patch.warnings) == ("", [])


def test_what_the_pod_has_itself_wins():
    """Its variables, its /dev/shm, its volumes and its init containers."""
    own = {
        "name": "pytorch",
        "command": ["python", "train.py"],
        "env": [{"name": "LOCKSTEP_RUN", "value": "mine"}, {"name": "A", "value": "b"}],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    pod, _ = patched(make_pod(containers=[own], volumes=[shm], initContainers=[{"name": "fetch"}]))
    (container,) = pod["spec"]["containers"]
    assert variables(container) == {"LOCKSTEP_RUN": "mine", "A": "b", "LOCKSTEP_DIR": "/run/lockstep"}
    assert [m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm"] == ["shm"]
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["shm", "lockstep-rings", "lockstep-agent"]
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["lockstep-agent", "fetch"]


@pytest.mark.parametrize(
    ("own", "path"),
    [({"value": "/src"}, f"{SITE}:/src"), ({"value": ""}, SITE), ({}, SITE)],
)
def test_python_path_of_the_manifest_gets_the_loader_in_front(own, path):
    """It replaces the image's with and without the agent; the API server sends an empty one without its value."""
    pod, patch = patched(make_pod(containers=[{"name": "pytorch", "env": [{"name": "PYTHONPATH", **own}]}]))
    (container,) = pod["spec"]["containers"]
    assert "command" not in container
    assert variables(container)["PYTHONPATH"] == path
    assert patch.warnings == []


@pytest.mark.parametrize(
    ("own", "warning"),
    [
        ({}, "it has no command in the manifest, so it is not monitored; the annotation lockstep-start: environment"),
        (
            {"env": [{"name": "PYTHONPATH", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
            "it takes PYTHONPATH from elsewhere, so it is not monitored",
        ),
    ],
)
def test_the_path_of_an_image_is_never_replaced_unasked(own, warning):
    """Its modules may lie there: a container that starts by its image's entry point trains without the agent."""
    before = make_pod(containers=[{"name": "pytorch", "args": ["train.py"], **own}])
    pod, patch = patched(before)
    assert pod == before
    assert patch.reason == "no command"
    assert [text.startswith(f"lockstep: container pytorch: {warning}") for text in patch.warnings] == [True]


def test_one_of_two_containers_without_a_command_does_not_keep_the_other_out():
    """The other one joins."""
    containers = [{"name": "first"}, {"name": "second", "command": ["run"]}]
    pod, patch = patched(make_pod(annotations={"lockstep-containers": "first,second"}, containers=containers))
    assert ["env" in one for one in pod["spec"]["containers"]] == [False, True]
    assert len(patch.warnings) == 1


def test_an_image_without_a_shell_asks_for_the_variable():
    """By an annotation: the wrapper is a shell script."""
    pod, patch = patched(make_pod(annotations={"lockstep-start": "environment"}))
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["torchrun", "train.py"]
    assert variables(container)["PYTHONPATH"] == SITE
    assert len(patch.warnings) == 1


@pytest.mark.parametrize(
    ("annotations", "changed"),
    [
        ({}, {"first"}),
        ({"kubectl.kubernetes.io/default-container": "second"}, {"second"}),
        ({"kubectl.kubernetes.io/default-container": "gone"}, {"first"}),
        ({"lockstep-containers": "second, first"}, {"first", "second"}),
        ({"lockstep-containers": "second,gone"}, {"second"}),
    ],
)
def test_which_containers_train(annotations, changed):
    """The named ones, kubectl's default, or the first; a proxy next to them is left alone."""
    containers = [{"name": name, "command": ["run"]} for name in ("first", "second", "proxy")]
    pod, _ = patched(make_pod(annotations=annotations, containers=containers))
    assert {one["name"] for one in pod["spec"]["containers"] if "env" in one} == changed


def test_an_unknown_start_is_named():
    """The wrapper is used."""
    pod, patch = patched(make_pod(annotations={"lockstep-start": "env"}))
    assert pod["spec"]["containers"][0]["command"][0] == "sh"
    assert patch.warnings == ["lockstep: lockstep-start: got 'env', expected wrapper or environment; the first is used"]


def test_a_container_that_is_not_there_is_named():
    """The pod starts as it is."""
    pod, patch = patched(make_pod(annotations={"lockstep-containers": "trainer"}))
    assert pod == make_pod(annotations={"lockstep-containers": "trainer"})
    assert patch.reason == "no container"
    assert patch.warnings == [
        "lockstep: lockstep-containers: got 'trainer', expected names among pytorch; the pod is not monitored"
    ]


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (make_pod(labels={"lockstep-injection": "disabled"}), "disabled"),
        (make_pod(volumes=[{"name": "lockstep-agent", "emptyDir": {}}]), "joined"),
        (make_pod(labels={"training.kubeflow.org/job-name": "not/a name"}), "no job"),
    ],
)
def test_pods_that_are_left_alone(pod, reason):
    """Nothing is changed, and the reason is counted."""
    assert patch_pod(pod, ADDITION).operations == []
    assert patch_pod(pod, ADDITION).reason == reason


def test_a_pod_that_is_patched_is_patched_once():
    """The API server may ask again after another webhook."""
    pod, _ = patched(make_pod())
    assert patch_pod(pod, ADDITION).reason == "joined"


@pytest.mark.parametrize("label", JOB_LABELS)
def test_the_run_is_the_job(label):
    """By the label of each operator, unless the pod names its run."""
    assert run_of({"metadata": {"labels": {label: "job-7"}}}) == "job-7"
    assert run_of({"metadata": {"labels": {label: "job-7", "lockstep-run": "llm"}}}) == "llm"


def test_a_pod_alone_is_its_own_run_only_where_it_asks():
    """In a namespace that has the label every pod is reviewed, and a web server is no training."""
    owned = {"name": "web-1", "ownerReferences": [{"name": "web"}]}
    assert run_of({"metadata": owned}) == ""
    assert run_of({"metadata": owned | {"labels": {"lockstep-injection": "enabled"}}}) == "web"
    assert run_of({"metadata": {"generateName": "one-", "labels": {"lockstep-injection": "enabled"}}}) == "one"


def test_labels_fields_and_lists_of_the_addition():
    """A sidecar's label, shared processes, a group in common, secrets for pulling; what the pod decided stays."""
    spec = PART["spec"] | {
        "shareProcessNamespace": True,
        "imagePullSecrets": [{"name": "own-pull"}],
        "securityContext": {"supplementalGroups": [2000], "fsGroup": 1},
    }
    addition = read_addition({"metadata": {"labels": {"lockstep-exporter": "r"}}, "spec": spec}, "pod.yaml")
    pod, _ = patched(make_pod(), addition)
    assert pod["metadata"]["labels"]["lockstep-exporter"] == "r"
    assert pod["spec"]["shareProcessNamespace"] is True
    own = {
        "shareProcessNamespace": False,
        "imagePullSecrets": [{"name": "theirs"}],
        "securityContext": {"supplementalGroups": [7], "fsGroup": 9},
    }
    pod, _ = patched(make_pod(**own), addition)
    assert pod["spec"]["shareProcessNamespace"] is False
    assert pod["spec"]["imagePullSecrets"] == [{"name": "theirs"}, {"name": "own-pull"}]
    assert pod["spec"]["securityContext"] == {"supplementalGroups": [7, 2000], "fsGroup": 9}


@pytest.mark.parametrize("wrong", [None, {}, {"spec": {"containers": []}}, {"spec": PART["spec"] | {"volumes": None}}])
def test_an_addition_that_is_none_is_refused(wrong):
    """At the start of the webhook, with what was expected."""
    with pytest.raises(ConfigError, match=r"pod\.yaml: got .*, expected pod\.yaml of the chart"):
        read_addition(wrong, "pod.yaml")
