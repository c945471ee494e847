"""What a process group is for: from its description and its ranks to an index into DOMAIN_KINDS.

Descriptions come from the frameworks: Megatron-LM's are a table, DeviceMesh writes `mesh_<dimension>`, others carry a
word. A group that says nothing is `world` if it holds every rank and `dp` otherwise: replicas of some work, the most
common reason to make a group by hand.
"""

import re

from lockstep.contracts.limits import NAME_MAX_BYTES
from lockstep.contracts.paths import is_name
from lockstep.contracts.records import DOMAIN_KINDS

# Megatron-LM's group descriptions (megatron/core/parallel_state.py) whose words alone would mislead.
_MEGATRON = {
    "EMBEDDING_GROUP": "pp",  # first and last pipeline stage share their embedding
    "POSITION_EMBEDDING_GROUP": "pp",
    "MODEL_PARALLEL_GROUP": "tp",  # tensor x pipeline; carries the gradient norm
    "TENSOR_AND_DATA_PARALLEL_GROUP": "dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp",
    "EXPERT_DATA_PARALLEL_GROUP": "dp",
    "EXPERT_TENSOR_PARALLEL_GROUP": "tp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "ep",
}
_WORDS = {
    "tp": ("tp", "tensor"),
    "cp": ("cp", "context", "sequence", "sp", "ulysses"),
    "ep": ("ep", "expert", "moe"),
    "pp": ("pp", "pipe", "pipeline"),
    "dp": ("dp", "ddp", "fsdp", "hsdp", "data", "replicate", "shard", "zero"),
}
_SPLIT = re.compile(r"[^a-z]+")
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")


def kind_index(description: str, group_size: int, world_size: int) -> int:
    """Return the index in DOMAIN_KINDS of a group that torch describes as `description`."""
    kind = _MEGATRON.get(description)
    if kind is None:
        words = set(_SPLIT.split(description.lower()))
        kind = next((kind for kind, known in _WORDS.items() if words.intersection(known)), None)
    if kind is None:
        kind = "world" if group_size == world_size else "dp"
    return DOMAIN_KINDS.index(kind)


def announced_name(description: str, name: str) -> str:
    """Return a name for a group, unique among the groups of a job, that may stand in a path and a label."""
    both = name if description in ("", "undefined") else f"{description}-{name}"
    clean = _FOREIGN.sub("_", both).lstrip("._-")[:NAME_MAX_BYTES]
    return clean if is_name(clean) else "group"
