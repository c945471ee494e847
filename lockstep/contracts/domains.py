"""Communication domains: sets of ranks that synchronise, and each rank's peers.

Domains come from the process groups that training created (announced by the agents), or from configured parallel
degrees in Megatron's order. Peers of a rank do the same work: same pipeline stage, different data or shard. A longer
last stage is therefore never compared with the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.contracts.limits import WORLD_SIZE_MAX
from lockstep.contracts.records import DOMAIN_KINDS

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
"""Fastest varying first, as Megatron-LM lays out its ranks."""

_SPAN_PARTS = 3


class Domain(NamedTuple):
    """Ranks that synchronise, ascending. `name` is unique within its kind."""

    kind: str
    name: str
    ranks: tuple[int, ...]


class Topology(NamedTuple):
    """All domains of one run, and the pipeline stage of each of its `world_size` ranks."""

    world_size: int
    domains: tuple[Domain, ...]
    stages: tuple[int, ...]

    @property
    def is_data_parallel(self) -> bool:
        """Whether one data-parallel domain holds every rank and there is no other; records may call it `world`."""
        return len(self.domains) == 1 and self.domains[0].kind == "dp" and len(self.domains[0].ranks) == self.world_size

    def of_rank(self, rank: int) -> list[Domain]:
        """Return the domains that `rank` belongs to."""
        return [domain for domain in self.domains if rank in domain.ranks]

    def peers(self, rank: int) -> list[int]:
        """Return the other ranks of the same stage, those that share a domain with `rank` first."""
        stage = self.stages[rank]
        near = {peer for domain in self.of_rank(rank) for peer in domain.ranks}
        same = [peer for peer in range(self.world_size) if peer != rank and self.stages[peer] == stage]
        return sorted(same, key=lambda peer: (peer not in near, peer))


def pack_ranks(ranks: Iterable[int]) -> list[list[int]]:
    """Return ascending ranks as [start, stop, step] ranges: a strided group of 10,000 ranks is three integers."""
    spans: list[list[int]] = []
    for rank in ranks:
        last = spans[-1] if spans else None
        if last is not None and rank == last[1] - 1 + last[2]:
            last[1] = rank + 1
        elif last is not None and last[1] - last[0] == 1:  # one rank so far: any stride may follow
            last[1], last[2] = rank + 1, rank - last[0]
        else:
            spans.append([rank, rank + 1, 1])
    return spans


def count_members(spans: Sequence[Sequence[int]], *, where: str, limit: int = WORLD_SIZE_MAX) -> int:
    """Return the number of ranks in ranges of `pack_ranks`, without unpacking: three integers can stand for a million.

    Raises
    ------
    MalformedError
        They are not ranges, not ascending, or contain a rank outside 0 to `limit` - 1.
    """
    members, last = 0, -1
    for span in spans:
        start, stop, step = span if len(span) == _SPAN_PARTS else (None, None, None)
        if not (type(start) is type(stop) is type(step) is int):
            raise MalformedError("rank range", where=where, got=span, expected="[start, stop, step]")
        if not (0 <= start < stop <= limit and 1 <= step <= limit):
            raise MalformedError("rank range", where=where, got=span, expected=f"inside 0 to {limit - 1}, ascending")
        if start <= last:
            raise MalformedError("rank range", where=where, got=span, expected=f"to begin after {last}")
        of_span = (stop - start + step - 1) // step
        members, last = members + of_span, start + (of_span - 1) * step
    return members


def unpack_ranks(spans: Sequence[Sequence[int]], *, where: str, limit: int = WORLD_SIZE_MAX) -> tuple[int, ...]:
    """Return the ranks that `pack_ranks` packed.

    Raises
    ------
    MalformedError
        As for `count_members`.
    """
    count_members(spans, where=where, limit=limit)
    return tuple(rank for span in spans for rank in range(*span))


def parse_degrees(text: str, *, where: str) -> dict[str, int]:
    """Parse degrees such as `tp=8,cp=1,ep=1,dp=16,pp=4`; a kind that is not named has degree 1.

    Raises
    ------
    ConfigError
        A kind is unknown or named twice, or a degree is not a positive integer.
    """
    degrees: dict[str, int] = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        kind, _, degree = part.partition("=")
        if kind not in DOMAIN_KINDS[:-1] or kind in degrees or not degree.isdecimal() or int(degree) < 1:
            kinds = ", ".join(DOMAIN_KINDS[:-1])
            raise ConfigError(f"{where}: got {part!r}, expected parallel degrees, KIND=N once for each of {kinds}")
        degrees[kind] = int(degree)
    return degrees


def check_order(order: str, *, where: str) -> list[str]:
    """Return the kinds that `order` names, fastest varying first.

    Raises
    ------
    ConfigError
        It is not an order of the kinds.
    """
    kinds = order.split("-")
    if sorted(kinds) != sorted(DOMAIN_KINDS[:-1]):
        raise ConfigError(f"{where}: got {order!r}, expected an order of {DEFAULT_ORDER!r}")
    return kinds


def from_degrees(degrees: Mapping[str, int], world_size: int, *, order: str = DEFAULT_ORDER) -> Topology:
    """Return the topology of a Megatron-style job; dp is the dense data-parallel size, which ep divides.

    Raises
    ------
    ConfigError
        The degrees do not multiply to `world_size`, ep does not divide dp, or `order` is not an order of the kinds.
    """
    grid = _grid(degrees, world_size, order)
    domains: list[Domain] = []
    for kind in grid:
        groups: dict[int, list[int]] = {}
        for rank in range(world_size):
            groups.setdefault(_first_member(grid, kind, rank), []).append(rank)
        domains += [Domain(kind, f"{kind}{n}", tuple(g)) for n, g in enumerate(groups.values()) if len(g) > 1]
    stride, size = grid["pp"]
    stages = tuple(rank // stride % size for rank in range(world_size))
    return Topology(world_size, tuple(domains), stages)


def domains_of_rank(
    degrees: Mapping[str, int], rank: int, world_size: int, *, order: str = DEFAULT_ORDER
) -> list[Domain]:
    """Return the domains of `rank` in the topology of `from_degrees`, named by kind, without visiting all ranks.

    Raises
    ------
    ConfigError
        As for `from_degrees`.
    """
    grid = _grid(degrees, world_size, order)
    domains: list[Domain] = []
    for kind in grid:
        members = [_first_member(grid, kind, rank)]
        for axis in _AXES.get(kind, (kind,)):
            stride, size = grid[axis]
            members = [member + index * stride for member in members for index in range(size)]
        if len(members) > 1:
            domains.append(Domain(kind, kind, tuple(sorted(members))))
    return domains


_AXES = {"dp": ("ep", "dp")}
"""ep splits dp, so the grid has an ep axis and an axis for the rest of dp."""


def _grid(degrees: Mapping[str, int], world_size: int, order: str) -> dict[str, tuple[int, int]]:
    """Return (stride, size) of each axis of the grid in which ranks are arranged, in order."""
    kinds = check_order(order, where="order")
    full = {kind: degrees.get(kind, 1) for kind in kinds}
    if full["dp"] % full["ep"]:
        raise ConfigError(f"ep: got {full['ep']}, expected a divisor of dp={full['dp']}")
    if prod(full[kind] for kind in kinds if kind != "ep") != world_size:
        raise ConfigError(f"parallel degrees: got {full}, expected tp*cp*dp*pp = world size {world_size}")
    sizes = {**full, "dp": full["dp"] // full["ep"]}
    grid: dict[str, tuple[int, int]] = {}
    stride = 1
    for kind in kinds:
        grid[kind] = (stride, sizes[kind])
        stride *= sizes[kind]
    return grid


def _first_member(grid: Mapping[str, tuple[int, int]], kind: str, rank: int) -> int:
    """Return the lowest rank of the domain of `kind` that holds `rank`."""
    axes = (grid[axis] for axis in _AXES.get(kind, (kind,)))
    return rank - sum(rank // stride % size * stride for stride, size in axes)


def from_groups(groups: Iterable[Domain], world_size: int) -> Topology:
    """Return the topology of announced process groups.

    Groups of one rank synchronise nothing and are dropped; a group announced by several nodes counts once. The stage of
    a rank is its place in its pipeline group, 0 without one. A job whose only domain holds every rank is data parallel:
    that domain is called dp.
    """
    unique: dict[tuple[str, tuple[int, ...]], Domain] = {}
    for group in groups:
        if len(group.ranks) > 1 and group.ranks[-1] < world_size:
            unique.setdefault((group.kind, group.ranks), group)
    domains = sorted(unique.values(), key=lambda d: (DOMAIN_KINDS.index(d.kind), d.ranks))
    if len(domains) == 1 and domains[0].kind == "world":
        domains = [Domain("dp", domains[0].name, domains[0].ranks)]
    stages = [0] * world_size
    for domain in domains:
        if domain.kind == "pp":
            for stage, rank in enumerate(domain.ranks):
                stages[rank] = stage
    return Topology(world_size, tuple(domains), tuple(stages))
