"""One rank's collectives from any profiler: time, group, sequence number and bytes.

Shape suffix: C collectives in the order of their starts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.communication_causes.host_calls import called_ns
from lockstep.diagnosis.roofline.formats import item_bytes
from lockstep.diagnosis.roofline.launches import launching_operators
from lockstep.diagnosis.roofline.operands import Tensor, parse_operands
from lockstep.simulator.hardware.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    RING,
    SEND,
    collective_cost,
)
from lockstep.trace.columns import ABSENT, CollectiveArguments, TraceColumns, WorkKind

BROADCAST, REDUCE, GATHER, SCATTER, BARRIER, OTHER = ("broadcast", "reduce", "gather", "scatter", "barrier", "other")
ROOTED = frozenset((BROADCAST, REDUCE, GATHER, SCATTER))
"""Kinds that ranks leave at different times: a root that only sends does not wait for those that receive."""
_KINDS = (  # the first that the name contains, letters only
    ("allreduce", ALL_REDUCE),
    ("reducescatter", REDUCE_SCATTER),
    ("allgather", ALL_GATHER),
    ("alltoall", ALL_TO_ALL),
    ("broadcast", BROADCAST),
    ("send", SEND),
    ("recv", SEND),
    ("receive", SEND),
    ("barrier", BARRIER),
    ("reduce", REDUCE),
    ("gather", GATHER),
    ("scatter", SCATTER),
)
_LETTERS = re.compile(r"[^a-z]")
_NAME_CHARS = 256
_BYTES_MAX = 1 << 62

Group = tuple[str, tuple[int, ...]]
"""Name of a process group and its ranks, empty where the trace does not list them."""

_UNKNOWN = CollectiveArguments()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCollectives:
    """Collectives of one rank by start; arrays are int64 of shape (n_collectives,), ABSENT if unknown.

    `bytes` is the whole tensor of the group, as the simulator counts it: what each rank has after an all-reduce or an
    all-gather, or before a reduce-scatter. `transit_ns` is the transmission without waiting as reported by the vendor;
    `called_ns` is when the training thread called a collective of a host backend (`host_calls`).
    """

    rank: int
    kinds: list[str]
    groups: list[Group]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    bytes: NDArray[np.int64]
    sequence: NDArray[np.int64]
    transit_ns: NDArray[np.int64] | None = None
    called_ns: NDArray[np.int64] | None = None
    host: str = ""
    clock_is_shared: bool = False
    group_sizes: dict[Group, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kinds)


def grouped_by_role(parts: Sequence[RankCollectives], roles: Mapping[int, int]) -> list[RankCollectives]:
    """Assign collectives without a group to a group of the ranks that have one role.

    `roles` is what each rank does, e.g. its pipeline stage. Host backends do not name the group; without roles,
    collectives of two stages at different times would be matched, and the later stage would always look late.
    """
    members = {role: tuple(sorted(rank for rank, each in roles.items() if each == role)) for role in roles.values()}
    return [
        replace(each, groups=[group if any(group) else ("", members[roles[each.rank]]) for group in each.groups])
        if each.rank in roles
        else each
        for each in parts
    ]


def collective_kind(name: str) -> str:
    """Return what a collective of any backend does, by its name: one of the simulator's kinds or of this module's."""
    letters = _LETTERS.sub("", name[:_NAME_CHARS].lower())
    return next((kind for part, kind in _KINDS if part in letters), OTHER)


def bus_factor(kind: str, size: int) -> float:
    """Return the bytes over each link per byte of the group, for a ring of `size` ranks; NaN if unknown.

    2 (n-1)/n for an all-reduce, (n-1)/n for its halves and the all-to-all (nccl-tests, doc/PERFORMANCE.md).
    """
    if size < 2:  # noqa: PLR2004  (one rank has no link)
        return float("nan")
    if kind in (BROADCAST, REDUCE):
        return 1.0
    known = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND)
    return collective_cost(kind, RING, size).ratio if kind in known else float("nan")


def collectives_of(columns: TraceColumns, *, rank: int | None = None) -> RankCollectives:
    """Return the collectives of one rank's trace.

    If a device row does not name its kind, the operator that launched it does. `rank` overrides the trace's own.
    """
    events = np.flatnonzero(columns.work == WorkKind.COMMUNICATION)
    arguments = [columns.collectives.get(event) for event in events.tolist()]
    if columns.metadata.vendor == "ascend" and any(arguments):  # its rows of tasks lie inside those of collectives
        keep = [place for place, each in enumerate(arguments) if each is not None]
        events, arguments = events[keep], [arguments[place] for place in keep]
    order = np.argsort(columns.start_ns[events], kind="stable")
    events, arguments = events[order], [arguments[place] for place in order.tolist()]
    owner = launching_operators(columns, events)
    reported = [
        each or columns.collectives.get(int(operator)) or _UNKNOWN
        for each, operator in zip(arguments, owner.tolist(), strict=True)
    ]
    groups = [_group(each, columns) for each in reported]
    kinds = [
        collective_kind(each.name or columns.names[int(columns.name[event])])
        for each, event in zip(reported, events.tolist(), strict=True)
    ]
    sizes = {group: each.group_size for group, each in zip(groups, reported, strict=True) if each.group_size > 0}
    volume = [
        _bytes(kind, each, sizes.get(group, len(group[1]))) if each is not _UNKNOWN else _annotated(columns, event)
        for kind, each, group, event in zip(kinds, reported, groups, events.tolist(), strict=True)
    ]
    return RankCollectives(
        rank=columns.metadata.rank if rank is None else rank,
        kinds=kinds,
        groups=groups,
        start_ns=columns.start_ns[events],
        duration_ns=columns.duration_ns[events],
        bytes=np.array(volume, np.int64),
        sequence=np.array([each.sequence for each in reported], np.int64),
        called_ns=called_ns(columns, events, kinds, collective_kind),
        host=columns.metadata.host,
        clock_is_shared=columns.metadata.clock_is_shared,
        group_sizes={group: sizes.get(group, len(group[1])) for group in set(groups) if sizes.get(group) or group[1]},
    )


def _group(arguments: CollectiveArguments, columns: TraceColumns) -> Group:
    """Return the group of an event; if it names none, the trace's only group."""
    listed = columns.metadata.groups
    if not arguments.group and len(listed) == 1:
        return next(iter(listed.items()))
    return arguments.group, arguments.ranks or listed.get(arguments.group, ())


def _bytes(kind: str, arguments: CollectiveArguments, size: int) -> int:
    each = item_bytes(arguments.dtype)
    small, large = sorted((arguments.in_elements, arguments.out_elements))
    if each is None or large < 0:
        return ABSENT
    one_side = small < 0 and kind in (ALL_GATHER, REDUCE_SCATTER)  # HCCL counts one rank's part
    elements = large * size if one_side else large
    return elements * each if elements and elements < _BYTES_MAX // each else ABSENT


def _annotated(columns: TraceColumns, event: int) -> int:
    """Return the bytes of a host backend's annotation: those of its first tensor."""
    code = int(columns.shapes[event])
    operands = None if code == ABSENT else parse_operands(columns.shape_texts[code])
    tensor = operands.tensor(0) if operands is not None else None
    size = tensor.bytes if isinstance(tensor, Tensor) else None
    return size if size and size < _BYTES_MAX else ABSENT
