"""The cost of collectives: one table of algorithms, with launches, rounds and bytes per link.

A group of n ranks moves V bytes in `launches * (launch + sync) + rounds * step + ratio * V / bandwidth`. V is the
whole tensor of the group: what every rank holds after an all-gather and an all-reduce, and before a reduce-scatter; the
local buffer of an all-to-all; the message of a send. The link's bandwidth is one direction's, in bytes a second.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2

from lockstep.contracts.errors import ConfigError

ALL_REDUCE = "all_reduce"
ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"
ALL_TO_ALL = "all_to_all"
SEND = "send"
KINDS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND)

RING = "ring"
RELAUNCHED_RING = "relaunched_ring"
TREE = "tree"
DIRECT = "direct"
CSC = "csc"
HIERARCHICAL = "hierarchical"
DEEPEP = "deepep"
HYBRIDEP = "hybridep"
ONCE = (DEEPEP, HYBRIDEP)
"""Algorithms that send a token once to each node, and forward it once to each rank there."""

_HALVES = (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link as seen by a message: bandwidth of one direction, fixed costs of launch, synchronisation and step."""

    bytes_per_second: float
    launch_s: float = 0.0
    sync_s: float = 0.0
    step_s: float = 0.0

    def scaled(self, bandwidth: float, latency: float) -> "Link":
        """Return the link with its bandwidth and its fixed costs times these ratios."""
        return Link(
            bytes_per_second=self.bytes_per_second * bandwidth,
            launch_s=self.launch_s * latency,
            sync_s=self.sync_s * latency,
            step_s=self.step_s * latency,
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """A collective on links: `launches` and `rounds` pay fixed costs, `ratio` times V bytes pass each link."""

    launches: float
    rounds: float
    ratio: float

    def latency_s(self, link: Link) -> float:
        """Return the time of the collective without any bytes."""
        return self.launches * (link.launch_s + link.sync_s) + self.rounds * link.step_s

    def seconds(self, volume_bytes: float, link: Link) -> float:
        """Return the time to move `volume_bytes` over links like `link`."""
        return self.latency_s(link) + self.ratio * volume_bytes / link.bytes_per_second


FREE = Cost(0, 0, 0.0)


def _ring(kind: str, n: int) -> Cost:
    if kind == SEND:
        return Cost(1, 1, 1.0)
    rounds = 2 * (n - 1) if kind == ALL_REDUCE else n - 1
    return Cost(1, rounds, rounds / n)


def _relaunched_ring(kind: str, n: int) -> Cost:
    """Every round is launched and synchronised by the host (SW-IntraCC, equation 3)."""
    cost = _ring(kind, n)
    return Cost(cost.rounds, cost.rounds, cost.ratio)


def _csc(kind: str, n: int) -> Cost:
    """One launch and one synchronisation, then n - 1 reads of shared memory (SW-IntraCC, equation 4)."""
    cost = _ring(kind, n)
    return Cost(2 if kind == ALL_REDUCE else 1, cost.rounds, cost.ratio)


def _tree(kind: str, n: int) -> Cost:
    """Two binary trees, each with half of the data: a rank sends V upwards and V downwards (Sanders et al., 2009)."""
    if kind != ALL_REDUCE:
        raise ConfigError(f"algorithm in collective {kind}: got {TREE!r}, expected one of {algorithms(kind)}")
    return Cost(1, 2 * ceil(log2(n)), 2.0)


def _direct(kind: str, n: int) -> Cost:
    """All ranks exchange data at once: as many bytes as the ring, in one round for each half."""
    cost = _ring(kind, n)
    return Cost(1, 2 if kind == ALL_REDUCE else 1, cost.ratio)


ALGORITHMS: Mapping[str, Callable[[str, int], Cost]] = {
    RING: _ring,
    RELAUNCHED_RING: _relaunched_ring,
    TREE: _tree,
    DIRECT: _direct,
    CSC: _csc,
}
"""Algorithms on one kind of link. HIERARCHICAL is made of them, level by level: `hierarchical_seconds`."""
_OF_SEVERAL_LEVELS = {HIERARCHICAL: ALL_REDUCE, DEEPEP: ALL_TO_ALL, HYBRIDEP: ALL_TO_ALL}
"""Algorithms that treat links within a node and between nodes differently, and the collective that each performs."""


def algorithms(kind: str) -> tuple[str, ...]:
    """Return the names of the algorithms that can perform `kind`."""
    names = tuple(name for name in ALGORITHMS if name != TREE or kind == ALL_REDUCE)
    return (*names, *(name for name, made in _OF_SEVERAL_LEVELS.items() if made == kind))


@lru_cache(maxsize=256)
def collective_cost(kind: str, algorithm: str, n: int) -> Cost:
    """Return the cost of `kind` among `n` ranks; one rank costs nothing.

    Raises
    ------
    ConfigError
        No such kind or algorithm, or one that cannot perform the other.
    """
    if kind not in KINDS:
        raise ConfigError(f"collective: got {kind!r}, expected one of {KINDS}")
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"algorithm in collective {kind}: got {algorithm!r}, expected one of {algorithms(kind)}")
    return FREE if n == 1 else ALGORITHMS[algorithm](kind, n)


def collective_seconds(kind: str, algorithm: str, n: int, volume_bytes: float, link: Link) -> float:
    """Return the time of `kind` among `n` ranks that have their links to themselves."""
    return collective_cost(kind, algorithm, n).seconds(volume_bytes, link)


def hierarchical_seconds(n_inner: int, n_outer: int, volume_bytes: float, inner: Link, rail: Link) -> float:
    """Return the time of an all-reduce by levels: reduce-scatter inside, all-reduce between, all-gather inside.

    `rail` is what one rank of a domain has of the way out; the domain's ranks use their rails at once.
    """
    halves = sum(collective_seconds(kind, RING, n_inner, volume_bytes, inner) for kind in _HALVES[:2])
    return halves + collective_seconds(ALL_REDUCE, RING, n_outer, volume_bytes / n_inner, rail)
