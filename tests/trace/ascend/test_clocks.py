"""The AI cores' clock from counter rows and from AICORE_FREQ: exact times, changes only, hostile rows passed over."""

import sqlite3

import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.trace.ascend.clocks import CHANGES_MAX, CLOCKS_MAX
from lockstep.trace.ascend.database_trace import load_database_trace
from lockstep.trace.ascend.load import load_trace_view
from lockstep.trace.columns import ABSENT, CoreClock
from lockstep.trace.store import read_columns, write_columns
from tests.trace.ascend.databases import T, make
from tests.trace.ascend.recordings import OUTPUT
from tests.trace.ascend.written import BASE_NS, NPU, metadata, row, stamp, write

CLOCK = 600
COUNTER = {"name": "AI Core Freq", "ph": "C", "pid": CLOCK, "tid": 0}


def counter(ns, mhz, **more):
    return {**COUNTER, "ts": stamp(ns), "args": {"MHz": mhz}, **more}


def label(pid, text):
    return {"name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": text}, "ph": "M"}


def load(tmp_path, *rows):
    work = row("MatMul", NPU, 2, 100, 50, args={"Task Type": "AI_CORE"})
    return load_trace_view(write(tmp_path, [*metadata(), work, *rows]))


def test_the_healthy_recording_keeps_its_clock():
    """Its two rows, at the capture's beginning and end, state the same: one change, at the exact ns of its text."""
    metadata = load_trace_view(OUTPUT / "trace_view.json.gz").metadata
    assert metadata.clocks == (CoreClock(device=ABSENT, time_ns=(1_736_405_443_756_311_100,), mhz=(1800.0,)),)


def test_changes_are_kept_in_order_to_the_nanosecond(tmp_path):
    """Rows come in any order; what repeats the clock before it is none, and neither are other counters."""
    rows = [counter(2_001, 1440), counter(1, 1800), counter(1_001, 1800.0), {**counter(5, 9), "name": "HBM 0/Read"}]
    (clock,) = load(tmp_path, *rows, label(CLOCK, "NPU 3")).metadata.clocks
    assert clock == CoreClock(device=3, time_ns=(BASE_NS + 1, BASE_NS + 2_001), mhz=(1800.0, 1440.0))


def test_devices_have_clocks_of_their_own(tmp_path):
    """One for each process that has such rows."""
    other = CLOCK + 1
    rows = [counter(0, 1800), counter(0, 1650, pid=other), label(CLOCK, "NPU 0"), label(other, "NPU 1")]
    assert [(each.device, each.mhz) for each in load(tmp_path, *rows).metadata.clocks] == [
        (0, (1800.0,)),
        (1, (1650.0,)),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        {"args": {"MHz": "fast"}},
        {"args": {"MHz": -1}},
        {"args": {"MHz": 1e300}},
        {"args": {"MHz": True}},
        {"args": {}},
        {"args": 7},
        {"ts": "never"},
        {"ts": None},
    ],
    ids=str,
)
def test_rows_of_no_sense_cost_only_themselves(tmp_path, bad):
    """The others count, and so does the trace."""
    columns = load(tmp_path, counter(10, 1800), {**counter(20, 900), **bad})
    assert [each.mhz for each in columns.metadata.clocks] == [(1800.0,)]
    assert len(columns) == 1


def test_endless_changes_are_bounded(tmp_path):
    """A clock keeps so many changes, a trace so many clocks."""
    many = [counter(at, 800 + at % 2) for at in range(CHANGES_MAX + 50)]
    (clock,) = load(tmp_path, *many).metadata.clocks
    assert len(clock.mhz) == CHANGES_MAX
    pids = [counter(0, 1800, pid=1000 + at) for at in range(CLOCKS_MAX + 3)]
    assert len(load(tmp_path, *pids).metadata.clocks) == CLOCKS_MAX


def with_clock(path, rows, columns="deviceId INTEGER, timestampNs NUMERIC, freq INTEGER, dieId INTEGER"):
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE AICORE_FREQ ({columns})")
        connection.executemany(f"INSERT INTO AICORE_FREQ VALUES ({', '.join('?' * len(rows[0]))})", rows)
        connection.execute("CREATE TABLE NPU_INFO (id INTEGER PRIMARY KEY, name TEXT)")
        connection.executemany("INSERT INTO NPU_INFO VALUES (?, ?)", [(3, "Ascend910B2"), (4, "Ascend310")])
    connection.close()
    return path


def test_a_database_has_it_by_device_and_die(tmp_path):
    """Times as they stand; dies apart; the device's name is that of the devices that worked."""
    path = make(tmp_path / "msprof_1.db")
    metadata = load_database_trace(
        with_clock(path, [(3, T, 1800, 0), (3, T + 9, 1800, 1), (3, T + 70, 1440, 1), (3, T + 80, None, 0)])
    ).metadata
    assert metadata.clocks == (
        CoreClock(device=3, time_ns=(T,), mhz=(1800.0,)),
        CoreClock(device=3, time_ns=(T + 9, T + 70), mhz=(1800.0, 1440.0)),
    )
    assert metadata.devices == ("Ascend910B2",)


def test_older_databases_have_no_die_and_some_no_table(tmp_path):
    """No table, no clock; a table without its columns is refused by name."""
    assert load_database_trace(make(tmp_path / "msprof_0.db")).metadata.clocks == ()
    older = "deviceId INTEGER, timestampNs INTEGER, freq INTEGER"
    path = with_clock(make(tmp_path / "msprof_1.db"), [(3, T, 1800)], older)
    assert [each.mhz for each in load_database_trace(path).metadata.clocks] == [(1800.0,)]
    path = with_clock(make(tmp_path / "msprof_2.db"), [(3, T)], "deviceId INTEGER, timestampNs INTEGER")
    with pytest.raises(MalformedError, match="AICORE_FREQ"):
        load_database_trace(path)


def test_stored_columns_keep_it(tmp_path):
    """What a trace states about itself comes back equal, clocks too."""
    columns = load(tmp_path, counter(1, 1800), counter(5, 1440))
    write_columns(columns, tmp_path / "0.parquet")
    assert read_columns(tmp_path / "0.parquet").metadata == columns.metadata
