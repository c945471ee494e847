"""The part of a specification that a run itself shows: its degrees, its nodes and its device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

_PRESETS: Mapping[str, str] = {
    **{name: f"DGX {name}" for name in ("V100", "A100", "H100", "H200", "B200")},
    "MI300X": "MI300X",
}
"""Presets of clusters by what the name of a device contains."""
_KINDS = ("tp", "cp", "ep", "dp", "pp")
_SIZED_BY_RANKS = ("tp", "cp", "dp", "pp")
"""Degrees whose product is the number of ranks; ep divides dp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of a run: its ranks, its process groups (kind, ranks), and host by rank.

    `device` is the name of the device of all ranks, empty if unknown or not the same.
    """

    ranks: int
    groups: Sequence[tuple[str, Sequence[int]]]
    hosts: Mapping[int, str]
    device: str = ""


def document_of_run(facts: RunFacts) -> tuple[dict[str, Any], list[str]]:
    """Return the sections of a specification that the facts of a run determine, and the gaps that they leave."""
    gaps = ["model: a run does not show it", "batch, strategy.micro_batches: a run does not show them"]
    strategy, cluster = _strategy(facts, gaps), _cluster(facts, gaps)
    return {name: each for name, each in (("strategy", strategy), ("cluster", cluster)) if each}, gaps


def _strategy(facts: RunFacts, gaps: list[str]) -> dict[str, Any]:
    """Return the degrees: the size that all groups of a kind have."""
    sizes = {kind: sorted({len(ranks) for each, ranks in facts.groups if each == kind}) for kind in _KINDS}
    degrees = {kind: each[0] for kind, each in sizes.items() if each}
    is_even = all(len(each) <= 1 for each in sizes.values())
    if not is_even or prod(degrees.get(kind, 1) for kind in _SIZED_BY_RANKS) != facts.ranks:
        shown = ", ".join(f"{kind} of {each}" for kind, each in sizes.items() if each) or "none"
        gaps.append(f"strategy: groups are {shown}, which do not make a grid of {facts.ranks} ranks")
        return {}
    gaps.append("strategy.zero, strategy.sequence_parallel, strategy.recompute: a run does not show them")
    return {"dp": 1} | degrees


def _cluster(facts: RunFacts, gaps: list[str]) -> dict[str, Any]:
    """Return the preset of the run's device with as many nodes as the run has."""
    preset = next((preset for name, preset in _PRESETS.items() if name in facts.device), None)
    if preset is None:
        reason = (
            f"no preset has the device {facts.device!r}" if facts.device else "one device of all ranks is not known"
        )
        gaps.append(f"cluster: {reason}")
        return {}
    if len(facts.hosts) < facts.ranks:
        gaps.append("cluster.nodes: not all hosts are known")
        return {"preset": preset}
    return {"preset": preset, "nodes": len(set(facts.hosts.values()))}
