# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Turns a verdict on slow groups into evidence: by how much, since when, and why.

Pure. Shapes: V groups of the verdict.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.links.tomography import GROUP, JOB, NODE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.detect.links.tomography import LinkVerdict, Tomography
    from lockstep.contracts.domains import Domain

    Floats = NDArray[np.floating]

_NAMED_MAX = 4  # groups listed individually


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """Groups that are slow for one reason; seconds are per step.

    `scope` is group, node or job. `domain` is set for the scope group: the slowest one, if several cross the same nodes
    and cannot be distinguished. `ranks` are those of the groups, those of the node, or the one rank of the node whose
    card all groups share; empty for a job.
    """

    scope: str
    domain: "Domain | None"
    node: str
    ranks: tuple[int, ...]
    excess_ratio: float
    excess_seconds: float
    transfer_seconds: float
    onset_step: int
    evidence: tuple[str, ...]
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of the groups of a verdict, arrays of shape (V,): seconds per step before and in excess, and onset.

    A past of less than `hidden_seconds` was hidden: ratios are of these then, because they would be almost infinite.
    """

    past_seconds: "Floats"
    hidden_seconds: "Floats"
    extra_seconds: "Floats"
    onset_step: "NDArray[np.int64]"
    is_from_peers: "NDArray[np.bool_]"
    sigma_ratio: "Floats"
    threshold_ratio: float


def describe(
    verdict: "LinkVerdict",
    figures: Figures,
    domains: "Sequence[Domain]",
    tomography: "Tomography",
    kind_G: "NDArray[np.uint8]",
) -> SlowLink:
    """Describe a verdict in text and numbers; `domains` are all groups of the run."""
    kind_V = kind_G[list(verdict.groups)]
    extra = figures.extra_seconds
    order = np.argsort(-extra, kind="stable").tolist()
    slowest = order[0]
    ratio = float(np.median(extra / np.maximum(figures.past_seconds, figures.hidden_seconds)))
    transfer_seconds = float(figures.past_seconds[slowest] + extra[slowest])
    known = figures.onset_step[figures.onset_step >= 0]
    lines = [_line(domains[verdict.groups[place]], figures, place) for place in order[:_NAMED_MAX]]
    is_group = verdict.scope == GROUP
    return SlowLink(
        scope=verdict.scope,
        domain=domains[verdict.groups[slowest]] if is_group else None,
        node=verdict.node,
        ranks=_ranks(verdict, domains, tomography),
        excess_ratio=ratio,
        # A step waits for each kind in turn; groups of one kind are slow at the same time.
        excess_seconds=sum(float(extra[kind_V == kind].max()) for kind in np.unique(kind_V)),
        transfer_seconds=transfer_seconds,
        # With thousands of groups the earliest onset is chance; the median one is that of the fault.
        onset_step=int(np.sort(known)[(len(known) - 1) // 2]) if len(known) else -1,
        evidence=(*_reason(verdict, domains, kind_V, tomography), *lines),
        numbers={
            "transfer_seconds": transfer_seconds,
            "past_seconds": float(figures.past_seconds[slowest]),
            "excess_ratio": ratio,
            "threshold_ratio": figures.threshold_ratio,
            "noise_ratio": float(figures.sigma_ratio[slowest]),
            "groups": float(len(verdict.groups)),
        },
    )


def _ranks(verdict: "LinkVerdict", domains: "Sequence[Domain]", tomography: "Tomography") -> tuple[int, ...]:
    if verdict.scope == JOB:
        return ()
    if verdict.rank is not None:
        return (verdict.rank,)
    if verdict.scope == NODE:
        return tomography.ranks_of(verdict.node)
    return tuple(sorted({rank for group in verdict.groups for rank in domains[group].ranks}))


def _reason(
    verdict: "LinkVerdict", domains: "Sequence[Domain]", kind_V: "NDArray[np.uint8]", tomography: "Tomography"
) -> list[str]:
    """Explain why these groups are one problem; empty for a single group."""
    if len(verdict.groups) == 1:
        return []
    shares = []
    for kind in np.unique(kind_V).tolist():
        places = np.flatnonzero(kind_V == kind)
        whole = tomography.count(kind, verdict.node if verdict.scope == NODE and verdict.rank is None else "")
        shares.append(f"{len(places):,} of {whole:,} {domains[verdict.groups[places[0]]].kind}")
    slow = " and ".join(shares)
    if verdict.scope == JOB:
        return [f"{slow} groups are slow, and no node is common to them"]
    if verdict.rank is not None:
        return [f"{slow} groups are slow, and only rank {verdict.rank} of node {verdict.node} is common to them"]
    if verdict.scope == NODE:
        return [f"{slow} groups that cross node {verdict.node} are slow, and no other node is common to them"]
    return [f"{slow} groups are slow; they cross the same nodes, so nothing shows which of these it is"]


def _line(domain: "Domain", figures: Figures, place: int) -> str:
    extra, past = float(figures.extra_seconds[place]), float(figures.past_seconds[place])
    takes = f"transfers of {domain.kind} domain {domain.name} take {(past + extra) * 1e3:.1f} ms a step"
    if past < figures.hidden_seconds[place]:
        return f"{takes}, and were hidden before"
    than = (
        "over those of groups alike, from the first step on" if figures.is_from_peers[place] else "over their own past"
    )
    return f"{takes}, {extra / past:+.0%} {than}"
