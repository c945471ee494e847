# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""Which function an event off the training thread is: its class and its name. Shape suffix: E the chosen events."""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from lockstep.trace import names
from lockstep.trace.columns import TraceColumns, WorkKind
from lockstep.trace.patterns.pattern import FunctionClass
from lockstep.trace.patterns.samples import Resource

_CLASSES = {
    WorkKind.COMPUTE: FunctionClass.COMPUTE,
    WorkKind.MEMORY: FunctionClass.MEMORY,
    WorkKind.COMMUNICATION: FunctionClass.COLLECTIVE,
}
_RESOURCES = {
    FunctionClass.COMPUTE: (Resource.SM,),
    FunctionClass.MEMORY: (Resource.MEMORY,),
    FunctionClass.HOST: (Resource.CPU,),
}
_LINKS = (Resource.NIC, Resource.NVLINK)
"""Between nodes the network is by far the narrower one (PerfTracker, section 4.2)."""
_LABEL_CHARS = 64
_DIGEST_BYTES = 4

Function = tuple[FunctionClass, str]


def device_functions(columns: TraceColumns, chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[Function]]:
    """Return the function of each chosen event, an index into the list next to it; array of shape (n_chosen,).

    `chosen` are compute, memory and collective events. A collective whose kernel does not name it
    (ncclDevKernel_Generic of ROCm) is distinguished by the name in its arguments.
    """
    labels = {"": 0}
    label = np.zeros(len(columns), np.int64)
    for event, arguments in columns.collectives.items():
        label[event] = labels.setdefault(arguments.name[:_LABEL_CHARS], len(labels))
    work_E, name_E = columns.work[chosen].astype(np.int64), columns.name[chosen].astype(np.int64)
    label_E = np.where(work_E == WorkKind.COMMUNICATION, label[chosen], 0)
    keys, key_E = np.unique((work_E * len(columns.names) + name_E) * len(labels) + label_E, return_inverse=True)
    texts, found = list(labels), dict[Function, int]()
    function_of_key = []
    for key in keys.tolist():
        rest, at = divmod(key, len(labels))
        work, name = divmod(rest, len(columns.names))
        function = _CLASSES[WorkKind(work)], _labelled(short(columns.names[name]), texts[at])
        function_of_key.append(found.setdefault(function, len(found)))
    return np.array(function_of_key, np.int64)[key_E] if function_of_key else key_E, list(found)


def short(name: str) -> str:
    """Return `name` as it travels: long ones end in a digest of the whole, so that kernels of one template differ."""
    if len(name) <= names.NAME_MAX_CHARS:
        return names.tidy(name)
    digest = blake2b(name.encode(errors="replace"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{name[: names.NAME_MAX_CHARS - 2 * _DIGEST_BYTES - 1]}…{digest}"


def _labelled(name: str, label: str) -> str:
    is_named = label.replace("_", "").lower() in name.replace("_", "").lower()
    return name if is_named else f"{name} [{label}]"


def crosses_nodes(columns: TraceColumns, event: int, ranks_per_node: int | None) -> bool | None:
    """Whether the collective that `event` is runs between nodes; None where its ranks or the nodes are not known."""
    arguments = columns.collectives.get(event)
    if arguments is None or ranks_per_node is None:
        return None
    ranks = arguments.ranks or columns.metadata.groups.get(arguments.group)
    return len({rank // ranks_per_node for rank in ranks}) > 1 if ranks else None


def resources_of(kind: FunctionClass, *, crosses: bool | None) -> tuple[Resource, ...]:
    """Return the resources that determine a function's speed, the first one that was sampled counts."""
    if kind is not FunctionClass.COLLECTIVE:
        return _RESOURCES[kind]
    return (Resource.NVLINK,) if crosses is False else _LINKS
