"""The clock of the AI cores over time: counter rows "AI Core Freq" of trace_view.json, and AICORE_FREQ of databases.

torch_npu and msprof write a row when the capture begins, one for each change, and one when it ends: a row is valid
until the next. Newer devices have two dies, each with a clock of its own.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.trace.ascend.database import Database, integers, numbers
from lockstep.trace.columns import ABSENT, CoreClock

COUNTER_NAME = "AI Core Freq"
CHANGES_MAX = 1 << 14
"""Entries of one clock; later ones are left out. A core that changes its clock every 10 ms fills this in 160 s."""
CLOCKS_MAX = 64
_TABLE = "AICORE_FREQ"
_UNIT = "mhz"
_MHZ_MAX = 1e5

_VALUES = msgspec.json.Decoder(dict[str, Any])


def mhz_of(arguments: msgspec.Raw) -> float:
    """Return the clock of a counter row's arguments, MHz, NaN if they have none."""
    try:
        arguments_of = _VALUES.decode(bytes(arguments))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return float("nan")
    found = [value for key, value in arguments_of.items() if key.lower() == _UNIT and type(value) in (int, float)]
    return float(found[0]) if found and abs(found[0]) <= _MHZ_MAX else float("nan")


def core_clocks(
    source: Sequence[Any], device: NDArray[np.int64], time_ns: NDArray[np.int64], mhz: NDArray[np.float64]
) -> tuple[CoreClock, ...]:
    """Return one clock for each distinct `source` (what wrote the rows: a process, a device's die), changes only.

    All have one entry for each row; rows without a time or a clock above 0 are left out.
    """
    codes: dict[Any, int] = {}
    source_codes = np.fromiter((codes.setdefault(each, len(codes)) for each in source), np.int64, len(source))
    good = (time_ns != ABSENT) & (mhz > 0)
    return tuple(_clocks(source_codes[good], device[good], time_ns[good], mhz[good]))


def _clocks(
    source: NDArray[np.int64], device: NDArray[np.int64], time_ns: NDArray[np.int64], mhz: NDArray[np.float64]
) -> Iterator[CoreClock]:
    for each in np.unique(source)[:CLOCKS_MAX].tolist():
        mine = np.flatnonzero(source == each)
        mine = mine[np.argsort(time_ns[mine], kind="stable")]
        changes = mine[np.concatenate(([True], np.diff(mhz[mine]) != 0))][:CHANGES_MAX]
        yield CoreClock(
            device=int(device[changes[0]]),
            time_ns=tuple(time_ns[changes].tolist()),
            mhz=tuple(mhz[changes].tolist()),
        )


def database_clocks(database: Database) -> tuple[CoreClock, ...]:
    """Return the clocks in a profiler's database, none if it has no such table.

    Raises
    ------
    MalformedError
        The table lacks a column, or the file is damaged.
    """
    if not database.has(_TABLE):
        return ()
    wanted = [("timestampNs", "timestamp"), ("freq",), ("deviceId",), ("dieId",)]
    columns: list[list[Any]] = [[] for _ in wanted]
    for block in database.blocks(_TABLE, wanted, required=2):
        for column, values in zip(columns, zip(*block, strict=True), strict=True):
            column.extend(values)
    time_ns, device, die = (integers(columns[at]) for at in (0, 2, 3))
    return core_clocks(list(zip(device.tolist(), die.tolist(), strict=True)), device, time_ns, numbers(columns[1]))


def device_names(database: Database, used: NDArray[np.int64]) -> tuple[str, ...]:
    """Return what NPU_INFO calls the devices of these numbers, each name once; none where it does not record it."""
    if not database.has("NPU_INFO"):
        return ()
    wanted = set(used.tolist())
    rows = [row for block in database.blocks("NPU_INFO", [("id",), ("name",)], required=2) for row in block]
    return tuple(dict.fromkeys(name for number, name in rows if number in wanted and isinstance(name, str) and name))
