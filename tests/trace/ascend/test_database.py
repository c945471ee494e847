import sqlite3
from collections import Counter

import numpy as np
import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.trace.ascend import database
from lockstep.trace.ascend.counters import Metrics
from lockstep.trace.ascend.database import opened
from lockstep.trace.ascend.database_communication import load_database_communication
from lockstep.trace.ascend.database_kernels import load_database_kernels
from lockstep.trace.ascend.database_trace import load_database_trace
from lockstep.trace.columns import ABSENT, ANNOTATION, KERNEL, OPERATOR, PYTHON, RUNTIME, WorkKind
from lockstep.trace.launches import launches_of
from tests.trace.ascend.databases import T, executed, make, write_analysis

_NAME = "ascend_pytorch_profiler_0.db"


def test_events_are_those_of_the_tables(tmp_path):
    """Rows have the classes that the same rows of trace_view.json have."""
    columns = load_database_trace(make(tmp_path / _NAME))
    classes = Counter(
        (columns.names[name], columns.categories[category], WorkKind(work))
        for name, category, work in zip(columns.name, columns.category, columns.work, strict=True)
    )
    assert classes == {
        ("aclnnMm_MatMul", KERNEL, WorkKind.COMPUTE): 1,
        ("MEMCPY_ASYNC", "gpu_memcpy", WorkKind.MEMORY): 1,
        ("Notify_Wait", "communication_task", WorkKind.NOTHING): 1,
        ("hcom_allReduce__868_0_1", KERNEL, WorkKind.COMMUNICATION): 1,
        ("launch", RUNTIME, WorkKind.HOST): 2,
        ("ProfilerStep#7", ANNOTATION, WorkKind.NOTHING): 1,
        ("aten::mm", OPERATOR, WorkKind.HOST): 1,
        ("Enqueue", RUNTIME, WorkKind.HOST): 1,
        ("Dequeue@aclnnMm", RUNTIME, WorkKind.HOST): 1,
        ("train.py(9): main frame", PYTHON, WorkKind.HOST): 1,
        ("Python GC", OPERATOR, WorkKind.HOST): 1,
        ("my range", ANNOTATION, WorkKind.NOTHING): 1,
    }
    assert (columns.start_ns.min(), columns.dropped_count) == (T, 0)


def test_launches_operators_shapes_and_stacks(tmp_path):
    """Kernel and collective lead to their Enqueue and operator, which has shapes and a stack."""
    columns = load_database_trace(make(tmp_path / _NAME))
    by_name = {columns.names[code]: row for row, code in enumerate(columns.name.tolist())}
    work = [by_name["aclnnMm_MatMul"], by_name["hcom_allReduce__868_0_1"]]
    assert launches_of(columns)[work].tolist() == [by_name["Enqueue"]] * 2
    assert columns.external[work].tolist() == [by_name["aten::mm"] + 1] * 2
    operator = by_name["aten::mm"]
    assert columns.shape_texts[columns.shapes[operator]] == '[[[512,64],[]],["float","Scalar"]]'
    assert columns.stacks[columns.stack[operator]] == "model.py(3): forward\ntrain.py(9): main"
    assert columns.sequence[operator] == 4
    assert columns.bytes[work[1]] == 8192
    assert [columns.streams[columns.stream[row]] for row in work] == [(3, 7), (3, -2)]


def test_rows_of_no_time_are_dropped_and_the_rest_stays(tmp_path):
    """Ends before starts, text for numbers and missing times cost their rows; ids of rows still fit."""
    path = make(tmp_path / _NAME)
    executed(
        path,
        "INSERT INTO TASK SELECT endNs, startNs, deviceId, 1, 50, 0, 1, 0, 7, 1, 1 FROM TASK LIMIT 1",
        "INSERT INTO TASK VALUES ('soon', NULL, 'x', 1.5, 51, 0, 1, 0, 7, 1, 1)",
        "INSERT INTO TASK VALUES (1e300, 2, 3, 4, 52, 0, 1, 0, 7, 1, 1)",
    )
    columns = load_database_trace(path)
    assert (len(columns), columns.dropped_count) == (13, 3)
    assert [columns.collectives[row].name for row in columns.collectives] == ["allreduce"]
    assert columns.work[list(columns.collectives)].tolist() == [WorkKind.COMMUNICATION]


@pytest.mark.parametrize("blocks", ["blockNum", "blockDim", "block_dim"])
def test_kernels_with_their_counters(tmp_path, blocks):
    """The same table as kernel_details.csv, over the names that versions gave its columns."""
    kernels = load_database_kernels(make(tmp_path / _NAME, blocks=blocks))
    assert (len(kernels), kernels.metrics) == (2, (Metrics.PIPE,))
    assert [kernels.text(field, 0) for field in ("name", "type", "core", "input_shapes", "input_types")] == [
        "aclnnMm_MatMul", "MatMulV2", "AI_CORE", "4096,512;512,64", "DT_BF16;DT_BF16",
    ]  # fmt: skip
    assert (kernels.start_ns[0], kernels.duration_ns[0], kernels.wait_ns[0], kernels.blocks[0]) == (T + 200, 30, 17, 20)
    assert {name: values[0] for name, values in kernels.counters.items()} == {
        "aic_mac_ratio": 0.75,
        "aic_total_cycles": 1000,
    }
    assert np.isnan(kernels.counters["aic_mac_ratio"][1])
    assert kernels.step.tolist() == [ABSENT, ABSENT]


def test_communication_of_an_analysis(tmp_path):
    """Operators with links and packets as from communication.json; links of no operator are dropped and counted."""
    path = write_analysis(tmp_path / "analysis.db")
    found = load_database_communication(path)
    assert (len(found), found.dropped_count) == (1, 1)
    assert (found.named[0].step, found.named[0].kind, found.named[0].group) == (7, "collective", "42")
    assert (found.elapse_ns[0], found.link_transit_ns[0], found.link_bytes.tolist()) == (
        5_000_000,
        4_000_000,
        [2_000_000],
    )
    assert (found.packet_bytes.tolist(), found.packet_count.tolist()) == ([1_000_000, 500_000], [1, 2])


@pytest.mark.parametrize("load", [load_database_trace, load_database_kernels, load_database_communication])
@pytest.mark.parametrize("content", [b"", b"hello", b"SQLite format 3\0" + b"x" * 4096])
def test_what_is_no_database_is_refused_by_name(tmp_path, load, content):
    """Neither another file nor a damaged one raises anything of sqlite's."""
    path = tmp_path / _NAME
    path.write_bytes(content)
    with pytest.raises(MalformedError) as caught:
        load(path)
    assert caught.value.where == str(path)


def test_damaged_pages_are_an_error_by_name_or_nothing(tmp_path):
    """Bytes overwritten anywhere give columns or one named error."""
    whole = make(tmp_path / "whole.db").read_bytes()
    path = tmp_path / _NAME
    refused = 0
    for position in range(100, len(whole), len(whole) // 60):
        path.write_bytes(whole[:position] + b"\xff" * 64 + whole[position + 64 :])
        try:
            load_database_trace(path)
        except MalformedError as error:
            refused += error.where == str(path)
    assert refused > 0


def test_a_schema_of_another_kind_is_refused_by_name(tmp_path):
    """A missing table or column is named."""
    path = executed(tmp_path / _NAME, "CREATE TABLE TASK (startNs INTEGER)")
    with pytest.raises(MalformedError, match=r"table TASK in .*a column endNs"):
        load_database_trace(path)
    with pytest.raises(MalformedError, match=r"table CommAnalyzerTime in .*no such table"):
        load_database_communication(path)
    with pytest.raises(MalformedError, match=r"tables in .*TASK or PYTORCH_API"):
        load_database_trace(executed(tmp_path / "other.db", "CREATE TABLE a (b)"))


def test_a_view_in_place_of_a_table_is_not_asked(tmp_path):
    """A writer's own query is never run."""
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS startNs, x AS endNs FROM n"
    path = executed(
        tmp_path / _NAME, f"CREATE VIEW TASK AS {endless}", "CREATE TABLE CANN_API (startNs, endNs, name, globalTid)"
    )
    with pytest.raises(MalformedError, match="events in "):
        load_database_trace(path)


def test_queries_that_work_too_long_are_stopped(tmp_path, monkeypatch):
    """The number of steps of sqlite's machine is limited."""
    path = executed(
        tmp_path / _NAME,
        "CREATE TABLE TASK (startNs, endNs, globalTaskId)",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 20000) INSERT INTO TASK SELECT x, x, x FROM n",
    )
    monkeypatch.setattr(database, "_STEPS_BETWEEN_CHECKS", 1000)
    monkeypatch.setattr(database, "_STEPS_MAX", 5000)
    with pytest.raises(MalformedError, match="interrupted"):
        load_database_trace(path)


def test_limits_on_rows_sizes_and_strings(tmp_path, monkeypatch):
    """Files, tables, strings and single values have limits."""
    path = make(tmp_path / _NAME)
    with pytest.raises(MalformedError, match="database in "):
        load_database_trace(path, max_bytes=100)
    monkeypatch.setattr(database, "STRINGS_MAX", 3)
    with pytest.raises(MalformedError, match="STRING_IDS in "):
        load_database_trace(path)
    monkeypatch.setattr(database, "ROWS_MAX", 2)
    with pytest.raises(MalformedError, match="rows in "):
        load_database_trace(path)
    monkeypatch.undo()
    executed(path, "INSERT INTO STRING_IDS VALUES (900, zeroblob(2000000))")
    with pytest.raises(MalformedError, match="too big"):
        load_database_trace(path)


def test_nothing_is_written_and_no_journal_is_read(tmp_path):
    """The folder is the same afterwards, and a file next to it that looks like a journal is not replayed."""
    path = make(tmp_path / "a ?#%20.db")
    journal = path.with_name(path.name + "-wal")
    journal.write_bytes(b"\x37\x7f\x06\x82" + b"x" * 5000)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with opened(path) as found, pytest.raises(sqlite3.OperationalError):
        found._connection.execute("CREATE TABLE b (c)")
    assert len(load_database_trace(path)) == 13
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
