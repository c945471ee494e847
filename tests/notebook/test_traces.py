"""`lockstep.open_trace`: traces as tables, held against hand-made columns and real recordings."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lockstep
from lockstep.contracts.errors import MalformedError, NoTraceError
from lockstep.notebook import trace_tables
from lockstep.trace.columns import ANNOTATION, KERNEL, OPERATOR, RUNTIME, CollectiveArguments, TraceMetadata, WorkKind
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.prepared import prepare
from lockstep.trace.step_breakdown import break_down_steps
from lockstep.trace.store import write_columns
from tests.trace.made import columns_of, made

RECORDED = Path(__file__).parents[1] / "analysis" / "recorded" / "healthy"
_REDUCE = CollectiveArguments(name="allreduce", group="dp", ranks=(0, 1), out_elements=100, dtype="Float", sequence=4)


def _columns(rank=0):
    return columns_of(
        [
            made("ProfilerStep#3", ANNOTATION, 1, 0, 1000),
            made("aten::linear", OPERATOR, 1, 100, 300, external=1),
            made("aten::mm", OPERATOR, 1, 150, 200, external=2),
            made("cudaLaunchKernel", RUNTIME, 1, 160, 20, correlation=8),
            made("aten::mm", OPERATOR, 1, 500, 100, external=3),
            made("cudaLaunchKernel", RUNTIME, 1, 510, 20, correlation=9),
            made("gemm", KERNEL, (0, 7), 200, 60, stream=7, correlation=8, external=2),
            made("gemm", KERNEL, (0, 7), 600, 100, stream=7, correlation=9, external=3),
            made("nccl", KERNEL, (0, 20), 700, 90, work=WorkKind.COMMUNICATION, stream=20, collective=_REDUCE),
        ],
        metadata=TraceMetadata(rank=rank, vendor="nvidia"),
    )


@pytest.fixture
def folder(tmp_path):
    for rank in (1, 0):
        write_columns(_columns(rank), tmp_path / f"{rank}.parquet")
    return tmp_path


def test_kernels_by_name(folder):
    """Counts, sums and moments of the device's work, the heaviest first, rank by rank."""
    frame = lockstep.open_trace(folder).kernels()
    assert frame["rank"].tolist() == [0, 0, 1, 1]
    assert frame.loc[0].to_dict() == {
        "rank": 0,
        "name": "gemm",
        "work": "compute",
        "count": 2,
        "total_ns": 160,
        "min_ns": 60,
        "max_ns": 100,
        "mean_ns": 80.0,
        "median_ns": 80.0,
        "std_ns": 20.0,
        "device_ratio": pytest.approx(160 / 250),
    }
    assert frame.loc[1, "work"] == "communication"


def test_operators_by_name(folder):
    """Self time leaves out the operators that are called; device time is of what an operator launched itself."""
    frame = lockstep.open_trace(folder / "1.parquet").operators().set_index("name")
    assert frame.loc["aten::mm"].to_dict() == {"rank": 1, "count": 2, "total_ns": 300, "self_ns": 300, "device_ns": 160}
    assert frame.loc["aten::linear", ["total_ns", "self_ns", "device_ns"]].tolist() == [300, 100, 0]


def test_steps_and_collectives(folder):
    """A step's parts sum to its window; a collective knows its step, group, size and number."""
    trace = lockstep.open_trace(folder)
    steps = trace.steps()
    assert steps["step"].tolist() == [3, 3]
    assert steps["partial"].tolist() == [False, False]
    parts = steps[["compute_ns", "communication_ns", "host_ns", "overlap_ns", "free_ns"]]
    assert parts.sum(axis=1).tolist() == steps["window_ns"].tolist()
    row = trace.collectives().loc[0].to_dict()
    assert row == {
        "rank": 0,
        "step": 3,
        "kind": "all_reduce",
        "group": "dp",
        "group_size": 2,
        "start_ns": 700,
        "duration_ns": 90,
        "bytes": 400,
        "sequence": 4,
    }


def test_a_recorded_job_has_the_figures_of_the_analysis():
    """Four ranks of a real job without a device: no kernel, the same breakdown as the analysis, every event there."""
    trace = lockstep.open_trace(RECORDED)
    assert trace.ranks == (0, 1, 2, 3)
    assert trace.kernels().empty
    columns = {rank: load_trace(RECORDED / f"rank{rank}.json.gz") for rank in trace.ranks}
    steps = trace.steps()
    for rank in trace.ranks:
        expected = [each.host_ns for each in break_down_steps(prepare(columns[rank])).per_step]
        assert steps.loc[steps["rank"] == rank, "host_ns"].tolist() == expected
    events = trace.events()
    assert len(events) == sum(map(len, columns.values()))
    operators = trace.operators()
    of_operators = events[events["category"] == OPERATOR].groupby(["rank", "name"])["duration_ns"].sum()
    assert operators.set_index(["rank", "name"])["total_ns"].sort_index().tolist() == of_operators.sort_index().tolist()
    assert (operators["self_ns"] <= operators["total_ns"]).all()
    assert trace.collectives().groupby("rank").size().tolist() == [3] * 4


_PANDAS = {pa.int64(): "int64", pa.float64(): "float64", pa.bool_(): "bool", pa.string(): "string"}


@pytest.mark.parametrize("name", ["kernels", "operators", "steps", "collectives"])
def test_schemas_are_as_documented(folder, name):
    """Arrow has the schema, pandas its types; an integer that may be unknown is Int64; each column is in the docstring."""
    schema = getattr(trace_tables, name.upper())
    trace = lockstep.open_trace(folder)
    method = getattr(trace, name)
    assert method(arrow=True).schema == schema
    frame = method()
    for field in schema:
        nullable_integer = field.nullable and field.type == pa.int64()
        assert str(frame[field.name].dtype) == ("Int64" if nullable_integer else _PANDAS[field.type])
        assert field.name in type(trace).__dict__[name].__doc__


def test_what_cannot_be_opened_is_named(tmp_path):
    """The error states where, what was found, and what was expected; two traces of one rank are one too many."""
    with pytest.raises(
        NoTraceError, match=r"^no usable trace: [^:]*nowhere: got No such file[^,]*, expected a readable file$"
    ):
        lockstep.open_trace(tmp_path / "nowhere")
    for name in ("a.parquet", "b.parquet"):
        write_columns(_columns(3), tmp_path / name)
    with pytest.raises(
        MalformedError, match=r"b.parquet: got a second trace of rank 3, expected one trace for each rank"
    ):
        lockstep.open_trace(tmp_path)


def test_a_broken_file_next_to_good_ones_is_skipped_by_name(folder):
    """One damaged trace does not hide the others."""
    (folder / "7.parquet").write_bytes(b"PAR1")
    trace = lockstep.open_trace(folder)
    assert trace.ranks == (0, 1)
    assert [Path(each.path).name for each in trace.skipped] == ["7.parquet"]


def test_traces_without_a_rank_are_numbered(tmp_path):
    """Free numbers, in the order of their names."""
    write_columns(_columns(1), tmp_path / "x.parquet")
    for name in ("y", "z"):
        write_columns(_columns(-1), tmp_path / f"{name}.parquet")
    assert lockstep.open_trace(tmp_path).ranks == (0, 1, 2)


def test_loading_the_api_loads_no_pandas_and_training_loads_no_api():
    """`import lockstep` loads none of it, and Arrow tables need no pandas."""
    code = "import sys, lockstep; lockstep.install; print([m for m in sys.modules if m.startswith('lockstep.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['lockstep.contracts', 'lockstep.contracts.version']\n"
    code = "import sys, lockstep; lockstep.open_trace; print('pandas' in sys.modules, 'aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_without_pandas_the_error_names_the_extra(folder, monkeypatch):
    """And what works without it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lockstep-monitor\[notebook\]', or arrow=True"):
        lockstep.open_trace(folder).steps()


def test_an_unknown_name_is_no_attribute():
    """The lazy loading does not hide a misspelling."""
    with pytest.raises(AttributeError, match="no attribute 'open_traces'"):
        lockstep.open_traces  # noqa: B018


def test_all_is_there_for_frames(folder):
    """Frames take part in what pandas does: a group-by gives the sums of the table."""
    frame = lockstep.open_trace(folder).kernels()
    assert isinstance(frame, pd.DataFrame)
    assert np.isclose(frame.groupby("rank")["device_ratio"].sum(), 1.0).all()
