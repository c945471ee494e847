# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Chooses the rows of the heat map: every rank of a small run.

Of a large one, the worst ranks and blocks of the others.

Pure. Ranks are ordered by their group (a node or a domain), so that a shared problem shows as a band.

Shapes: K steps, R ranks, L lines of the map, G groups.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.detect.ranks.groups import middle
from lockstep.contracts.domains import pack_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from coordinator.decide.explain import ExplanationContext
    from coordinator.decide.incidents import Incident
    from coordinator.page.rank_figures import RankFigures

    Floats = NDArray[np.floating]

LINES_MAX = 512
"""Largest number of rows of a map: 2 pixels each on a screen, 32 KB per quantity."""
NODE = "node"
_WORST_LINES = 256  # ranks of a large run with a row of their own; as many rows are left for the others
_NAMED_RANKS = 128  # ranks of incidents, which always have a row of their own
_NAME_MAX = 64  # characters of a name
_SPANS_MAX = 4  # ranges of ranks written out
_DOMAINS_MAX = 6  # domains of a rank: as many as there are kinds
_NONE = "in no group"


@dataclass(frozen=True, slots=True)
class GridLine:
    """One row: the columns of its ranks, and its group."""

    columns: "NDArray[np.intp]"
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The rows of a map, in order. `note` describes the ranks without a row of their own; empty if there are none."""

    lines: tuple[GridLine, ...]
    groups: tuple[tuple[str, str], ...]
    """Name and ranks of each group, as text."""
    ranks: "NDArray[np.int64]"
    hosts: tuple[str, ...]
    """Host of each line; of several, the first."""
    domains: tuple[str, ...]
    """Domains of each line; empty for a line of several ranks."""
    note: str

    def lines_of(self, values_KR: "Floats") -> "Floats":
        """Return the values of each line, array of shape (L, K); a line of several ranks has their median."""
        cells_LK = np.empty((len(self.lines), len(values_KR)), dtype=np.float64)
        for place, line in enumerate(self.lines):
            if len(line.columns) == 1:
                cells_LK[place] = values_KR[:, line.columns[0]]
            else:
                cells_LK[place] = middle(values_KR[:, line.columns].T)
        return cells_LK

    def rows_json(self) -> dict[str, Any]:
        """Return the properties of the rows, one list per property."""
        return {
            "ranks": [spans_text(self.ranks[line.columns].tolist()) for line in self.lines],
            "counts": [len(line.columns) for line in self.lines],
            "groups": [line.group for line in self.lines],
            "hosts": list(self.hosts),
            "domains": list(self.domains),
        }

    def groups_json(self) -> list[dict[str, str]]:
        """Return the groups, ordered by number."""
        return [{"name": name, "ranks": ranks} for name, ranks in self.groups]

    def spans_of(self, ranks: "Iterable[int]") -> list[list[int]]:
        """Return the rows that hold any of `ranks`, as ranges [first, last]."""
        wanted = np.isin(self.ranks, np.fromiter(ranks, dtype=np.int64))
        held = [place for place, line in enumerate(self.lines) if wanted[line.columns].any()]
        spans: list[list[int]] = []
        for place in held:
            if spans and spans[-1][1] == place - 1:
                spans[-1][1] = place
            else:
                spans.append([place, place])
        return spans


def lay_out(scene: "ExplanationContext", found: "RankFigures", incidents: "Sequence[Incident]", by: str) -> Layout:
    """Return the rows of a map; `by` is `node` or a kind of domain; ranks without one come last."""
    group_R, names = _groups(scene, found.ranks, by)
    is_whole = len(found.ranks) <= LINES_MAX
    single = np.arange(len(found.ranks)) if is_whole else _worst(found, incidents)
    single = single[np.lexsort((found.ranks[single], group_R[single]))]
    used, place_of = np.unique(group_R[single], return_inverse=True)
    lines = [GridLine(single[place : place + 1], int(place_of[place])) for place in range(len(single))]
    groups = [(names[group][:_NAME_MAX], np.flatnonzero(group_R == group)) for group in used]
    note = ""
    if not is_whole:
        blocks = _blocks(np.setdiff1d(np.arange(len(found.ranks)), single), group_R, names)
        lines += [GridLine(columns, len(groups) + place) for place, (_, columns) in enumerate(blocks)]
        groups += blocks
        note = (
            f"{len(found.ranks)} ranks: the {len(single)} with the longest own work against their peers, or in an "
            f"incident, have a row each; of the others {len(blocks)} rows show the median of their ranks."
        )
    return Layout(
        lines=tuple(lines),
        groups=tuple((name, spans_text(found.ranks[columns].tolist())) for name, columns in groups),
        ranks=found.ranks,
        hosts=tuple(scene.hostname(int(found.ranks[line.columns[0]]))[:_NAME_MAX] for line in lines),
        domains=_domains(scene, found.ranks, lines),
        note=note,
    )


def kinds_of(scene: "ExplanationContext") -> list[str]:
    """Return the kinds by which a map can be grouped."""
    return [NODE, *dict.fromkeys(domain.kind for domain in scene.topology.domains)]


def _groups(scene: "ExplanationContext", ranks: "NDArray[np.int64]", by: str) -> "tuple[NDArray[np.int64], list[str]]":
    """Return the group of each rank, array of shape (R,), and the names of the groups in order of appearance."""
    if by == NODE:
        hosts = [scene.hostname(rank) or _NONE for rank in ranks.tolist()]
        number_of = {name: number for number, name in enumerate(dict.fromkeys(hosts))}
        return np.array([number_of[host] for host in hosts], dtype=np.int64), list(number_of)
    domains = [domain for domain in scene.topology.domains if domain.kind == by]
    group_R = np.full(len(ranks), len(domains), dtype=np.int64)
    for number, domain in enumerate(domains):
        column = np.minimum(np.searchsorted(ranks, domain.ranks), len(ranks) - 1)
        group_R[column[ranks[column] == domain.ranks]] = number
    return group_R, [*(domain.name for domain in domains), _NONE]


def _worst(found: "RankFigures", incidents: "Sequence[Incident]") -> "NDArray[np.intp]":
    """Return the columns of ranks with their own row: those of incidents, then those with the longest own work."""
    named = [rank for incident in incidents for rank in incident.ranks[:_NAMED_RANKS]][:_NAMED_RANKS]
    excess_R = np.nan_to_num(found.excess_R, nan=-np.inf)
    excess_R[np.isin(found.ranks, named)] = np.inf
    return np.argsort(-excess_R, kind="stable")[:_WORST_LINES]


def _blocks(
    columns: "NDArray[np.intp]", group_R: "NDArray[np.int64]", names: "Sequence[str]"
) -> "list[tuple[str, NDArray[np.intp]]]":
    """Return blocks of the other ranks by group; groups are combined if there are more than rows."""
    ordered = columns[np.argsort(group_R[columns], kind="stable")]
    used, first = np.unique(group_R[ordered], return_index=True)
    together = -(-len(used) // (LINES_MAX - _WORST_LINES))
    parts = np.split(ordered, first[together::together])
    if len(used) == 1:  # one group of thousands, as in a data-parallel job
        parts = np.array_split(ordered, LINES_MAX - _WORST_LINES)
    blocks = []
    for part in parts:
        begin, end = names[int(group_R[part[0]])], names[int(group_R[part[-1]])]
        name = begin if begin == end else f"{begin[: _NAME_MAX // 2]} ... {end[: _NAME_MAX // 2]}"
        blocks.append((name[: _NAME_MAX + 5], part))
    return blocks


def _domains(scene: "ExplanationContext", ranks: "NDArray[np.int64]", lines: "Sequence[GridLine]") -> tuple[str, ...]:
    """Return the names of the domains of each line of one rank; empty for a line of several."""
    names: dict[int, list[str]] = {int(ranks[line.columns[0]]): [] for line in lines if len(line.columns) == 1}
    for domain in scene.topology.domains:
        for rank in names.keys() & domain.ranks:
            if len(names[rank]) < _DOMAINS_MAX:
                names[rank].append(domain.name[:_NAME_MAX])
    return tuple(" ".join(names[int(ranks[line.columns[0]])]) if len(line.columns) == 1 else "" for line in lines)


def spans_text(ranks: "Sequence[int]") -> str:
    """Format ranks: `0-7`, `3, 11, ... 59`; of many ranges, the first ones and a count."""
    spans = pack_ranks(ranks)
    texts = [_span_text(*span) for span in spans[:_SPANS_MAX]]
    return ", ".join(texts) + (f" and more, {len(ranks)} ranks" if len(spans) > _SPANS_MAX else "")


def _span_text(start: int, stop: int, step: int) -> str:
    ranks = range(start, stop, step)
    last = ranks[-1]
    if len(ranks) == 1:
        return str(start)
    return f"{start}-{last}" if step == 1 else f"{start}, {ranks[1]}" + (f" ... {last}" if len(ranks) > 2 else "")  # noqa: PLR2004
