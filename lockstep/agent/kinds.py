"""Determines the domain kind of a process group from its description and its ranks.

Three sources, in order of precedence (docs/domains.md):

1. the description that the framework gave the group (Megatron-LM's group names, DeviceMesh's `mesh_<dimension>`); of
   one that names several kinds, the first whose axis is longer than 1;
2. the parallel degrees configured in the environment, by the part of the grid that the ranks cover;
3. a named group of the same ranks, since frameworks create groups twice for overlap or for another backend.

Otherwise a group of all ranks is `world` and any other one `dp`. Shape alone is no source: tensor, context and expert
parallel groups, the shards of a hybrid sharded job and replicas inside a pipeline stage all form the same contiguous
groups crossed by the same strided ones, and a wrong `tp` or `pp` would separate peers.

May live here: names and sets of ranks. May not: torch, state.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from lockstep.contracts.domains import DEFAULT_ORDER, Domain, domains_of_rank, parse_degrees
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.kinds import covered_kind, first_kind, spanned_kind
from lockstep.contracts.paths import derived_name

DEGREES_VARIABLE = "LOCKSTEP_DEGREES"
"""Parallel degrees of the job, such as `tp=2,dp=4,pp=1`."""
ORDER_VARIABLE = "LOCKSTEP_ORDER"
"""Their order, the fastest varying first; Megatron-LM's if not given."""


Described = tuple[tuple[str, ...], str, tuple[int, ...]]
"""(kinds that the description names, at least one; name; ranks ascending) of a process group."""


def configured_domains(environ: Mapping[str, str], rank: int, world_size: int) -> list[Domain]:
    """Return the domains of `rank` by the degrees in `environ`, none if it has no degrees.

    Raises
    ------
    ConfigError
        The degrees are malformed or do not multiply to `world_size`; the message names the variable.
    """
    text = environ.get(DEGREES_VARIABLE)
    if not text:
        return []
    order = environ.get(ORDER_VARIABLE) or DEFAULT_ORDER
    try:
        degrees = parse_degrees(text, where=DEGREES_VARIABLE)
        return domains_of_rank(degrees, rank, world_size, order=order)
    except ConfigError as error:
        raise ConfigError(f"{DEGREES_VARIABLE}={text!r}, {ORDER_VARIABLE}={order!r}: {error}") from error


def group_kind(
    kinds: Sequence[str],
    ranks: Collection[int],
    world_size: int,
    configured: Sequence[Domain],
    described: Iterable[Described],
) -> str:
    """Return the kind of a group of `ranks` whose description names `kinds`.

    `configured` are the domains of one member, `described` its groups with a description: those that name one kind
    settle which of several another one has.
    """
    groups = list(described)
    known = [*configured, *(Domain(named[0], name, members) for named, name, members in groups if len(named) == 1)]
    kind = spanned_kind(kinds, ranks, known)
    if kind is not None:
        return kind
    named = [Domain(spanned_kind(each, members, known) or each[0], name, members) for each, name, members in groups]
    return unnamed_kind(ranks, world_size, configured, named)


def unnamed_kind(
    ranks: Collection[int], world_size: int, configured: Collection[Domain], named: Iterable[Domain]
) -> str:
    """Return the kind of a group without a description: by configured domains, by named ones, else `world` or `dp`.

    Both are domains of one member of the group. A group of everybody is `world`, unless one configured kind alone
    makes up the whole job.
    """
    if len(ranks) == world_size:
        return first_kind([domain.kind for domain in configured if len(domain.ranks) == world_size]) or "world"
    members = tuple(sorted(ranks))
    return covered_kind(members, configured) or first_kind([d.kind for d in named if d.ranks == members]) or "dp"


def announced_name(description: str, name: str) -> str:
    """Return a name for a group, unique among the groups of a job, that may stand in a path and a label."""
    both = name if description in ("", "undefined") else f"{description}-{name}"
    return derived_name(both) or "group"
