# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""What slow groups have in common: a node, the whole network, or nothing.

Pure: groups in alarm in, verdicts out. A slow network card slows every group that leaves its node through it. Among
groups of two kinds (replicas and pipelines, for example) that node is the only one that all of them cross. Groups
inside one node carry no information about its card. With one kind alone most nodes remain candidates, because parallel
groups cross the same nodes; these groups are then reported together, since one of these nodes is the cause.

Shapes: G groups, K kinds, N nodes, M members.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from coordinator.settings.policy import LinkPolicy
    from lockstep.contracts.domains import Domain

JOB, NODE, GROUP = "job", "node", "group"
_SHARED_MIN = 2  # slow groups, or kinds of groups, needed to name what they have in common
_UNKNOWN = -1
_NODES_MAX = 64  # named at once; a job with more slow cards has a slow network


@dataclass(frozen=True, slots=True)
class LinkVerdict:
    """Groups (by index) that are slow for one reason.

    `node` is set for the scope node only, and `rank` if all groups meet in one rank of it: then its own card is slow.
    """

    scope: str
    groups: tuple[int, ...]
    node: str = ""
    rank: int | None = None

    def within(self, groups: "AbstractSet[int]") -> "LinkVerdict":
        """Return the verdict restricted to `groups`."""
        return replace(self, groups=tuple(group for group in self.groups if group in groups))


class Tomography:
    """Which nodes the groups of a run cross. `hosts[i]` is the node of `ranks[i]`; without it no node is known."""

    def __init__(
        self,
        domains: "Sequence[Domain]",
        kind_G: "NDArray[np.uint8]",
        ranks: "NDArray[np.int64]",
        hosts: "Sequence[str]",
    ) -> None:
        self._domains = domains
        self._kind_G = kind_G
        self._ranks = ranks
        self._sizes_K = np.bincount(kind_G)
        # Node numbers follow the order of names, so that unknown nodes, the last column below, are -1.
        self._names = sorted(set(hosts))
        number = {name: place for place, name in enumerate(self._names)}
        numbers = [*(number[name] for name in hosts), _UNKNOWN]
        self._node_R: NDArray[np.signedinteger] = np.array(numbers, dtype=np.min_scalar_type(-len(numbers)))
        self._crossings_KN = np.zeros((len(self._sizes_K), len(self._names)), dtype=np.int32)
        self.spans_G = np.zeros(len(domains), dtype=np.int32)
        """Number of known nodes that each group crosses."""
        if len(self._names) > 1:
            sizes_G = np.array([len(domain.ranks) for domain in domains])
            for size in np.unique(sizes_G).tolist():
                self._count_crossings(np.flatnonzero(sizes_G == size))

    def _count_crossings(self, groups: "NDArray[np.intp]") -> None:
        """Count the nodes of groups of one size, and the groups of each kind that cross a node."""
        members_GM = np.array([self._domains[group].ranks for group in groups.tolist()])
        nodes_GM = np.sort(self._nodes_of(members_GM), axis=1)
        is_new_GM = nodes_GM != _UNKNOWN
        is_new_GM[:, 1:] &= nodes_GM[:, 1:] != nodes_GM[:, :-1]
        self.spans_G[groups] = is_new_GM.sum(axis=1)
        is_new_GM &= self.spans_G[groups, None] > 1
        kinds_GM = np.broadcast_to(self._kind_G[groups, None], nodes_GM.shape)
        np.add.at(self._crossings_KN, (kinds_GM[is_new_GM], nodes_GM[is_new_GM]), 1)

    def _nodes_of(self, members: "NDArray[np.int64]") -> "NDArray[np.signedinteger]":
        """Return the node numbers of `members`, in an array of the same shape."""
        place = np.minimum(np.searchsorted(self._ranks, members), len(self._ranks) - 1)
        return self._node_R[np.where(self._ranks[place] == members, place, len(self._ranks))]

    def nodes(self, group: int) -> frozenset[int]:
        """Return the numbers of a group's known nodes."""
        if not self._names:
            return frozenset()
        nodes = self._nodes_of(np.array(self._domains[group].ranks))
        return frozenset(np.unique(nodes).tolist()) - {_UNKNOWN}

    def count(self, kind: int, node: str = "") -> int:
        """Return the number of groups of a kind; with `node`, only of those that cross it."""
        return int(self._crossings_KN[kind, self._names.index(node)] if node else self._sizes_K[kind])

    def ranks_of(self, node: str) -> tuple[int, ...]:
        """Return the ranks of a node, ascending."""
        return tuple(self._ranks[self._node_R[:-1] == self._names.index(node)].tolist())

    def explain(
        self, alarmed: "Iterable[int]", known: "Sequence[LinkVerdict]", policy: "LinkPolicy"
    ) -> list[LinkVerdict]:
        """Return verdicts that together contain each group in alarm once.

        Nodes and jobs among `known`, the previous verdicts, keep their groups: as alarms end one by one, the remaining
        groups would otherwise look like another problem.
        """
        rest = sorted(alarmed)
        verdicts = []
        job = self._whole_job(rest, known, policy)
        if job:
            verdicts.append(LinkVerdict(JOB, tuple(job)))
            rest = _without(rest, job)
        crossed = {group: nodes for group in rest if len(nodes := self.nodes(group)) > 1}
        for old in known:
            if old.scope == NODE and old.rank is None:
                verdicts += self._claim(self._names.index(old.node), crossed)
        while len(verdicts) < _NODES_MAX:
            node = self._common_node(crossed, policy)
            if node is None:
                break
            verdicts += self._claim(node, crossed)
        taken = [group for verdict in verdicts for group in verdict.groups]
        rest = _without(rest, taken)
        card = self._card(crossed)
        if card is not None:
            verdicts.append(card)
            rest = _without(rest, card.groups)
        return verdicts + self._merged(rest, crossed)

    def _whole_job(self, alarmed: "Sequence[int]", known: "Sequence[LinkVerdict]", policy: "LinkPolicy") -> list[int]:
        """Return the groups of the kinds of which most are slow, if no node can be the reason."""
        by_kind = self._by_kind(alarmed)
        whole = {int(self._kind_G[group]) for old in known if old.scope == JOB for group in old.groups}
        for kind, groups in by_kind.items():
            if len(groups) >= _SHARED_MIN and len(groups) > policy.job_share * self._sizes_K[kind]:
                common = set(self.nodes(groups[0]))
                crosses = len(common) > 1
                for group in groups[1:]:
                    common &= self.nodes(group)
                    if not common:
                        break
                if not (crosses and common):
                    whole.add(kind)
        return [group for kind in sorted(whole) for group in by_kind.get(kind, ())]

    def _common_node(self, crossed: "Mapping[int, frozenset[int]]", policy: "LinkPolicy") -> int | None:
        """Return the node whose card explains most of these groups; None if there is none, or no unique one."""
        slow: Counter[tuple[int, int]] = Counter()
        for group, nodes in crossed.items():
            kind = int(self._kind_G[group])
            slow.update((kind, node) for node in nodes)
        explained: Counter[int] = Counter()
        kinds: defaultdict[int, int] = defaultdict(int)
        for (kind, node), count in slow.items():
            if count >= policy.node_share * self._crossings_KN[kind, node]:
                explained[node] += count
                kinds[node] += 1
        if len(self._by_kind(crossed)) >= _SHARED_MIN:
            named = {node: count for node, count in explained.items() if kinds[node] >= _SHARED_MIN}
        else:  # of one kind: they must have nothing else in common
            named = {node: count for node, count in explained.items() if count == len(crossed) >= _SHARED_MIN}
        most = [node for node, count in named.items() if count == max(named.values())]
        return most[0] if len(most) == 1 else None

    def _claim(self, node: int, crossed: "dict[int, frozenset[int]]") -> list[LinkVerdict]:
        """Remove the groups that cross a node from `crossed`; return the verdict on its card, if any group does."""
        groups = tuple(group for group, nodes in crossed.items() if node in nodes)
        for group in groups:
            del crossed[group]
        return [LinkVerdict(NODE, groups, self._names[node])] if groups else []

    def _card(self, crossed: "Mapping[int, frozenset[int]]") -> LinkVerdict | None:
        """Return the verdict on one rank's own card: the only rank that all groups, of two kinds, share."""
        if len(self._by_kind(crossed)) < _SHARED_MIN:
            return None
        common = set.intersection(*(set(self._domains[group].ranks) for group in crossed))
        if len(common) != 1:
            return None
        rank = common.pop()
        place = int(np.searchsorted(self._ranks, rank))
        if place == len(self._ranks) or self._ranks[place] != rank:
            return None
        return LinkVerdict(NODE, tuple(crossed), self._names[self._node_R[place]], rank)

    def _merged(self, rest: "Sequence[int]", crossed: "Mapping[int, frozenset[int]]") -> list[LinkVerdict]:
        """Return a verdict for each group; groups of one kind that cross the same nodes share one."""
        parallel: dict[tuple[int, frozenset[int]], list[int]] = {}
        for group in rest:
            key = (int(self._kind_G[group]), crossed.get(group, frozenset({~group})))
            parallel.setdefault(key, []).append(group)
        return [LinkVerdict(GROUP, tuple(groups)) for groups in parallel.values()]

    def _by_kind(self, groups: "Iterable[int]") -> dict[int, list[int]]:
        by_kind: dict[int, list[int]] = {}
        for group in groups:
            by_kind.setdefault(int(self._kind_G[group]), []).append(group)
        return by_kind


def _without(groups: "Iterable[int]", taken: "Iterable[int]") -> list[int]:
    gone = set(taken)
    return [group for group in groups if group not in gone]
