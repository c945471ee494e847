"""Finds what differs between the nodes of a job but should not. Pure: facts of several nodes in, checks out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.doctor.verdict import FAIL, OK, WARN, Check

_NAMED_MAX = 5  # nodes listed by name; the rest is counted
_MISSING = "absent"
_STRICT = ("torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "torch-npu", "mindspore")
"""With different versions of these, jobs hang or fail; differences in others make nodes slower."""
_OWN_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "CUDA_VISIBLE_DEVICES", "ASCEND_DEVICE_ID")
"""May legitimately differ from node to node."""


def compare(nodes: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Return a check for every version, setting and size that differs, or a single one if all agree."""
    names = [str(facts.get("host", place)) for place, facts in enumerate(nodes)]
    found = [
        *_differing(names, [_texts(facts, "versions") for facts in nodes], "version of", _verdict_of_version),
        *_differing(names, [_settings(facts) for facts in nodes], "variable", lambda _: WARN),
        *_differing(names, [_sizes(facts) for facts in nodes], "", lambda _: WARN),
    ]
    equal = f"versions, variables and sizes are equal on {len(nodes)} nodes"
    return found or [Check(name="nodes", verdict=OK, found=equal, source="Hermes, Table 4: environment configuration")]


def _texts(facts: Mapping[str, Any], part: str) -> dict[str, str]:
    values = facts.get(part)
    return {str(name): str(value) for name, value in values.items()} if isinstance(values, Mapping) else {}


def _settings(facts: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in _texts(facts, "environment").items() if name not in _OWN_VARIABLES}


def _sizes(facts: Mapping[str, Any]) -> dict[str, str]:
    cpu, memory, shm = (_texts(facts, part) for part in ("cpu", "memory", "shared_memory"))
    return {
        "CPUs": cpu.get("count", _MISSING),
        "CPU governor": cpu.get("governors", _MISSING),
        "transparent huge pages": cpu.get("transparent_huge_pages", _MISSING),
        "memory": _gib(memory.get("total_bytes")),
        "shared memory": _gib(shm.get("total_bytes")),
    }


def _gib(text: str | None) -> str:
    return f"{int(text) / 2**30:.0f} GiB" if text is not None and text.isdecimal() else _MISSING


def _verdict_of_version(name: str) -> str:
    return FAIL if name in _STRICT else WARN


def _differing(names: list[str], values: list[dict[str, str]], what: str, verdict_of: Any) -> list[Check]:
    found = []
    for key in sorted({key for each in values for key in each}):
        given = [each.get(key, _MISSING) for each in values]
        counts = Counter(given)
        if len(counts) == 1:
            continue
        usual = counts.most_common(1)[0][0]
        others = [f"{value} on {_nodes(names, given, value)}" for value in counts if value != usual]
        found.append(
            Check(
                name=f"{what} {key}".strip(),
                verdict=verdict_of(key),
                found=f"{usual} on {counts[usual]} nodes, {'; '.join(sorted(others))}",
                advice="make all nodes alike: the slowest of them sets the pace of all",
                source="Hermes, Table 4: align software versions",
            )
        )
    return found


def _nodes(names: list[str], given: list[str], value: str) -> str:
    which = [name for name, each in zip(names, given, strict=True) if each == value]
    more = f" and {len(which) - _NAMED_MAX} more" if len(which) > _NAMED_MAX else ""
    return ", ".join(which[:_NAMED_MAX]) + more
