"""The communication of a rank in sqlite: the tables of analysis.db that hold what communication.json holds.

Units are those of communication.json: times ms, sizes MB.
"""

from pathlib import Path
from typing import Any

from lockstep.trace.ascend.communication import AscendCommunication, CommunicationGatherer, EntryName
from lockstep.trace.ascend.database import DATABASE_MAX_BYTES, Database, opened
from lockstep.trace.ascend.texts import integer
from lockstep.trace.columns import ABSENT

_KEYS = (("hccl_op_name",), ("group_name",), ("step",), ("type",))
_STEP_PREFIX = "step"


def load_database_communication(path: Path, *, max_bytes: int = DATABASE_MAX_BYTES) -> AscendCommunication:
    """Return the operators of CommAnalyzerTime with the links of CommAnalyzerBandwidth.

    Raises
    ------
    MalformedError
        The file cannot be read, is too large, is no such database, or a table lacks a column.
    """
    gatherer = CommunicationGatherer()
    numbered: dict[tuple[str, str, str], int] = {}
    times = ("start_timestamp", "elapse_time", "transit_time", "wait_time", "synchronization_time", "idle_time")
    with opened(path, max_bytes=max_bytes) as database:
        wanted = [*_KEYS, *((name,) for name in times)]
        for block in database.blocks("CommAnalyzerTime", wanted, required=2):
            for name, group, step, kind, *values in block:
                numbered[str(name), str(group), str(step)] = len(numbered)
                gatherer.add_operator(_named(name, group, step, kind), tuple(map(_number, values)))
        for key, kind, totals, sizes in _links(database):
            if key in numbered:
                gatherer.add_link(numbered[key], kind, totals, sizes)
            else:
                gatherer.dropped_count += 1
    return gatherer.communication()


def _links(database: Database) -> list[tuple[tuple[str, str, str], str, tuple[float, float, float], list[Any]]]:
    """Return links with their packets; the table has a row for each size of packets."""
    columns = ("transport_type", "transit_size", "transit_time", "large_packet_ratio")
    packets = ("package_size", "count", "total_duration")
    wanted = [*_KEYS, *((name,) for name in (*columns, *packets))]
    found: dict[tuple[str, str, str, str], tuple[tuple[float, float, float], list[Any]]] = {}
    for block in (
        database.blocks("CommAnalyzerBandwidth", wanted, required=7) if database.has("CommAnalyzerBandwidth") else ()
    ):
        for name, group, step, _kind, transport, size, time, large, *packet in block:
            key = (str(name), str(group), str(step), str(transport))
            totals, sizes = found.setdefault(key, ((_number(size), _number(time), _number(large)), []))
            if totals[0] > 0 and _number(packet[1]) > 0:
                sizes.append(tuple(map(_number, packet)))
    return [(key[:3], key[3], totals, sizes) for key, (totals, sizes) in found.items() if totals[0] > 0]


def _named(name: Any, group: Any, step: Any, kind: Any) -> EntryName:
    return EntryName(integer(str(step).removeprefix(_STEP_PREFIX)), str(kind), str(name), str(group), (), ABSENT)


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) else float("nan")
