"""Traces as tables: `open_trace`."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

import pyarrow as pa

from lockstep.analysis.sources import SkippedPath, find_sources, load_source, rank_of
from lockstep.contracts.errors import LockstepError, MalformedError, NoTraceError
from lockstep.notebook import trace_tables
from lockstep.notebook.tables import Frame, shown, stacked
from lockstep.trace.columns import ABSENT, TraceColumns
from lockstep.trace.events_table import SCHEMA as EVENTS
from lockstep.trace.events_table import table_of

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def paths_of(paths: Paths) -> list[Path]:
    """Return one path or several as a list."""
    return [Path(each) for each in ([paths] if isinstance(paths, str | PathLike) else paths)]


def open_trace(path: Paths) -> "OpenTrace":
    """Load the traces below a path (or several paths), one for each rank; they stay in memory.

    Reads what `lockstep analyze` reads: Kineto (PyTorch; plain or .gz), output of Ascend's profilers, and columns
    that `lockstep analyze --out` stored. About 100 bytes of memory for each event.

    Raises
    ------
    NoTraceError
        No trace can be used.
    MalformedError
        Two traces are of one rank.
    """
    paths = paths_of(path)
    found = find_sources(paths)
    skipped, by_rank = list(found.skipped), dict[int, TraceColumns]()
    nameless = []
    for source in found.sources:
        try:
            loaded = load_source(source)
        except LockstepError as error:
            skipped.append(SkippedPath(str(source.path), str(error)))
            continue
        skipped += loaded.skipped
        rank = rank_of(source, loaded.columns)
        if rank == ABSENT:
            nameless.append(loaded.columns)
        elif rank in by_rank:
            got = f"a second trace of rank {rank}"
            raise MalformedError("trace", where=str(source.path), got=got, expected="one trace for each rank")
        else:
            by_rank[rank] = loaded.columns
    free = (number for number in range(len(by_rank) + len(nameless)) if number not in by_rank)
    by_rank |= dict(zip(list(free), nameless, strict=False))
    if not by_rank:
        raise NoTraceError([each.error for each in skipped])
    return OpenTrace(by_rank, skipped)


class OpenTrace:
    """The traces of one or several ranks; each method returns a pandas DataFrame, with `arrow=True` an Arrow table.

    Times are integer nanoseconds; the first column is the rank. `skipped` lists the paths that could not be used.
    Schemas with exact types: `lockstep.notebook.trace_tables`.
    """

    def __init__(self, by_rank: dict[int, TraceColumns], skipped: Sequence[SkippedPath]) -> None:
        self._by_rank = dict(sorted(by_rank.items()))
        self.skipped = tuple(skipped)

    def __repr__(self) -> str:
        events = sum(map(len, self._by_rank.values()))
        return f"<lockstep trace of {len(self._by_rank)} ranks, {events} events>"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks, in order; traces that name none are numbered from 0."""
        return tuple(self._by_rank)

    def kernels(self, *, arrow: bool = False) -> Frame:
        """Return the device's work by rank and name, most time first: kernels, copies and fills.

        Columns: rank int64; name string; work string (compute, memory, communication); count int64; total_ns, min_ns,
        max_ns int64; mean_ns, median_ns, std_ns float64 (std of the population); device_ratio float64 (share of the
        rank's device time, overlaps counted twice). Empty for a trace without a device.
        """
        return self._shown(trace_tables.KERNELS, trace_tables.kernels, arrow=arrow)

    def operators(self, *, arrow: bool = False) -> Frame:
        """Return the operators (`cpu_op`) by rank and name, most device time first, then most self time.

        Columns: rank int64; name string; count int64; total_ns int64 (a call inside one of the same name counts
        again); self_ns int64 (without the operators that it calls); device_ns int64 (device time of what it launched
        itself).
        """
        return self._shown(trace_tables.OPERATORS, trace_tables.operators, arrow=arrow)

    def steps(self, *, arrow: bool = False) -> Frame:
        """Return the account of each step by rank.

        Columns: rank, step int64; source string (what marks steps: lockstep.step, ProfilerStep, Optimizer.step,
        whole); partial bool (cut by an end of the trace); start_ns, duration_ns int64 (training thread); window_ns
        int64 (until the device has done the step's work), the sum of compute_ns, communication_ns, host_ns (each while
        it alone is active), overlap_ns (two or more) and free_ns (none), all int64; memory_ns int64 (copies and fills,
        part of compute_ns); compute_communication_overlap_ns int64 (part of overlap_ns).
        """
        return self._shown(trace_tables.STEPS, trace_tables.steps, arrow=arrow)

    def collectives(self, *, arrow: bool = False) -> Frame:
        """Return one row for each collective of each rank, in order of start.

        Columns: rank int64; step Int64; kind string (all_reduce, all_gather, ...); group string (the process group's
        name); group_size Int64; start_ns, duration_ns int64 (waiting for other ranks included); bytes Int64 (the whole
        tensor of the group); sequence Int64 (number within the group: with it the key that matches ranks).
        """
        return self._shown(trace_tables.COLLECTIVES, trace_tables.collectives, arrow=arrow)

    def events(self, *, arrow: bool = False) -> Frame:
        """Return every event: `rank`, then the columns of stored traces (`lockstep.trace.events_table.SCHEMA`)."""
        plain = [
            table_of(columns).cast(EVENTS).add_column(0, _RANK, [pa.array([rank] * len(columns), pa.int64())])
            for rank, columns in self._by_rank.items()
        ]
        return shown(pa.concat_tables(plain), arrow=arrow)

    def _shown(self, schema: pa.Schema, table: Callable[[int, TraceColumns], pa.Table], *, arrow: bool) -> Frame:
        return shown(stacked(schema, [table(rank, columns) for rank, columns in self._by_rank.items()]), arrow=arrow)


_RANK = pa.field("rank", pa.int64(), nullable=False)
