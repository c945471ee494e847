"""What a training pod gets so that it joins, as a JSON Patch (RFC 6902). Pure: pod and addition in, operations out.

The addition is the part of a pod that the chart renders into the ConfigMap `<release>-join`, so that a pod which is
patched and one whose author copied that part are the same. Nothing that a pod has is replaced: a variable, a mount or a
volume of the pod's own wins, and a pod that has joined already is left alone.
"""

from dataclasses import dataclass, field
from typing import Any

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.paths import RUN_VARIABLE, is_name

INJECTION_LABEL = "lockstep-injection"
"""On a pod or its namespace: enabled, or disabled on a pod in a namespace that has it enabled."""
RUN_LABEL = "lockstep-run"
CONTAINERS_ANNOTATION = "lockstep-containers"
START_ANNOTATION = "lockstep-start"
STARTS = ("wrapper", "environment")
JOB_LABELS = (
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/name",
    "volcano.sh/job-name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
)
"""By which operators name the job of a pod, the outermost first: a Kubeflow TrainJob is a JobSet of Jobs."""

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_PATH_VARIABLE = "PYTHONPATH"
_SITE = "/lockstep/agent/site"
_AGENT_VOLUME = "lockstep-agent"

Json = dict[str, Any]


@dataclass
class PodPatch:
    """Operations for one pod, and what its author should know; `reason` says why there are none."""

    operations: list[Json] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    reason: str = ""


@dataclass(frozen=True)
class Addition:
    """The part of a pod that makes it join: labels, pod fields, init containers, volumes, and the trainer's part."""

    labels: Json
    fields: Json
    init_containers: list[Json]
    volumes: list[Json]
    environment: list[Json]
    mounts: list[Json]
    agent_path: str

    @property
    def site(self) -> str:
        """Where the agent's loader lies in the container."""
        return self.agent_path + _SITE


@dataclass(frozen=True)
class _Joining:
    """How the containers of one pod join: as which run, and whether by the wrapper."""

    addition: Addition
    run: str
    is_wrapped: bool


def read_addition(value: Any, where: str) -> Addition:
    """Check the content of `pod.yaml` and return it.

    Raises
    ------
    ConfigError
        It is not what the chart renders.
    """
    try:
        spec = dict(value["spec"])
        (trainer,) = spec.pop("containers")
        mounts = list(trainer["volumeMounts"])
        (agent_path,) = (mount["mountPath"] for mount in mounts if mount["name"] == _AGENT_VOLUME)
        return Addition(
            labels=dict(value.get("metadata", {}).get("labels", {})),
            init_containers=list(spec.pop("initContainers")),
            volumes=list(spec.pop("volumes")),
            environment=[one for one in trainer["env"] if one["name"] not in (RUN_VARIABLE, _PATH_VARIABLE)],
            mounts=mounts,
            agent_path=agent_path,
            fields=spec,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{where}: got {type(error).__name__} {error}, expected pod.yaml of the chart's ConfigMap `join`, with "
            "initContainers, volumes, and one container with env and volumeMounts"
        ) from None


def run_of(pod: Json) -> str:
    """Return the run that a pod belongs to: its label, the name of its job, or of its owner; empty if there is none."""
    metadata = pod.get("metadata", {})
    labels = metadata.get("labels") or {}
    names = [labels.get(label) for label in (RUN_LABEL, *JOB_LABELS)]
    if labels.get(INJECTION_LABEL) == "enabled":  # asked for by its author, so it is a training
        names += [owner.get("name") for owner in metadata.get("ownerReferences") or []]
        names += [metadata.get("name"), (metadata.get("generateName") or "").rstrip("-")]
    return next((name for name in names if name and is_name(name)), "")


def patch_pod(pod: Json, addition: Addition) -> PodPatch:
    """Return what makes `pod` join.

    Parameters
    ----------
    pod
        A core/v1 Pod as the API server sends it to admission; not changed.
    addition
        Of the chart.

    Raises
    ------
    KeyError, TypeError, AttributeError
        It is no pod.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if labels.get(INJECTION_LABEL) == "disabled":
        return PodPatch(reason="disabled")
    if any(volume["name"] == _AGENT_VOLUME for volume in spec.get("volumes") or []):
        return PodPatch(reason="joined")
    run = run_of(pod)
    if not run:
        return PodPatch(reason="no job")
    wanted = _containers(spec, annotations)
    if not wanted:
        names = ", ".join(one["name"] for one in spec["containers"])
        text = _wrong(annotations, CONTAINERS_ANNOTATION, f"names among {names}; the pod is not monitored")
        return PodPatch(reason="no container", warnings=[text])
    patch = PodPatch()
    start = annotations.get(START_ANNOTATION, STARTS[0])
    if start not in STARTS:
        patch.warnings.append(_wrong(annotations, START_ANNOTATION, f"{' or '.join(STARTS)}; the first is used"))
    joining = _Joining(addition, run, is_wrapped=start != STARTS[1])
    _add_labels(patch, labels, addition)
    _add_fields(patch, spec, addition)
    taken = _taken_paths(spec, wanted)
    for index in wanted:
        _patch_container(patch, index, spec["containers"][index], joining)
    needed = {mount["name"] for mount in addition.mounts if mount["mountPath"] not in taken}
    needed |= {mount["name"] for one in addition.init_containers for mount in one.get("volumeMounts", [])}
    present = {volume["name"] for volume in spec.get("volumes") or []}
    volumes = [one for one in addition.volumes if one["name"] in needed and one["name"] not in present]
    _set(patch, "/spec/volumes", [*(spec.get("volumes") or []), *volumes])
    _set(patch, "/spec/initContainers", [*addition.init_containers, *(spec.get("initContainers") or [])])
    return patch


def _wrong(annotations: Json, name: str, expected: str) -> str:
    return f"lockstep: {name}: got {annotations.get(name)!r:.200}, expected {expected}"


def _containers(spec: Json, annotations: Json) -> list[int]:
    """Return the indices of the containers that train: the named ones, else kubectl's default, else the first."""
    names = [one["name"] for one in spec["containers"]]
    asked = annotations.get(CONTAINERS_ANNOTATION)
    if asked is not None:
        return [names.index(name) for name in map(str.strip, asked.split(",")) if name in names]
    default = annotations.get(_DEFAULT_CONTAINER)
    return [names.index(default) if default in names else 0]


def _taken_paths(spec: Json, wanted: list[int]) -> set[str]:
    """Return the paths at which every container that trains mounts something of its own."""
    paths = [{mount["mountPath"] for mount in spec["containers"][index].get("volumeMounts") or []} for index in wanted]
    return set.intersection(*paths)


def _add_labels(patch: PodPatch, labels: Json, addition: Addition) -> None:
    if addition.labels:
        _set(patch, "/metadata/labels", addition.labels | labels)


def _add_fields(patch: PodPatch, spec: Json, addition: Addition) -> None:
    """Add lists to lists, and what the pod leaves open; what it decided stays."""
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
    """Return `own` with what only `value` has; lists are joined."""
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
    own = {one["name"]: one for one in container.get("env") or []}
    environment = [*own.values(), *(one for one in addition.environment if one["name"] not in own)]
    if RUN_VARIABLE not in own:
        environment.append({"name": RUN_VARIABLE, "value": joining.run})
    if container.get("command") and joining.is_wrapped:
        _set(patch, f"{path}/command", ["sh", f"{addition.site}/start.sh", *container["command"]])
    else:
        environment = _with_path(patch, container, environment, addition.site)
    _set(patch, f"{path}/env", environment)


def _with_path(patch: PodPatch, container: Json, environment: list[Json], site: str) -> list[Json]:
    """Return the variables with the loader first on PYTHONPATH, which the image's own cannot be joined to."""
    own = next((one for one in environment if one["name"] == _PATH_VARIABLE), None)
    if own is None:
        patch.warnings.append(
            f"lockstep: container {container['name']}: {_PATH_VARIABLE} of its image, if there is one, is replaced; a "
            "command in the manifest keeps it"
        )
        return [*environment, {"name": _PATH_VARIABLE, "value": site}]
    if "value" not in own:
        patch.warnings.append(
            f"lockstep: container {container['name']}: {_PATH_VARIABLE} comes from elsewhere, so the agent is not "
            "loaded; a command in the manifest changes that"
        )
        return environment
    changed = own | {"value": f"{site}:{own['value']}" if own["value"] else site}
    return [changed if one is own else one for one in environment]


def _set(patch: PodPatch, path: str, value: Any) -> None:
    """Add or replace a member of an object, which RFC 6902 calls `add` in both cases."""
    patch.operations.append({"op": "add", "path": path, "value": value})
