"""The purpose of a process group by its description, and which part of a grid of ranks a group covers.

`lockstep.agent.kinds` applies this while a job trains, and adds other sources.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from math import prod

from lockstep.contracts.domains import Domain

PRECEDENCE = ("dp", "ep", "tp", "cp", "pp")
"""The kind of a group that spans several axes of the grid. A group that replicas or shards of the data take part in
moves gradients and parameters, whatever else it spans; experts' tokens travel over tensor x expert groups; norms over
the whole model are gathered in tensor x pipeline groups."""

_WORDS = {
    "dp": frozenset(("dp", "edp", "ddp", "fsdp", "efsdp", "hsdp", "data", "replicate", "replica", "shard", "zero")),
    "ep": frozenset(("ep", "expert", "moe")),
    "tp": frozenset(("tp", "etp", "tensor")),
    "cp": frozenset(("cp", "sp", "context", "sequence", "ulysses")),
    "pp": frozenset(("pp", "pipe", "pipeline", "stage")),
}
# Descriptions whose words alone would have no meaning or a wrong one.
_NAMES = {
    # Megatron-LM, megatron/core/parallel_state.py
    "embedding_group": ("pp",),  # first and last pipeline stage share their embedding
    "position_embedding_group": ("pp",),
    "model_parallel_group": ("tp", "pp"),  # carries the gradient's norm
    "expert_tensor_parallel_group": ("tp",),
    "hybrid_dp_cp_group": ("cp",),  # parts of a dp x cp group that share long sequences
    # torchtitan, torchtitan/distributed/parallel_dims.py
    "mesh_batch": ("dp",),
    "mesh_loss": ("dp",),
    # the customary pair of dimensions `data` and `model`
    "mesh_model": ("tp",),
    "mesh_mp": ("tp",),
}
_SPLIT = re.compile(r"[^a-z]+")


def described_kinds(description: str) -> tuple[str, ...]:
    """Return the kinds that a group's description names, in the order of PRECEDENCE; empty if it names none.

    Only whole words count. torch's own descriptions (`default_pg`, `undefined`, `mesh_default`, `mesh_dim_0`) name
    none.
    """
    words = [word for word in _SPLIT.split(description.lower()) if word]
    known = _NAMES.get("_".join(words))
    return known or tuple(kind for kind in PRECEDENCE if not _WORDS[kind].isdisjoint(words))


def spanned_kind(kinds: Sequence[str], ranks: Collection[int], domains: Iterable[Domain]) -> str | None:
    """Choose one of the `kinds` that a group's description names, by its `ranks`; None if it names none.

    Megatron-LM's names do not depend on sizes: its tensor x pipeline group is the pipeline's own group if the
    tensor-parallel size is 1. An axis of size 1 is not spanned. `domains` are those of members, each of one kind only;
    without them the names decide. Groups that span replicas of the data move gradients: they stay `dp`.
    """
    if len(kinds) < 2 or kinds[0] == "dp":  # noqa: PLR2004  (one kind is no choice)
        return first_kind(kinds)
    spanned = [domain for domain in domains if domain.kind in kinds and len(domain.ranks) > 1]
    return covered_kind(ranks, spanned) or first_kind(kinds)


def covered_kind(ranks: Collection[int], domains: Iterable[Domain]) -> str | None:
    """Return the kind of a group of `ranks` that equals one of `domains` or a product of several, otherwise None.

    `domains` are those of one member, one of each kind. A group that holds a whole data-parallel domain is data
    parallel.
    """
    members = frozenset(ranks)
    covered = {domain.kind: len(domain.ranks) for domain in domains if members.issuperset(domain.ranks)}
    if "dp" in covered:
        return "dp"
    return first_kind(covered) if prod(covered.values()) == len(members) else None


def first_kind(kinds: Collection[str]) -> str | None:
    """Return the kind that takes precedence, or None if there are no kinds."""
    return next((kind for kind in PRECEDENCE if kind in kinds), None)
