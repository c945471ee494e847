"""Builds the JSON Patch (RFC 6902) that makes a training pod join. Pure: pod and addition in, operations out.

The addition is the part of a pod that the chart renders into the ConfigMap `<release>-join`, so a patched pod equals
one whose author copied that part. Nothing of a pod is replaced: its own variables, mounts and volumes win, and a pod
that has joined already is left unchanged. The image's PYTHONPATH is kept too: a container that could only be reached by
replacing it starts without the agent, unless its author requests that.

The chart's MutatingAdmissionPolicy has the same rules in CEL (helm/lockstep/templates/injection-policy.yaml).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lockstep.contracts.paths import RUN_VARIABLE, is_name
from lockstep.injection.addition import AGENT_VOLUME, Json, PodAddition
from lockstep.injection.start import PATH_VARIABLE, StartMethod, choose_starts, prefixed, wrong_annotation

INJECTION_LABEL = "lockstep-injection"
"""On a pod or its namespace: enabled; or disabled, on a pod in a namespace that has it enabled."""
RUN_LABEL = "lockstep-run"
CONTAINERS_ANNOTATION = "lockstep-containers"
JOB_LABELS = (
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/name",
    "volcano.sh/job-name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
)
"""Labels in which operators name the job of a pod, outermost first: a Kubeflow TrainJob is a JobSet of Jobs."""

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


@dataclass
class PodPatch:
    """Operations for one pod, and warnings for its author; `reason` states why there are none."""

    operations: list[Json] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    reason: str = ""


@dataclass(frozen=True)
class _Joining:
    """How the containers of one pod join: the run, and the start method of each."""

    addition: PodAddition
    run: str
    starts: dict[int, StartMethod]


def run_of(pod: Json) -> str:
    """Return the run that a pod belongs to: its label, the name of its job, or of its owner; empty if there is none."""
    metadata = pod.get("metadata", {})
    labels = metadata.get("labels") or {}
    names = [labels.get(label) for label in (RUN_LABEL, *JOB_LABELS)]
    if labels.get(INJECTION_LABEL) == "enabled":  # its author requested it, so it is training
        names += [owner.get("name") for owner in metadata.get("ownerReferences") or []]
        names += [metadata.get("name"), (metadata.get("generateName") or "").removesuffix("-")]
    return next((name for name in names if name and is_name(name)), "")


def patch_pod(pod: Json, addition: PodAddition) -> PodPatch:
    """Return the operations that make `pod` join.

    Parameters
    ----------
    pod
        A core/v1 Pod as the API server sends it to admission; not changed.
    addition
        The chart's part of a pod.

    Raises
    ------
    KeyError, TypeError, AttributeError
        It is not a pod.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if labels.get(INJECTION_LABEL) == "disabled":
        return PodPatch(reason="disabled")
    if any(volume["name"] == AGENT_VOLUME for volume in spec.get("volumes") or []):
        return PodPatch(reason="joined")
    run = run_of(pod)
    if not run:
        return PodPatch(reason="no job")
    wanted = _containers(spec, annotations)
    if not wanted:
        names = ", ".join(one["name"] for one in spec["containers"])
        text = wrong_annotation(annotations, CONTAINERS_ANNOTATION, f"names among {names}; the pod is not monitored")
        return PodPatch(reason="no container", warnings=[text])
    patch = PodPatch()
    joining = _Joining(addition, run, choose_starts(spec, annotations, wanted, patch.warnings))
    if not joining.starts:
        patch.reason = "no command"
        return patch
    _add_labels(patch, labels, addition)
    _add_fields(patch, spec, addition)
    taken = _taken_paths(spec, joining.starts)
    for index in joining.starts:
        _patch_container(patch, index, spec["containers"][index], joining)
    needed = {mount["name"] for mount in addition.mounts if mount["mountPath"] not in taken}
    needed |= {mount["name"] for one in addition.init_containers for mount in one.get("volumeMounts", [])}
    present = {volume["name"] for volume in spec.get("volumes") or []}
    volumes = [one for one in addition.volumes if one["name"] in needed and one["name"] not in present]
    _set(patch, "/spec/volumes", [*(spec.get("volumes") or []), *volumes])
    _set(patch, "/spec/initContainers", [*addition.init_containers, *(spec.get("initContainers") or [])])
    return patch


def _containers(spec: Json, annotations: Json) -> list[int]:
    """Return the indices of the containers that train: the named ones, else kubectl's default, else the first."""
    names = [one["name"] for one in spec["containers"]]
    asked = annotations.get(CONTAINERS_ANNOTATION)
    if asked is not None:
        return [names.index(name) for name in map(str.strip, asked.split(",")) if name in names]
    default = annotations.get(_DEFAULT_CONTAINER)
    return [names.index(default) if default in names else 0]


def _taken_paths(spec: Json, wanted: Iterable[int]) -> set[str]:
    """Return the paths at which every training container mounts something of its own."""
    paths = [{mount["mountPath"] for mount in spec["containers"][index].get("volumeMounts") or []} for index in wanted]
    return set.intersection(*paths)


def _add_labels(patch: PodPatch, labels: Json, addition: PodAddition) -> None:
    if addition.labels:
        _set(patch, "/metadata/labels", addition.labels | labels)


def _add_fields(patch: PodPatch, spec: Json, addition: PodAddition) -> None:
    """Merge lists, and add fields that the pod does not set; its own values stay."""
    for name, value in addition.fields.items():
        if isinstance(value, list):
            own = spec.get(name) or []
            _set(patch, f"/spec/{name}", [*own, *(one for one in value if one not in own)])
        elif isinstance(value, dict):
            own = spec.get(name) or {}
            _set(patch, f"/spec/{name}", _united(value, own))
        elif name not in spec:
            _set(patch, f"/spec/{name}", value)


def _united(value: Json, own: Json) -> Json:
    """Return `own` plus the keys that only `value` has; lists are concatenated."""
    result = value | own
    for name in value.keys() & own.keys():
        if isinstance(value[name], list) and isinstance(own[name], list):
            result[name] = [*own[name], *(one for one in value[name] if one not in own[name])]
    return result


def _patch_container(patch: PodPatch, index: int, container: Json, joining: _Joining) -> None:
    path, addition = f"/spec/containers/{index}", joining.addition
    own_mounts = container.get("volumeMounts") or []
    own_paths = {mount["mountPath"] for mount in own_mounts}
    mounts = [*own_mounts, *(mount for mount in addition.mounts if mount["mountPath"] not in own_paths)]
    _set(patch, f"{path}/volumeMounts", mounts)
    start = joining.starts[index]
    if start is StartMethod.WRAPPER:
        _set(patch, f"{path}/command", ["sh", f"{addition.site}/start.sh", *container["command"]])
    _set(patch, f"{path}/env", _environment(container, joining, start))


def _environment(container: Json, joining: _Joining, start: StartMethod) -> list[Json]:
    """Return the container's own variables, with the loader in front of PYTHONPATH if it starts so, and new ones."""
    site, own = joining.addition.site, list(container.get("env") or [])
    if start is StartMethod.PREFIX:
        own = [prefixed(one, site) if one["name"] == PATH_VARIABLE else one for one in own]
    names = {one["name"] for one in own}
    added = [
        one | {"value": joining.run} if one["name"] == RUN_VARIABLE else one for one in joining.addition.environment
    ]
    if start is StartMethod.REPLACE:
        added.append({"name": PATH_VARIABLE, "value": site})
    return [*own, *(one for one in added if one["name"] not in names)]


def _set(patch: PodPatch, path: str, value: Any) -> None:
    """Add or replace a member of an object; RFC 6902 calls both `add`."""
    patch.operations.append({"op": "add", "path": path, "value": value})
