"""What a process group is for: from its description and its ranks to a domain kind.

Three sources, the first that answers wins (docs/domains.md):

1. the description that the framework gave the group (Megatron-LM's group names, DeviceMesh's `mesh_<dimension>`);
2. the parallel degrees that the environment configures: what part of the grid the ranks cover;
3. a named group of the same ranks: groups are made twice for overlap or for another backend.

Else a group of everybody is `world` and any other one `dp`. Shape alone is no source: tensor, context and expert
parallel groups, the shards of a hybrid sharded job and replicas inside a pipeline stage all make the same contiguous
groups crossed by the same strided ones, and a wrong `tp` or `pp` would take peers from each other.

May live here: names and sets of ranks. May not: torch, state.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from math import prod

from lockstep.contracts.domains import DEFAULT_ORDER, Domain, domains_of_rank, parse_degrees
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.limits import NAME_MAX_BYTES
from lockstep.contracts.paths import is_name

DEGREES_VARIABLE = "LOCKSTEP_DEGREES"
"""Parallel degrees of the job, such as `tp=2,dp=4,pp=1`."""
ORDER_VARIABLE = "LOCKSTEP_ORDER"
"""Their order, the fastest varying first; Megatron-LM's if not given."""

PRECEDENCE = ("dp", "ep", "tp", "cp", "pp")
"""Which kind a group is of that spans several axes of the grid. What replicas or shards of the data take part in moves
gradients and parameters, whatever else it spans; experts' tokens travel over tensor x expert groups; norms over the
whole model are gathered in tensor x pipeline groups."""

_WORDS = {
    "dp": frozenset(("dp", "edp", "ddp", "fsdp", "efsdp", "hsdp", "data", "replicate", "replica", "shard", "zero")),
    "ep": frozenset(("ep", "expert", "moe")),
    "tp": frozenset(("tp", "etp", "tensor")),
    "cp": frozenset(("cp", "sp", "context", "sequence", "ulysses")),
    "pp": frozenset(("pp", "pipe", "pipeline", "stage")),
}
# Descriptions whose words alone would say nothing or mislead.
_NAMES = {
    # Megatron-LM, megatron/core/parallel_state.py
    "embedding_group": "pp",  # first and last pipeline stage share their embedding
    "position_embedding_group": "pp",
    "model_parallel_group": "tp",  # tensor x pipeline; carries the gradient's norm
    "expert_tensor_parallel_group": "tp",
    "hybrid_dp_cp_group": "cp",  # parts of a dp x cp group that share long sequences
    # torchtitan, torchtitan/distributed/parallel_dims.py
    "mesh_batch": "dp",
    "mesh_loss": "dp",
    # the customary pair of dimensions `data` and `model`
    "mesh_model": "tp",
    "mesh_mp": "tp",
}
_SPLIT = re.compile(r"[^a-z]+")
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")


def named_kind(description: str) -> str | None:
    """Return the kind that a group's description tells, None if it tells none.

    Whole words decide, parts of words do not. torch's own descriptions (`default_pg`, `undefined`, `mesh_default`,
    `mesh_dim_0`) tell none.
    """
    words = [word for word in _SPLIT.split(description.lower()) if word]
    kind = _NAMES.get("_".join(words))
    if kind is None:
        kind = _first([kind for kind, known in _WORDS.items() if not known.isdisjoint(words)])
    return kind


def covered_kind(ranks: Collection[int], domains: Iterable[Domain]) -> str | None:
    """Return the kind of a group of `ranks` that is one of `domains` or several of them multiplied, else None.

    `domains` are those of one member, one of each kind. A group that holds a whole data-parallel domain is data
    parallel.
    """
    members = frozenset(ranks)
    covered = {domain.kind: len(domain.ranks) for domain in domains if members.issuperset(domain.ranks)}
    if "dp" in covered:
        return "dp"
    return _first(covered) if prod(covered.values()) == len(members) else None


def _first(kinds: Collection[str]) -> str | None:
    return next((kind for kind in PRECEDENCE if kind in kinds), None)


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


def unnamed_kind(
    ranks: Collection[int], world_size: int, configured: Collection[Domain], named: Iterable[Domain]
) -> str:
    """Return the kind of a group that says nothing: by configured domains, by named ones, else `world` or `dp`.

    Both are domains of one member of the group. A group of everybody is `world`, unless one configured kind alone
    makes up the whole job.
    """
    if len(ranks) == world_size:
        return _first([domain.kind for domain in configured if len(domain.ranks) == world_size]) or "world"
    members = tuple(sorted(ranks))
    return covered_kind(members, configured) or _first([d.kind for d in named if d.ranks == members]) or "dp"


def announced_name(description: str, name: str) -> str:
    """Return a name for a group, unique among the groups of a job, that may stand in a path and a label."""
    both = name if description in ("", "undefined") else f"{description}-{name}"
    clean = _FOREIGN.sub("_", both).lstrip("._-")[:NAME_MAX_BYTES]
    return clean if is_name(clean) else "group"
