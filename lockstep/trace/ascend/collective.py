"""Parses the name of an HCCL operator, e.g. `hcom_allReduce__868_0_1`.

The operation is followed by the last three digits of the group's hash, the operator's number in the group and, in newer
versions, the number of the iteration. The hash is that of the group's id, which profiler_metadata.json lists with
ranks.
"""

import re
from collections.abc import Mapping

from lockstep.trace.columns import ABSENT, CollectiveArguments

_NAME = re.compile(r"hcom_([A-Za-z0-9]+?)_*__(\d{1,20})_(\d{1,9})(?:_(\d{1,9}))?(?:@(.+))?", re.ASCII)
_SUFFIX_DIGITS = 3
_ITERATION_SHIFT = 32
_HASH_PRIMES = (29, 131)
_MASK_32 = (1 << 32) - 1
_OUT_COUNTED = ("reducescatter",)  # HcclReduceScatter takes the count of what a rank receives

COUNT_MAX = 1 << 56
"""Elements of one collective; with the largest type below int64's end."""

BYTES_OF = {
    **dict.fromkeys(("INT8", "UINT8", "FP8E4M3", "FP8E5M2", "FP8E8M0", "HIF8"), 1),
    **dict.fromkeys(("INT16", "UINT16", "FP16", "BFP16", "BF16"), 2),
    **dict.fromkeys(("INT32", "UINT32", "FP32"), 4),
    **dict.fromkeys(("INT64", "UINT64", "FP64"), 8),
    "INT128": 16,
}
"""Bytes of an element, by HCCL's names of types."""


def group_hash(group_id: str) -> str:
    """Return the hash under which HCCL's rows name a group (two 32-bit polynomial hashes, one above the other)."""
    values = [0, 0]
    for byte in group_id.encode():
        values = [(value * prime + byte) & _MASK_32 for value, prime in zip(values, _HASH_PRIMES, strict=True)]
    return str(values[0] << 32 | values[1])


def by_suffix(hashes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return the hash by its last three digits, except digits that two groups share."""
    found: dict[str, list[str]] = {}
    for each in hashes:
        found.setdefault(each[-_SUFFIX_DIGITS:], []).append(each)
    return {suffix: each[0] for suffix, each in found.items() if len(each) == 1}


def arguments_of(
    name: str,
    *,
    count: int,
    data_type: str,
    group: str,
    groups: Mapping[str, tuple[int, ...]],
    suffixes: Mapping[str, str],
    group_names: Mapping[str, str],
) -> CollectiveArguments:
    """Return the collective of a row.

    `groups` are ranks by hash, `suffixes` what `by_suffix` made of them, `group_names` the training's names by hash.
    The sequence number holds the iteration in its upper half, so that it grows over iterations.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return CollectiveArguments(name=name, group=group, in_elements=count, dtype=data_type)
    operation = found[1].lower()
    key = found[5] or group or suffixes.get(found[2][-_SUFFIX_DIGITS:], found[2])
    ranks = groups.get(key)
    iteration = max(int(found[4] or 1) - 1, 0)
    counted = operation not in _OUT_COUNTED
    return CollectiveArguments(
        name=operation,
        group=key,
        description=group_names.get(key, ""),
        ranks=ranks,
        group_size=len(ranks) if ranks else ABSENT,
        in_elements=count if counted else ABSENT,
        out_elements=ABSENT if counted and operation != "allreduce" else count,
        dtype=data_type,
        sequence=iteration << _ITERATION_SHIFT | int(found[3]),
    )
