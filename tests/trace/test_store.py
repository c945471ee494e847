import json
import os
from functools import partialmethod
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.trace import store
from lockstep.trace.columns import (
    ABSENT,
    KERNEL,
    OPERATOR,
    SYNC,
    CollectiveArguments,
    Occupancy,
    SyncArguments,
    TraceMetadata,
    WorkKind,
)
from lockstep.trace.events_table import table_of
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.store import read_columns, write_columns
from tests.trace.made import columns_of, differences, made
from tests.trace.traces import RECORDING

_SMALL_RECORDING = Path(__file__).parent / "hta" / "benchmark_alexnet.json.gz"
_REDUCE = CollectiveArguments(name="allreduce", group="0", ranks=(0, 1), in_elements=1 << 40, sequence=3)


def _columns():
    return columns_of(
        [
            made("aten::mm", OPERATOR, 1, -5, 50, external=7, shapes="[[[2]],[]]", stack="a\nb", sequence=2),
            made(
                "gemm \U0001f600",
                KERNEL,
                ("GPU", "stream 7"),
                1 << 60,
                0,
                stream=7,
                correlation=3,
                bytes=1 << 50,
                occupancy=Occupancy(0.5, ABSENT),
            ),
            made("nccl", KERNEL, (0, 20), 4, 9, work=WorkKind.COMMUNICATION, stream=(3, 20), collective=_REDUCE),
            made("nccl", KERNEL, (0, 20), 99, 9, stream=(3, 20), collective=_REDUCE, occupancy=Occupancy(8, 0.27)),
            made("wait", SYNC, (None, "Spans"), 5, 1, sync=SyncArguments(kind="Stream Sync", waits_on_stream=7)),
        ],
        thread_names={1: "main"},
        metadata=TraceMetadata(vendor="amd", devices=("MI300X",), rank=1, groups={"0": (0, 1)}, clock_is_shared=True),
    )


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "columns.parquet"
    write_columns(_columns(), path)
    return path


def test_what_is_read_is_what_was_written(stored):
    """Every column, table and fact comes back equal, in type as well, and no other file is left."""
    assert differences(_columns(), read_columns(stored)) == []
    assert list(stored.parent.iterdir()) == [stored]


@pytest.mark.parametrize(("recording", "ratio"), [(RECORDING, 0.02), (_SMALL_RECORDING, 0.045)])
def test_a_recording_comes_back_whole_and_small(tmp_path, recording, ratio):
    """A real trace of 2.7 MB, stacks and shapes included, is stored in 2 % of its JSON, one of 0.3 MB in 4.5 %."""
    columns = load_trace(recording)
    path = tmp_path / "columns.parquet"
    write_columns(columns, path)
    assert differences(columns, read_columns(path)) == []
    assert path.stat().st_size <= ratio * columns.trace_bytes


def test_a_file_of_several_row_groups_comes_back_whole(tmp_path, monkeypatch):
    """Each row group has dictionaries of its own; the codes are of all of them together."""
    columns = load_trace(_SMALL_RECORDING)
    monkeypatch.setattr(
        pq.ParquetWriter, "write_table", partialmethod(pq.ParquetWriter.write_table, row_group_size=100)
    )
    write_columns(columns, tmp_path / "columns.parquet")
    read = read_columns(tmp_path / "columns.parquet")
    assert pq.ParquetFile(tmp_path / "columns.parquet").num_row_groups > 5
    assert table_of(read).equals(table_of(columns))


def _of_pandas(path):
    frame = pd.read_parquet(path)
    return [frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame]


def _of_polars(path):
    return [column.to_list() for column in pl.read_parquet(path)]


def _of_duckdb(path):
    return [list(values) for values in zip(*duckdb.sql(f"SELECT * FROM '{path}'").fetchall(), strict=True)]


@pytest.mark.parametrize("read", [_of_pandas, _of_polars, _of_duckdb])
@pytest.mark.parametrize("recording", [None, _SMALL_RECORDING])
def test_others_read_the_file_as_it_is(tmp_path, read, recording):
    """pandas, DuckDB and Polars see the same values as our own reader: plain texts and numbers, null where unknown."""
    columns = _columns() if recording is None else load_trace(recording)
    write_columns(columns, tmp_path / "columns.parquet")
    expected = [column.to_pylist() for column in table_of(columns).columns]
    assert read(tmp_path / "columns.parquet") == expected


def test_the_columns_hold_plain_values(stored):
    """Names rather than codes; what an event has no value for is null."""
    row = pq.read_table(stored).to_pylist()[2]
    assert {name: value for name, value in row.items() if value is not None} == {
        "start_ns": 4,
        "duration_ns": 9,
        "name": "nccl",
        "category": "kernel",
        "work": "communication",
        "process": "0",
        "thread": "20",
        "device": 3,
        "stream": 20,
        "collective": "allreduce",
        "collective_group": "0",
        "collective_ranks": "[0,1]",
        "collective_in_elements": 1 << 40,
        "collective_sequence": 3,
    }
    assert (row["blocks_per_sm"], row["warp_ratio"]) == (None, None)


_ID = st.none() | st.integers(-(2**70), 2**70) | st.text(st.characters(categories=["Lu", "Zs", "So"]), max_size=5)
_NUMBER = st.integers(-(2**63), 2**63 - 1)
_EVENT = st.builds(
    made,
    name=st.text(max_size=8),
    category=st.sampled_from([OPERATOR, KERNEL]),
    thread=st.tuples(_ID, _ID),
    start_ns=st.integers(-(2**61), 2**62),
    duration_ns=st.integers(0, 10**15),
    work=st.sampled_from(WorkKind),
    stream=st.none() | st.tuples(st.integers(-1, 2**31), st.integers(0, 2**40)),
    shapes=st.none() | st.text(max_size=8),
    stack=st.none() | st.text(max_size=8),
    correlation=_NUMBER,
    external=_NUMBER,
    sequence=_NUMBER,
    bytes=_NUMBER,
    occupancy=st.none() | st.builds(Occupancy, st.floats(0, 1e9), st.just(ABSENT) | st.floats(0, 1e7)),
    collective=st.none() | st.just(_REDUCE),
    sync=st.none(),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(st.lists(_EVENT, min_size=1, max_size=10))
def test_any_columns_come_back(tmp_path, events):
    """Ids of any size and texts of any script survive the way through the file."""
    columns = columns_of(events)
    write_columns(columns, tmp_path / "columns.parquet")
    assert differences(columns, read_columns(tmp_path / "columns.parquet")) == []


def test_writing_that_fails_leaves_what_was_there(stored, monkeypatch):
    """A file is replaced whole or not at all, and no part of the new one stays."""
    before = stored.read_bytes()
    monkeypatch.setattr(pq.ParquetWriter, "add_key_value_metadata", _fail)
    with pytest.raises(OSError, match="full"):
        write_columns(_columns(), stored)
    assert stored.read_bytes() == before
    assert list(stored.parent.iterdir()) == [stored]


def _fail(*_args):
    raise OSError("full")


def _rewrite(path, *, head=None, columns=None, without=()):
    """Write the stored file again with some of it changed."""
    with pq.ParquetFile(path) as file:
        metadata, table = dict(file.metadata.metadata), file.read()
    stored = json.loads(metadata[b"lockstep.trace"])
    metadata[b"lockstep.trace"] = json.dumps(stored | (head or {})).encode()
    for name, values in (columns or {}).items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({key: value for key, value in metadata.items() if key not in without})


def _int64(*values):
    return pa.array(values, pa.int64())


_HOSTILE = {
    "unknown key": {"head": {"surprise": 1}},
    "metadata of another type": {"head": {"metadata": [1]}},
    "counts as text": {"head": {"trace_bytes": "many"}},
    "no metadata": {"without": [b"lockstep.trace"]},
    "nulls": {"columns": {"start_ns": _int64(1, 2, None, 4, 5)}},
    "nulls of names": {"columns": {"name": pa.array(["x", None, "x", "x", "x"])}},
    "floats": {"columns": {"start_ns": pa.array([1.0] * 5)}},
    "numbers for text": {"columns": {"name": _int64(1, 2, 3, 4, 5)}},
    "work of no class": {"columns": {"work": pa.array(["compute"] * 4 + ["surprise"])}},
    "duration negative": {"columns": {"duration_ns": _int64(1, 2, 3, 4, -5)}},
    "end overflows": {"columns": {"start_ns": _int64(1, 2, 3, 4, (1 << 63) - 1)}},
    "ranks of no form": {"columns": {"collective_ranks": pa.array([None, None, '["a"]', "[0]", None])}},
    "ranks nested deeply": {"columns": {"collective_ranks": pa.array([None, None, "[" * 100_000, "[0]", None])}},
}


@pytest.mark.parametrize("change", _HOSTILE.values(), ids=_HOSTILE.keys())
def test_a_file_that_no_trace_makes_is_refused_by_name(stored, change):
    """Whatever is wrong with a stored trace, the error names the file, what, got and expected."""
    _rewrite(stored, **change)
    with pytest.raises(MalformedError, match=r"^.+ in .+: got .*, expected .+") as caught:
        read_columns(stored)
    assert caught.value.where == str(stored)


def test_rewriting_alone_changes_nothing(stored):
    """The tests above refuse what they change, not how they write it."""
    _rewrite(stored)
    assert differences(_columns(), read_columns(stored)) == []


def test_another_version_is_refused_as_that(stored):
    """Columns of another version are refused before anything else of them is looked at."""
    _rewrite(stored, head={"version": 5, "later": True})
    with pytest.raises(ContractVersionError, match="got 5, expected 4"):
        read_columns(stored)


def test_a_column_twice_is_refused(stored):
    """Names alone do not show which of the two is meant."""
    file = pq.ParquetFile(stored)
    table, metadata = file.read(), file.metadata.metadata
    file.close()
    table = table.append_column("bytes", table.column("bytes"))
    with pq.ParquetWriter(stored, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(dict(metadata))
    with pytest.raises(MalformedError, match="columns of a stored trace"):
        read_columns(stored)


@pytest.mark.parametrize("name", ["EVENTS_MAX", "STORED_MAX_BYTES", "_EVENT_BYTES"])
def test_limits_hold_before_anything_is_read(stored, monkeypatch, name):
    """Too many events, bytes, or bytes an event are refused from the footer alone."""
    monkeypatch.setattr(store, name, 0)
    monkeypatch.setattr(store, "_SLACK_BYTES", 0)
    monkeypatch.setattr(store, "TABLES_MAX_BYTES", 0)
    monkeypatch.setattr(pq.ParquetFile, "read", _fail)
    with pytest.raises(MalformedError, match="stored trace"):
        read_columns(stored)


def test_what_is_no_parquet_file_is_refused(tmp_path):
    """A missing file, a folder, a pipe, an empty file, text and another Parquet file are named."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_bytes(b"PAR1 but not really PAR1")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other")
    for name in ("missing", ".", "pipe", "empty", "text", "other"):
        with pytest.raises(MalformedError, match="stored trace"):
            read_columns(tmp_path / name)


def test_a_step_log_is_refused_with_the_command_that_reads_it(tmp_path):
    """Both are Parquet files, so the wrong command gets the name of the right one."""
    pq.write_table(pa.table({"rank": [0], "step": [1], "duration_ns": [10]}), tmp_path / "log.parquet")
    with pytest.raises(MalformedError, match=r"log\.parquet: got a step log, which `lockstep replay` reads"):
        read_columns(tmp_path / "log.parquet")


def test_a_damaged_file_gives_columns_or_a_named_error(stored):
    """Cut anywhere or with bytes overwritten anywhere, a file never ends in another error."""
    whole = stored.read_bytes()
    chance = np.random.default_rng(5)
    for length in range(0, len(whole), 97):
        stored.write_bytes(whole[:length])
        with pytest.raises(MalformedError):
            read_columns(stored)
    for place in chance.integers(0, len(whole) - 4, 200).tolist():
        damaged = bytearray(whole)
        damaged[place : place + 4] = chance.bytes(4)
        stored.write_bytes(damaged)
        try:
            assert len(read_columns(stored)) == 5
        except MalformedError as error:
            assert error.where == str(stored)  # noqa: PT017 - either end is right
