"""Columns of recordings against a plain reading of the same JSON, and against figures measured with other tools."""

import gzip
import json
from functools import lru_cache

import numpy as np
import pytest

from lockstep.trace.columns import ABSENT, PYTHON, WorkKind
from lockstep.trace.events_table import table_of
from lockstep.trace.intervals import common, merged
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.store import read_columns, write_columns
from tests.trace.made import differences
from tests.trace.traces import RECORDING, SHARED, SHARED_TRACES

_KINDS = ("benchmark_", "nccl_data", "sampled_rank-0", "num_workers_4", "healthy/rank0", "h100", "mi300")
"""One of each kind; the others have nothing that these have not, and take seconds."""
_RECORDINGS = [RECORDING, *(path for path in SHARED_TRACES if any(kind in str(path) for kind in _KINDS))]
_IDS = [f"{path.parent.name}/{path.name}" for path in _RECORDINGS]


_loaded = lru_cache(maxsize=8)(load_trace)


@lru_cache(maxsize=8)
def _events(path):
    read = json.loads(gzip.decompress(path.read_bytes()).decode(errors="replace"))
    return [each for each in read["traceEvents"] if each.get("ph") == "X"]


def _number(args, *keys):
    return next((int(args[key]) for key in keys if key in args), ABSENT)


@pytest.mark.parametrize("path", _RECORDINGS, ids=_IDS)
def test_columns_hold_what_the_json_holds(path):
    """Names, threads, ids, sizes, shapes, stacks, collectives and waits are those of a plain reading, row by row."""
    columns, events = _loaded(path), _events(path)
    arguments = [each.get("args", {}) if each["cat"] != PYTHON else {} for each in events]
    assert [columns.names[code] for code in columns.name] == [each["name"] for each in events]
    assert [columns.threads[code] for code in columns.thread] == [(each["pid"], each["tid"]) for each in events]
    assert columns.correlation.tolist() == [_number(args, "correlation") for args in arguments]
    assert columns.external.tolist() == [_number(args, "External id", "external id") for args in arguments]
    assert columns.sequence.tolist() == [_number(args, "Sequence number") for args in arguments]
    assert columns.bytes.tolist() == [_number(args, "bytes") for args in arguments]
    expected = [[args.get("Input Dims", []), args.get("Input type", [])] for args in arguments]
    texts = [json.loads(text) for text in columns.shape_texts]
    shown = [[[], []] if code == ABSENT else texts[code] for code in columns.shapes]
    assert shown == expected
    stacks = ["" if code == ABSENT else columns.stacks[code] for code in columns.stack]
    assert stacks == [args.get("Call stack", "").replace(";", "\n") for args in arguments]
    collectives = {place: args for place, args in enumerate(arguments) if "Collective name" in args}
    assert {place: each.name for place, each in columns.collectives.items()} == {
        place: args["Collective name"] for place, args in collectives.items()
    }
    assert {place: each.in_elements for place, each in columns.collectives.items()} == {
        place: args["In msg nelems"] for place, args in collectives.items()
    }
    assert {place: each.waits_on_correlation for place, each in columns.syncs.items()} == {
        place: args.get("wait_on_cuda_event_record_corr_id", ABSENT)
        for place, args in enumerate(arguments)
        if "cuda_sync_kind" in args
    }


@pytest.mark.parametrize("path", _RECORDINGS, ids=_IDS)
def test_device_work_lies_on_the_streams_that_the_json_names(path):
    """Events of work on a device, and only they, are those of kernels, copies and fills, each on its stream."""
    columns, events = _loaded(path), _events(path)
    work = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
    streams = {
        place: (each["args"]["device"], each["args"]["stream"])
        for place, each in enumerate(events)
        if each["cat"] in work
    }
    found = np.flatnonzero(columns.on_device).tolist()
    assert {place: columns.streams[columns.stream[place]] for place in found} == streams


@pytest.mark.parametrize("path", _RECORDINGS, ids=_IDS)
def test_stored_recordings_come_back(path, tmp_path):
    """What a file of each kind gives is what its Parquet form gives."""
    columns = _loaded(path)
    write_columns(columns, tmp_path / "columns.parquet")
    stored = read_columns(tmp_path / "columns.parquet")
    before, after = table_of(columns), table_of(stored)
    assert [name for name in before.column_names if not before[name].equals(after[name])] == []
    # Codes of streams are in another order, and an id that a trace gives as text of digits is a number.
    assert set(differences(columns, stored)) <= {"stream", "streams", "threads"}


@pytest.mark.skipif(not SHARED_TRACES, reason="the recordings are not beside the checkout")
@pytest.mark.parametrize(
    ("name", "compute_us", "idle_us", "overlap_percent"),
    [
        ("hta/nccl_data", 115_656, 503_051, 15.61),
        ("hta/control", 281_336, 76_007, 46.24),
        ("hta/ns_resolution", 468_154, 7_575, 0),
        ("hta/test", 548_148, 27_296, 70.84),
        ("tracelens/mi300_resnet_act_checkpoint", 25_739, 2_566, 22.22),
    ],
)
def test_device_time_is_what_others_measured(name, compute_us, idle_us, overlap_percent):
    """Computing, idle and overlapped time equal HolisticTraceAnalysis's with its rounding off, nothing dropped."""
    columns = load_trace(SHARED / f"{name}.json.gz")

    def busy(*works):
        chosen = columns.on_device & np.isin(columns.work, works)
        return merged(columns.start_ns[chosen], columns.end_ns[chosen])

    compute, communication = busy(WorkKind.COMPUTE), busy(WorkKind.COMMUNICATION)
    everything = busy(WorkKind.COMPUTE, WorkKind.COMMUNICATION, WorkKind.MEMORY)
    idle_ns = everything.end_ns[-1] - everything.start_ns[0] - everything.measure_ns()
    overlap = common(compute, communication).measure_ns() / max(1, communication.measure_ns())
    assert round(compute.measure_ns() / 1000) == compute_us
    assert round(idle_ns / 1000) == idle_us
    assert round(100 * overlap, 2) == overlap_percent
