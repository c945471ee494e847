"""Chooses how the agent gets into a container's Python without replacing the image's PYTHONPATH."""

from enum import Enum

from lockstep.injection.addition import Json

START_ANNOTATION = "lockstep-start"
STARTS = ("wrapper", "environment")
PATH_VARIABLE = "PYTHONPATH"


class StartMethod(Enum):
    """How the agent gets into the Python of a container."""

    WRAPPER = "the script before its command"
    PREFIX = "before PYTHONPATH of the manifest"
    REPLACE = "PYTHONPATH, in place of the image's"


def wrong_annotation(annotations: Json, name: str, expected: str) -> str:
    """Return the warning about an annotation that cannot be used."""
    return f"lockstep: {name}: got {annotations.get(name)!r:.200}, expected {expected}"


def choose_starts(spec: Json, annotations: Json, wanted: list[int], warnings: list[str]) -> dict[int, StartMethod]:
    """Choose how each container of the indices `wanted` starts; `warnings` gets the reasons of those that cannot."""
    asked = annotations.get(START_ANNOTATION, STARTS[0])
    if asked not in STARTS:
        warnings.append(wrong_annotation(annotations, START_ANNOTATION, f"{' or '.join(STARTS)}; the first is used"))
    starts: dict[int, StartMethod] = {}
    for index in wanted:
        container = spec["containers"][index]
        start, trouble = _start(container, is_environment=asked == STARTS[1])
        if start:
            starts[index] = start
        if trouble:
            warnings.append(f"lockstep: container {container['name']}: {trouble}")
    return starts


def _start(container: Json, *, is_environment: bool) -> tuple[StartMethod | None, str]:
    """Return how a container starts with the agent, if it can, and a note for its author."""
    if container.get("command") and not is_environment:
        return StartMethod.WRAPPER, ""
    own = [one for one in container.get("env") or [] if one["name"] == PATH_VARIABLE]
    if any("valueFrom" not in one for one in own):
        return StartMethod.PREFIX, ""
    if own:
        return None, f"it takes {PATH_VARIABLE} from elsewhere, so it is not monitored; a command in the manifest helps"
    if is_environment:
        return StartMethod.REPLACE, f"{PATH_VARIABLE} of its image, if there is one, is replaced"
    return None, (
        f"it has no command in the manifest, so it is not monitored; the annotation {START_ANNOTATION}: {STARTS[1]} "
        f"sets {PATH_VARIABLE} in place of that of its image"
    )


def prefixed(variable: Json, site: str) -> Json:
    """Return the manifest's PYTHONPATH with the loader's directory in front; a reference (`valueFrom`) unchanged."""
    if "valueFrom" in variable:
        return variable
    own = variable.get("value")
    return variable | {"value": f"{site}:{own}" if own else site}
