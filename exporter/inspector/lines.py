"""Parses lines of the Inspector's JSON mode, versions 4.x of its format: bytes in, checked values out. Pure.

The format follows the plugin's source (`plugins/profiler/inspector/inspector_json.cc` of NCCL 2.30; RCCL has a port of
it). A line holds one collective, one point-to-point operation, or the plugin's own drop counts. Every field comes from
a user's process: a field that is missing, mistyped or out of range makes the line malformed; unknown fields are
skipped.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.inspector_metrics import INSPECTOR_OPERATIONS, OTHER_OPERATION, POINT_TO_POINT

LINE_MAX_BYTES = 64 << 10
"""A verbose line has 250 bytes for each of up to 64 channels."""
_NS, _BYTES_PER_GB = 1_000, 1e9
_TIME_US_MAX = 86_400 * 1_000_000  # a collective that takes a day has hung
_GBS_MAX = 1e6

_Text = Annotated[str, msgspec.Meta(max_length=256)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=_TIME_US_MAX)]
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
_Bandwidth = Annotated[float, msgspec.Meta(ge=0.0, le=_GBS_MAX)] | Annotated[str, msgspec.Meta(max_length=8)]
"""GB/s; the plugin writes a NaN as text."""


class _Header(msgspec.Struct):
    id: _Text
    rank: _Rank
    n_ranks: _Size
    nnodes: _Size
    comm_name: _Text = ""


class _Metadata(msgspec.Struct):
    hostname: _Text
    pid: _Count


class _Collective(msgspec.Struct):
    coll: _Text
    coll_sn: _Count
    coll_msg_size_bytes: _Count
    coll_exec_time_us: _Time
    coll_busbw_gbs: _Bandwidth


class _PointToPoint(msgspec.Struct):
    p2p: _Text
    p2p_sn: _Count
    p2p_msg_size_bytes: _Count
    p2p_exec_time_us: _Time
    p2p_busbw_gbs: _Bandwidth


class _Dropped(msgspec.Struct):
    coll_dropped_since_last_dump: _Count = 0
    p2p_dropped_since_last_dump: _Count = 0


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    coll_perf: _Collective | None = None
    p2p_perf: _PointToPoint | None = None
    dump_stats: _Dropped | None = None


_DECODER = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedOperation:
    """One operation of one rank of a communicator, `dropped` records that the plugin lost before it, or both.

    `communicator` is its hash, `communicator_rank` the rank within it. `operation` is empty for a line of dropped
    records. `duration_ns` is the kernel's own; `bus_bytes` is bus bandwidth times duration, None if unknown.
    """

    communicator: str
    name: str
    communicator_rank: int
    rank_count: int
    node_count: int
    hostname: str
    pid: int
    operation: str = ""
    sequence: int = 0
    size_bytes: int = 0
    duration_ns: int = 0
    bus_bytes: float | None = None
    dropped: int = 0

    @property
    def is_collective(self) -> bool:
        """Whether all ranks of the communicator take part."""
        return self.operation != "" and self.operation not in POINT_TO_POINT


def parse_line(line: bytes) -> InspectedOperation | None:
    """Return a line's operation, or None if the line is of a kind that is not counted.

    Raises
    ------
    MalformedError
        It is not a line of the Inspector, or it names a rank outside its communicator.
    """
    try:
        parsed = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise MalformedError(
            "line", where="NCCL Inspector", got=f"{line[:80]!r}: {error}", expected="a JSON object of format 4"
        ) from None
    header = parsed.header
    if header.rank >= header.n_ranks:
        raise MalformedError("rank", where="NCCL Inspector", got=header.rank, expected=f"less than {header.n_ranks}")
    known = InspectedOperation(
        communicator=header.id,
        name=header.comm_name,
        communicator_rank=header.rank,
        rank_count=header.n_ranks,
        node_count=header.nnodes,
        hostname=parsed.metadata.hostname,
        pid=parsed.metadata.pid,
    )
    if parsed.coll_perf is not None:
        one = parsed.coll_perf
        return _measured(
            known, one.coll, one.coll_sn, one.coll_msg_size_bytes, (one.coll_exec_time_us, one.coll_busbw_gbs)
        )
    if parsed.p2p_perf is not None:
        other = parsed.p2p_perf
        return _measured(
            known, other.p2p, other.p2p_sn, other.p2p_msg_size_bytes, (other.p2p_exec_time_us, other.p2p_busbw_gbs)
        )
    if parsed.dump_stats is not None:
        lost = parsed.dump_stats.coll_dropped_since_last_dump + parsed.dump_stats.p2p_dropped_since_last_dump
        return replace(known, dropped=lost)
    return None


def _measured(
    known: InspectedOperation, operation: str, sequence: int, size_bytes: int, measured: tuple[int, float | str]
) -> InspectedOperation:
    """Return an operation; `measured` is its time in us and its bus bandwidth in GB/s, text for a NaN."""
    time_us, bus_gbs = measured
    return replace(
        known,
        operation=operation if operation in INSPECTOR_OPERATIONS else OTHER_OPERATION,
        sequence=sequence,
        size_bytes=size_bytes,
        duration_ns=time_us * _NS,
        bus_bytes=None if isinstance(bus_gbs, str) else bus_gbs * _BYTES_PER_GB * time_us * 1e-6,
    )
