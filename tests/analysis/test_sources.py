"""Which traces lie under a path, and what is passed over."""

import pytest

from lockstep.analysis.rank import analyse_rank
from lockstep.analysis.sources import find_sources, load_source, rank_of
from lockstep.contracts.errors import MalformedError
from lockstep.trace.columns import ABSENT, WorkKind
from lockstep.trace.store import write_columns
from tests.analysis.job import rank_columns
from tests.trace.ascend.databases import executed, make, write_analysis
from tests.trace.ascend.recordings import CLUSTER, RANK, TABLES
from tests.trace.traces import RECORDING, document, event, write


def names(found):
    return [(each.path.name, each.named_rank) for each in found.sources]


@pytest.fixture
def folder(tmp_path):
    """Return a folder with traces of three ranks, one of them below, and what is no trace."""
    below = tmp_path / "node1"
    below.mkdir()
    for path in (tmp_path / "rank10.json", tmp_path / "rank2.pt.trace.json.gz", below / "trace_rank-3.json"):
        write(path.parent, document([event()]), path.name)
    write(tmp_path, document([event()]), "worker.pt.trace.json")
    write(tmp_path, b"# notes", "notes.md")
    write(tmp_path, b"{}", "summary.json")
    write(tmp_path, b"{}", ".rank7.json")
    (tmp_path / "rank8.json").symlink_to(tmp_path / "rank10.json")
    return tmp_path


def test_a_folder_gives_its_traces_by_rank(folder):
    """By number and not by letter, those without one last; no notes, no earlier summary, nothing hidden, no links."""
    found = find_sources([folder])
    assert names(found) == [
        ("rank2.pt.trace.json.gz", 2),
        ("trace_rank-3.json", 3),
        ("rank10.json", 10),
        ("worker.pt.trace.json", ABSENT),
    ]
    assert found.skipped == []


def test_a_path_twice_counts_once(folder):
    """A folder and a file in it: one source for the file."""
    assert len(find_sources([folder / "rank10.json", folder]).sources) == 4


def test_the_folders_name_gives_the_rank_where_the_files_does_not(tmp_path):
    """rank3/trace.json is rank 3's."""
    (tmp_path / "rank3").mkdir()
    write(tmp_path / "rank3", document([event()]))
    assert names(find_sources([tmp_path])) == [("trace.json", 3)]


def test_what_cannot_be_used_is_reported(tmp_path):
    """No such path, an empty folder, a table without times: each by name, and nothing is raised."""
    (tmp_path / "empty").mkdir()
    found = find_sources([tmp_path / "none.json", tmp_path / "empty", TABLES / "operator_details.csv"])
    assert names(found) == [("none.json", ABSENT)]  # opened, and refused, where it is loaded
    assert [(each.path, "expected" in each.error) for each in found.skipped] == [
        (str(tmp_path / "empty"), True),
        (str(TABLES / "operator_details.csv"), True),
    ]
    with pytest.raises(MalformedError, match=r"none\.json"):
        load_source(found.sources[0])


def test_ascend_output_is_one_source_with_its_tables():
    """The rank's folder: kernels come along, the rank is known; the trace alone is a source without them."""
    trace = RANK / "ASCEND_PROFILER_OUTPUT" / "trace_view.json.gz"
    for path, has_kernels in ((RANK, True), (trace, False)):
        (source,) = find_sources([path]).sources
        loaded = load_source(source)
        assert rank_of(source, loaded.columns) == (0 if path == RANK else source.named_rank)
        assert (loaded.evidence.kernels is not None) is has_kernels
        assert loaded.skipped == ()


def test_a_rank_that_kept_its_tables_alone(tmp_path):
    """No trace: the kernels are the trace, device work without a host, with their collectives' groups and numbers."""
    output = tmp_path / "rank1_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    for name in ("kernel_details_arithmetic.csv", "communication.json"):
        (output / name.replace("_arithmetic", "")).write_bytes((TABLES / name).read_bytes())
    (source,) = find_sources([tmp_path]).sources
    loaded = load_source(source)
    kernels, columns = loaded.evidence.kernels, loaded.columns
    assert rank_of(source, columns) == 1
    assert len(columns) == len(kernels) > 0
    assert (columns.work == WorkKind.COMMUNICATION).tolist() == kernels.communicates.tolist()
    assert columns.on_device.all()
    assert len(columns.collectives) == kernels.communicates.sum()
    assert len(loaded.evidence.communication) > 0
    analysis = analyse_rank(columns, rank=1, evidence=loaded.evidence)
    assert analysis.breakdown.window_ns == sum(each.ns for each in analysis.path.shares) == analysis.length_ns
    assert analysis.breakdown.host_active_ns == 0


def test_communication_comes_from_the_analysis_database(tmp_path):
    """A rank exported as databases alone has its links in analysis.db; a database without the tables is skipped."""
    make(tmp_path / "ascend_pytorch_profiler_4.db")
    write_analysis(tmp_path / "analysis.db")
    (source,) = find_sources([tmp_path]).sources
    assert load_source(source).evidence.communication.link_bytes.tolist() == [2_000_000]
    (tmp_path / "analysis.db").unlink()
    executed(tmp_path / "analysis.db", "CREATE TABLE StepTraceTime (step)")
    loaded = load_source(source)
    assert loaded.evidence.communication is None
    assert [(each.path, "CommAnalyzerTime" in each.error) for each in loaded.skipped] == [
        (str(tmp_path / "analysis.db"), True)
    ]


def test_tables_without_a_row_are_refused(tmp_path):
    """A header alone is no trace, and the error states that."""
    header = (TABLES / "kernel_details_arithmetic.csv").read_text().splitlines()[0]
    (tmp_path / "kernel_details.csv").write_text(header + "\n")
    (source,) = find_sources([tmp_path]).sources
    with pytest.raises(MalformedError, match="no row that can be used"):
        load_source(source)


def test_a_clusters_file_of_communication_is_kept_apart():
    """It is no rank's: a folder with nothing else has no trace, and no file of it is refused."""
    found = find_sources([CLUSTER])
    assert [each.name for each in found.cluster_communication] == ["cluster_communication.json"]
    assert found.sources == []


def test_a_broken_table_next_to_a_trace_is_passed_over(tmp_path):
    """The trace counts, its kernels are missing, and why is reported."""
    output = tmp_path / "rank4_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    trace = RANK / "ASCEND_PROFILER_OUTPUT" / "trace_view.json.gz"
    (output / trace.name).write_bytes(trace.read_bytes())
    (output / "kernel_details.csv").write_text("not,a,header\n1,2,3\n")
    (source,) = find_sources([tmp_path]).sources
    loaded = load_source(source)
    assert rank_of(source, loaded.columns) == 4
    assert loaded.evidence.kernels is None
    assert [each.path for each in loaded.skipped] == [str(output / "kernel_details.csv")]


def test_stored_columns_are_a_source(tmp_path):
    """What an earlier run stored is read again, under its rank."""
    write_columns(rank_columns(1, has_rank=False), tmp_path / "1.parquet")
    (source,) = find_sources([tmp_path]).sources
    assert source.named_rank == 1
    assert len(load_source(source).columns) == len(rank_columns(1))


def test_the_trace_knows_better_than_its_name(tmp_path):
    """A recording of rank 2 that somebody called rank0."""
    path = write(tmp_path, RECORDING.read_bytes(), "rank0.json.gz")
    (source,) = find_sources([path]).sources
    assert source.named_rank == 0
    assert rank_of(source, load_source(source).columns) == 2
