"""Validates the part of a pod that the chart renders into the ConfigMap `<release>-join`."""

from dataclasses import dataclass
from typing import Any

from lockstep.contracts.errors import ConfigError

Json = dict[str, Any]

_SITE = "/lockstep/agent/site"
AGENT_VOLUME = "lockstep-agent"


@dataclass(frozen=True)
class PodAddition:
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
        """The directory of the agent's loader in the container."""
        return self.agent_path + _SITE


def read_addition(value: Any, where: str) -> PodAddition:
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
        (agent_path,) = (mount["mountPath"] for mount in mounts if mount["name"] == AGENT_VOLUME)
        return PodAddition(
            labels=dict(value.get("metadata", {}).get("labels", {})),
            init_containers=list(spec.pop("initContainers")),
            volumes=list(spec.pop("volumes")),
            environment=list(trainer["env"]),
            mounts=mounts,
            agent_path=agent_path,
            fields=spec,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{where}: got {type(error).__name__} {error}, expected pod.yaml of the chart's ConfigMap `join`, with "
            "initContainers, volumes, and one container with env and volumeMounts"
        ) from None
