"""The metrics of an exporter about the collectives that the NCCL Inspector of a rank has timed."""

from lockstep.contracts.metric import Level, Metric, Type

POINT_TO_POINT = ("Send", "Recv", "SendRecv")
OTHER_OPERATION = "other"
INSPECTOR_OPERATIONS = (
    *("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll", "Gather", "Scatter"),
    *POINT_TO_POINT,
    OTHER_OPERATION,
)
"""NCCL's names (`ncclFuncToString`); any other name becomes `other`."""
PLACES_MAX = 16
"""Limit on the pairs of communicator and operation with their own series per rank: three each for tp, cp, ep and dp,
and two for a pipeline. Further pairs share `other`, so that a scrape of 64 ranks stays below its sample limit."""
LINE_OUTCOMES = ("read", "malformed", "foreign")
"""Counted for a rank; not a line of the Inspector; from a process that is not a rank of a run here."""


def _of_operation(name: str, type_: Type, help_: str, level: Level = "full") -> Metric:
    labels = ("run", "rank", "communicator", "operation")
    return Metric(name=f"lockstep_nccl_{name}", type=type_, help=help_, source="exporter", labels=labels, level=level)


INSPECTED: tuple[Metric, ...] = (
    _of_operation("operations_total", "counter", "Operations that the NCCL Inspector of a rank has timed.", "default"),
    _of_operation(
        "operation_time_seconds_total",
        "counter",
        "Time of these operations' kernels, by the device's clock; it includes the wait of a rank that arrives early.",
        "default",
    ),
    _of_operation(
        "operation_bytes_total",
        "counter",
        "Bytes of these operations' messages; divided by the time, the algorithmic bandwidth.",
    ),
    _of_operation(
        "operation_bus_bytes_total",
        "counter",
        "Bytes that these operations moved over the slowest link; divided by the time, the bus bandwidth.",
        "default",
    ),
    _of_operation(
        "last_arrivals_total",
        "counter",
        "Collectives for which the others waited for this rank, of communicators whose ranks are all on this node.",
        "default",
    ),
    _of_operation(
        "last_arrival_wait_seconds_total",
        "counter",
        "Time that the median of the other ranks waited for this rank in those collectives.",
        "default",
    ),
    Metric(
        name="lockstep_exporter_inspector_lines_total",
        type="counter",
        help="Lines of NCCL Inspectors: counted for a rank (read), not a line of an Inspector (malformed), of a "
        "process that is not a rank of a run on this node (foreign).",
        source="exporter",
        level="default",
        is_optional=True,
        labels=("outcome",),
        values=LINE_OUTCOMES,
    ),
    Metric(
        name="lockstep_exporter_inspector_dropped_bytes_total",
        type="counter",
        help="Bytes of NCCL Inspectors dropped unread, because they came faster than the exporter reads.",
        source="exporter",
        level="default",
        is_optional=True,
    ),
    Metric(
        name="lockstep_exporter_inspector_lost_operations_total",
        type="counter",
        help="Operations that the plugins reported as lost before they were written.",
        source="exporter",
        level="default",
        is_optional=True,
    ),
)
