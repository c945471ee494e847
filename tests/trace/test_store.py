import base64
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.trace import store
from lockstep.trace.columns import KERNEL, OPERATOR, SYNC, CollectiveArguments, SyncArguments, TraceAbout, WorkKind
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
            made("gemm \U0001f600", KERNEL, ("GPU", "stream 7"), 1 << 60, 0, stream=7, correlation=3, bytes=1 << 50),
            made("nccl", KERNEL, (0, 20), 4, 9, work=WorkKind.COMMUNICATION, stream=(3, 20), collective=_REDUCE),
            made("nccl", KERNEL, (0, 20), 99, 9, stream=(3, 20), collective=_REDUCE),
            made("wait", SYNC, (None, 1.5), 5, 1, sync=SyncArguments(kind="Stream Sync", waits_on_stream=7)),
        ],
        thread_names={1: "main"},
        about=TraceAbout(vendor="amd", devices=("MI300X",), rank=1, groups={"0": (0, 1)}, clock_is_shared=True),
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


@pytest.mark.parametrize(("recording", "ratio"), [(RECORDING, 0.017), (_SMALL_RECORDING, 0.03)])
def test_a_recording_comes_back_whole_and_small(tmp_path, recording, ratio):
    """A real trace of 2.7 MB, stacks and shapes included, is stored in 1.7 % of its JSON, one of 0.3 MB in 3 %."""
    columns = load_trace(recording)
    path = tmp_path / "columns.parquet"
    write_columns(columns, path)
    assert differences(columns, read_columns(path)) == []
    assert path.stat().st_size <= ratio * columns.trace_bytes


@pytest.mark.parametrize(("lanes", "encoding"), [(1, "DELTA_BINARY_PACKED"), (40, "BYTE_STREAM_SPLIT")])
@pytest.mark.parametrize("count", [2000, 20_000])
def test_starts_are_packed_the_smaller_way(tmp_path, lanes, encoding, count):
    """In order as differences, in small traces and large ones; from lane to lane, far apart, byte by byte.

    The difference is in size alone.
    """
    random = np.random.default_rng(count)
    starts_ns = (np.arange(count) % lanes << 32) + np.cumsum(random.integers(0, 4000, count)) // lanes
    columns = columns_of([made("f", start_ns=each, duration_ns=5) for each in starts_ns.tolist()])
    path = tmp_path / "columns.parquet"
    write_columns(columns, path)
    assert encoding in pq.ParquetFile(path).metadata.row_group(0).column(0).encodings
    assert differences(columns, read_columns(path)) == []


@pytest.mark.parametrize(("last_ns", "unit"), [(7000, "us"), (7001, "ns")])
@pytest.mark.parametrize("field", ["start_ns", "duration_ns"])
def test_times_in_whole_microseconds_are_stored_as_such(tmp_path, last_ns, unit, field):
    """One time with a fraction keeps all in nanoseconds; either way what comes back is exact, at the ends as well."""
    far = made("f", start_ns=(1 << 62) // 1000 * 1000, duration_ns=10**15)
    columns = columns_of([made("f", start_ns=-3000), far, made("f")._replace(**{field: last_ns})])
    path = tmp_path / "columns.parquet"
    write_columns(columns, path)
    assert pq.read_schema(path).names[:2] == [f"start_{unit}", f"duration_{unit}"]
    assert differences(columns, read_columns(path)) == []


_ID = st.none() | st.integers(-(2**70), 2**70) | st.text(max_size=5) | st.floats(allow_nan=False, allow_infinity=False)
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


def _rewrite(path, *, about=None, tables=None, raw_tables=None, columns=None, without=()):
    """Write the stored file again with some of it changed."""
    file = pq.ParquetFile(path)
    metadata = dict(file.metadata.metadata)
    table = file.read()
    file.close()
    said = json.loads(metadata[b"lockstep.trace"])
    size = said["tables_bytes"]
    packed = base64.b64decode(metadata[b"lockstep.trace.tables"])
    text = pa.Codec("zstd").decompress(packed, size, asbytes=True)
    if tables is not None:
        text = json.dumps(json.loads(text) | tables).encode()
        said["tables_bytes"] = len(text)
    said |= about or {}
    metadata[b"lockstep.trace"] = json.dumps(said).encode()
    metadata[b"lockstep.trace.tables"] = base64.b64encode(pa.Codec("zstd").compress(text, asbytes=True))
    if raw_tables is not None:
        metadata[b"lockstep.trace.tables"] = raw_tables
    for name, values in (columns or {}).items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({key: value for key, value in metadata.items() if key not in without})


def _codes(*values, kind=pa.int32()):  # noqa: B008 - a constant type
    return pa.array(values, kind)


_HOSTILE = {
    "unknown key": {"about": {"surprise": 1}},
    "about of another type": {"about": {"about": [1]}},
    "counts as text": {"about": {"trace_bytes": "many"}},
    "no metadata": {"without": [b"lockstep.trace"]},
    "no tables": {"without": [b"lockstep.trace.tables"]},
    "tables no base64": {"raw_tables": b"@@@"},
    "tables no zstd": {"raw_tables": base64.b64encode(b"plain")},
    "tables too large": {"about": {"tables_bytes": 1 << 40}},
    "tables negative": {"about": {"tables_bytes": -1}},
    "tables larger than said": {"about": {"tables_bytes": 10}},
    "tables smaller than said": {"about": {"tables_bytes": 1 << 20}},
    "a table of another type": {"tables": {"names": [1, 2]}},
    "a table too few": {"tables": {"names": []}},
    "thread of lists": {"tables": {"threads": [[[1], [2]]] * 9}},
    "thread of one": {"tables": {"threads": [[1]] * 9}},
    "name of no thread": {"tables": {"thread_names": {"99": "x"}}},
    "deep nesting": {"tables": {"threads": json.loads("[" * 900 + "]" * 900)}},
    "nulls": {"columns": {"start_ns": _codes(1, 2, None, 4, 5, kind=pa.int64())}},
    "floats": {"columns": {"start_ns": pa.array([1.0] * 5)}},
    "text": {"columns": {"name": pa.array(["x"] * 5)}},
    "code too large": {"columns": {"category": _codes(0, 1, 1, 1, 99)}},
    "code negative": {"columns": {"name": _codes(0, 1, 2, 2, -1)}},
    "code below absent": {"columns": {"stream": _codes(-2, 0, 1, 1, -1)}},
    "collective of no table": {"columns": {"collective": _codes(-1, -1, 7, 0, -1)}},
    "work of no class": {"columns": {"work": _codes(0, 1, 2, 3, 5, kind=pa.int8())}},
    "duration negative": {"columns": {"duration_ns": _codes(1, 2, 3, 4, -5, kind=pa.int64())}},
    "end overflows": {"columns": {"start_ns": _codes(1, 2, 3, 4, (1 << 63) - 1, kind=pa.int64())}},
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
    """Columns of a later version are refused before anything else of them is looked at."""
    _rewrite(stored, about={"version": 3, "later": True})
    with pytest.raises(ContractVersionError, match="got 3, expected 1 or 2"):
        read_columns(stored)


def test_a_version_has_its_own_columns(stored):
    """Nanoseconds are never taken for microseconds."""
    _rewrite(stored, about={"version": 2})
    with pytest.raises(MalformedError, match=r"columns of a stored trace .*got \['start_ns'.*expected \['start_us'"):
        read_columns(stored)


@pytest.mark.parametrize(
    ("name", "value"), [("start_us", (1 << 63) - 1), ("start_us", -(1 << 63)), ("duration_us", 10**12 + 1)]
)
def test_microseconds_that_no_trace_has_are_refused(tmp_path, name, value):
    """Before they are turned into nanoseconds, which would overflow."""
    path = tmp_path / "columns.parquet"
    write_columns(columns_of([made("f"), made("f")]), path)
    _rewrite(path, columns={name: _codes(0, value, kind=pa.int64())})
    with pytest.raises(MalformedError, match=f"^{name} of a stored trace in .+: got "):
        read_columns(path)


def test_a_column_twice_is_refused(stored):
    """Names alone do not tell which of the two is meant."""
    file = pq.ParquetFile(stored)
    table, metadata = file.read(), file.metadata.metadata
    file.close()
    table = table.append_column("bytes", table.column("bytes"))
    with pq.ParquetWriter(stored, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(dict(metadata))
    with pytest.raises(MalformedError, match="columns of a stored trace"):
        read_columns(stored)


@pytest.mark.parametrize("name", ["EVENTS_MAX", "STORED_MAX_BYTES", "TABLES_MAX_BYTES", "_EVENT_BYTES"])
def test_limits_hold_before_anything_is_read(stored, monkeypatch, name):
    """Too many events, bytes, tables or bytes an event are refused from the footer alone."""
    monkeypatch.setattr(store, name, 0)
    monkeypatch.setattr(store, "_SLACK_BYTES", 0)
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
