"""The tables of the vendor's analysis in sqlite: analysis.db, analysis_steptrace.db, cluster_analysis.db.

The same as step_trace_time.csv, communication.json and communication_matrix.json, in the same units: times of steps are
us (torch_npu converts them to us on writing, though its document has ms), those of communication ms, sizes MB.
"""

from pathlib import Path
from typing import Any

import numpy as np

from lockstep.trace.ascend.communication import AscendCommunication, CommunicationGatherer, Named
from lockstep.trace.ascend.database import DATABASE_MAX_BYTES, Database, integers, numbers, opened
from lockstep.trace.ascend.matrix import LinkMatrix, MatrixGatherer
from lockstep.trace.ascend.step_trace import RANK, TIMES, StepTimes, ranks_of
from lockstep.trace.ascend.texts import durations_ns, integer
from lockstep.trace.columns import ABSENT

_STEP_TABLES = ("StepTraceTime", "ClusterStepTraceTime")
_STEP_COLUMNS = {
    "computing_ns": "computing",
    "not_overlapped_ns": "communication_not_overlapped",
    "overlapped_ns": "overlapped",
    "communication_ns": "communication",
    "free_ns": "free",
    "stage_ns": "stage",
    "bubble_ns": "bubble",
    "not_overlapped_without_receive_ns": "communication_not_overlapped_and_exclude_receive",
    "preparing_ns": "preparing",
}
_REQUIRED_STEP_COLUMNS = 5
_KEYS = (("hccl_op_name",), ("group_name",), ("step",), ("type",))
_STEP_PREFIX = "step"


def load_database_step_times(path: Path, *, max_bytes: int = DATABASE_MAX_BYTES) -> StepTimes:
    """Return the step times of StepTraceTime or ClusterStepTraceTime.

    Raises
    ------
    MalformedError
        The file cannot be read, is too large, is no such database, or its table lacks a column.
    """
    with opened(path, max_bytes=max_bytes) as database:
        table = next((each for each in _STEP_TABLES if database.has(each)), _STEP_TABLES[0])
        wanted = [(name,) for name in _STEP_COLUMNS.values()] + [("step",), ("deviceId",), ("type",), ("index",)]
        rows = [row for block in database.blocks(table, wanted, required=_REQUIRED_STEP_COLUMNS) for row in block]
    columns = list(zip(*rows, strict=True)) or [()] * len(wanted)
    *times, steps, devices, kinds, indexes = columns
    assert tuple(_STEP_COLUMNS) == tuple(TIMES)
    return StepTimes(
        step=_steps(steps),
        device=integers(devices),
        kind=tuple(each if isinstance(each, str) else RANK for each in kinds),
        ranks=tuple(ranks_of(str(each)) for each in indexes),
        dropped_count=0,
        **{field: durations_ns(numbers(values)) for field, values in zip(_STEP_COLUMNS, times, strict=True)},
    )


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


def load_database_matrix(path: Path, *, max_bytes: int = DATABASE_MAX_BYTES) -> LinkMatrix:
    """Return the links of CommAnalyzerMatrix.

    Raises
    ------
    MalformedError
        The file cannot be read, is too large, is no such database, or its table lacks a column.
    """
    gatherer = MatrixGatherer()
    columns = ("src_rank", "dst_rank", "transport_type", "transit_size", "transit_time")
    before: tuple[Any, ...] | None = None
    with opened(path, max_bytes=max_bytes) as database:
        for block in database.blocks("CommAnalyzerMatrix", [*_KEYS, *((name,) for name in columns)], required=4):
            for name, group, step, kind, source, target, transport, size, time in block:
                if (name, group, step, kind) != before:
                    before = (name, group, step, kind)
                    gatherer.begin(_named(name, group, step, kind))
                gatherer.add(f"{source}-{target}", str(transport), _number(size), _number(time))
    return gatherer.matrix()


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


def _named(name: Any, group: Any, step: Any, kind: Any) -> Named:
    return Named(integer(str(step).removeprefix(_STEP_PREFIX)), str(kind), str(name), str(group), (), ABSENT)


def _steps(values: tuple[Any, ...]) -> Any:
    return np.array([integer(str(each).removeprefix(_STEP_PREFIX)) for each in values], np.int64)


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) else float("nan")
