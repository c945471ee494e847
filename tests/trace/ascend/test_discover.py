import gzip
import json
import shutil

import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.trace.ascend import discover as module
from lockstep.trace.ascend.discover import discover
from lockstep.trace.ascend.rank import load_rank_kernels, load_rank_trace
from lockstep.trace.columns import ABSENT
from tests.trace.ascend.databases import make
from tests.trace.ascend.recordings import CLUSTER, OUTPUT, RANK, TABLES


def test_a_ranks_folder_its_output_and_a_single_file():
    """From the folder, from its output and from one file, what is there is found and the rank is known."""
    whole = discover(RANK)
    assert set(whole.files) == {"trace_view", "kernel_details", "step_trace_time", "profiler_info"}
    assert (whole.rank, whole.settings.level, whole.settings.aic_metrics) == (0, "Level0", "ACL_AICORE_NONE")
    assert discover(OUTPUT).files == whole.files
    assert discover(OUTPUT).rank == 0
    one = discover(OUTPUT / "kernel_details.csv")
    assert (set(one.files), one.rank) == ({"kernel_details", "profiler_info"}, 0)


def test_files_of_a_cluster_and_of_a_job():
    """A cluster's files name no rank; the metadata of a rank holds groups and degrees."""
    cluster = discover(CLUSTER)
    assert set(cluster.files) == {
        "cluster_step_trace_time", "cluster_communication", "cluster_communication_matrix", "communication_group",
    }  # fmt: skip
    assert cluster.rank == ABSENT
    tables = discover(TABLES)
    assert tables.settings.groups["6960437680420871035"] == (0, 1)
    assert tables.settings.degrees["tensor_model_parallel_size"] == 2


@pytest.mark.parametrize(
    ("folder", "inner", "info", "rank"),
    [
        ("node_12_20250101_ascend_pt", "ASCEND_PROFILER_OUTPUT", "profiler_info_5.json", 5),
        ("node_12_20250101_ascend_ms", "ASCEND_PROFILER_OUTPUT", "profiler_info.json", 6),
        ("rank_7", "", "", 7),
        ("run-rank8-x", "ASCEND_PROFILER_OUTPUT", "", 8),
        ("frank9", "", "", ABSENT),
    ],
)
def test_ranks_come_from_files_then_from_names(tmp_path, folder, inner, info, rank):
    """The info file's name, its content, then a folder's name."""
    place = tmp_path / "x" / folder / inner
    place.mkdir(parents=True)
    shutil.copy(OUTPUT / "kernel_details.csv", place)
    if info:
        (tmp_path / "x" / folder / info).write_text(json.dumps({"rank_id": 6}))
    found = discover(tmp_path / "x" / folder)
    assert (found.rank, found.path.name) == (rank, folder)


def test_msprof_output(tmp_path):
    """PROF folders hold their files one deeper, under names with a time in them."""
    place = tmp_path / "PROF_000001_20250101_ABC" / "mindstudio_profiler_output"
    place.mkdir(parents=True)
    shutil.copy(TABLES / "op_summary_1.csv", place / "op_summary_20250101.csv")
    (place / "msprof_20250101.json").write_bytes(gzip.decompress((OUTPUT / "trace_view.json.gz").read_bytes()))
    make(tmp_path / "PROF_000001_20250101_ABC" / "msprof_20250101.db")
    found = discover(tmp_path)
    assert set(found.files) == {"kernel_details", "trace_view", "database"}
    assert len(load_rank_trace(found)) == 3379
    assert len(load_rank_kernels(found)) == 20


def test_a_database_serves_where_there_is_no_text(tmp_path):
    """export_type db leaves one file, whose name has the rank."""
    make(tmp_path / "ascend_pytorch_profiler_4.db")
    found = discover(tmp_path)
    assert found.rank == 4
    assert load_rank_trace(found).metadata.rank == 4
    assert len(load_rank_kernels(found)) == 2


def test_what_is_missing_or_too_much_is_refused_by_name(tmp_path, monkeypatch):
    """No such path, no file of a profiler, too many entries, metadata that is no JSON."""
    with pytest.raises(MalformedError, match="no such path"):
        discover(tmp_path / "nothing")
    with pytest.raises(MalformedError, match="no file of a profiler"):
        discover(tmp_path)
    shutil.copytree(RANK, tmp_path / "a")
    (tmp_path / "a" / "profiler_metadata.json").write_text("{")
    with pytest.raises(MalformedError, match="JSON in "):
        discover(tmp_path / "a")
    with pytest.raises(MalformedError, match="expected trace_view or database"):
        load_rank_trace(discover(CLUSTER))
    with pytest.raises(MalformedError, match=r"expected kernel_details.csv"):
        load_rank_kernels(discover(CLUSTER))
    monkeypatch.setattr(module, "ENTRIES_MAX", 2)
    with pytest.raises(MalformedError, match="entries in "):
        discover(tmp_path / "a")


def test_settings_of_another_form_are_left_out(tmp_path):
    """Types that no one expects cost their own bytes, nothing else."""
    shutil.copytree(RANK, tmp_path / "a")
    (tmp_path / "a" / "profiler_info_0.json").write_text(json.dumps({"rank_id": "x", "config": [], "cann_version": 3}))
    groups = {"g": {"global_ranks": [0, "x"]}, "h": {"global_ranks": [0, 1]}, "i": 3}
    metadata = {"distributed_args": {"world_size": 1 << 60}, "parallel_group_info": groups, "ENV_VARIABLES": {"A": 1}}
    (tmp_path / "a" / "profiler_metadata.json").write_text(json.dumps(metadata))
    settings = discover(tmp_path / "a").settings
    assert (settings.world_size, settings.cann_version, settings.level) == (ABSENT, "", "")
    assert (list(settings.groups.values()), settings.environment) == ([(0, 1)], {"A": ""})
