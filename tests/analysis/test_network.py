"""Network settings from the doctor's files and from what traces carry; insufficient evidence where neither has them."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lockstep.analysis.analyse import analyse_paths
from lockstep.analysis.doctor_reports import REPORT_MAX_BYTES, is_doctor_report, read_report
from lockstep.analysis.sources import find_sources
from lockstep.analysis.workers import run_here
from lockstep.cli.main import main
from lockstep.contracts.errors import MalformedError, NoTraceError
from lockstep.doctor.facts import FACTS_VERSION, read_facts
from lockstep.trace.store import write_columns
from tests.analysis.job import RANKS, rank_columns

BAD = {"NCCL_IB_DISABLE": "1", "PATH": "/bin"}


def facts(host, environment, **more):
    return json.dumps({"facts_version": FACTS_VERSION, "host": host, "environment": environment, **more})


def job(folder, hosts=("node",) * 4, **metadata):
    """Write four ranks' traces, each on one of the hosts."""
    for rank, host in zip(RANKS, hosts, strict=True):
        columns = rank_columns(rank)
        rank_metadata = {name: values[rank] for name, values in metadata.items()}
        write_columns(
            replace(columns, metadata=replace(columns.metadata, host=host, **rank_metadata)), folder / f"{rank}.parquet"
        )
    return folder


def summary(folder):
    return analyse_paths([folder], partial(run_here, processes=1)).as_json()


def found(folder):
    return [
        (each["subject"], each["ranks"])
        for each in summary(folder)["findings"]
        if each["cause"] == "network_configuration"
    ]


def refused(folder):
    return [
        (each["ranks"], each["reason"])
        for each in summary(folder)["not_evaluated"]
        if each["rule"] == "network_configuration"
    ]


def test_nothing_gives_a_kind(tmp_path):
    """Insufficient evidence, reported once."""
    job(tmp_path)
    assert found(tmp_path) == []
    ((ranks, reason),) = refused(tmp_path)
    assert (ranks, reason.split(":")[0]) == ([], "insufficient evidence")


def test_facts_of_the_ranks_host(tmp_path):
    """The doctor's facts of one of two hosts: its ranks are evaluated, of the others it states that nothing is known."""
    job(tmp_path, ("node1.example", "node1.example", "node2", "node2"))
    (tmp_path / "node1.json").write_text(facts("node1", BAD))
    assert found(tmp_path) == [("NCCL_IB_DISABLE", [0, 1])]
    assert [ranks for ranks, _ in refused(tmp_path)] == [[2, 3]]


def test_hosts_that_differ(tmp_path):
    """A variable that one host has otherwise, and the versions that the doctor read."""
    job(tmp_path, ("a", "a", "a", "b"))
    versions = {"nvidia-nccl-cu12": "2.21.5", "numpy": "2.0"}
    (tmp_path / "a.json").write_text(facts("a", {"NCCL_ALGO": "Ring"}, versions=versions))
    (tmp_path / "b.json").write_text(
        facts("b", {"NCCL_ALGO": "Tree"}, versions=versions | {"nvidia-nccl-cu12": "2.20.3", "numpy": "1.0"})
    )
    assert sorted(found(tmp_path)) == [("NCCL_ALGO", [3]), ("nvidia-nccl-cu12 version", [3])]
    assert refused(tmp_path) == []


def test_traces_without_a_host_take_the_nearest_facts(tmp_path):
    """The only facts in the trace's folder, else above; of several no one knows which."""
    folder = tmp_path / "node"
    folder.mkdir()
    job(folder, ("",) * 4)
    (tmp_path / "x.json").write_text(facts("x", BAD))
    assert found(tmp_path) == [("NCCL_IB_DISABLE", [0, 1, 2, 3])]
    (folder / "y.json").write_text(facts("y", {}))
    assert found(tmp_path) == refused(tmp_path) == []
    (folder / "z.json").write_text(facts("z", BAD))
    assert found(tmp_path) == []
    assert len(refused(tmp_path)) == 1


def test_verdicts_of_the_doctor(tmp_path, capsys, monkeypatch):
    """`lockstep doctor --json` and `--facts` as they write them, next to the traces."""
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    main(["doctor", "--json"])
    report_text = capsys.readouterr().out
    (host,) = json.loads(report_text)["nodes"]
    job(tmp_path, (host, host, "other", "other"))
    (tmp_path / "doctor.json").write_text(report_text)
    assert found(tmp_path) == [("collective library", [0, 1])]
    (tmp_path / "doctor.json").unlink()
    assert main(["doctor", "--facts", str(tmp_path / "facts.json")]) == 0
    assert ("NCCL_P2P_DISABLE", [0, 1]) in found(tmp_path)


def test_what_traces_carry(tmp_path):
    """Variables that a profiler noted, and the library's version; what it did not list is not held to be unset."""
    noted = [{"HCCL_RDMA_TIMEOUT": "4"}, {"HCCL_RDMA_TIMEOUT": "20"}, {"HCCL_RDMA_TIMEOUT": "20"}, {"HCCL_RDMA_TC": ""}]
    versions = [{"NCCL": "2.21.5"}] * 3 + [{}]
    job(tmp_path, environment=noted, versions=versions)
    assert sorted(found(tmp_path)) == [("HCCL_RDMA_TIMEOUT", [0]), ("HCCL_RDMA_TIMEOUT", [0])]
    assert refused(tmp_path) == []
    job(tmp_path, environment=[{}] * 4, versions=[{"NCCL": "2.21.5"}] * 3 + [{"NCCL": "2.20.3"}])
    assert found(tmp_path) == [("NCCL version", [3])]


def test_a_folder_of_reports_has_no_trace(tmp_path):
    """They are no traces, whatever their name, and this machine's own are read."""
    (tmp_path / "rank0.json").write_text(json.dumps(read_facts()))
    sources = find_sources([tmp_path])
    assert (sources.sources, len(sources.reports)) == ([], 1)
    with pytest.raises(NoTraceError, match="expected traces below it"):
        summary(tmp_path)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ('{"facts_version": 1, ', True),
        ('\n {\n "nodes": {', True),
        ('{"schemaVersion": 1, "nodes": {}}', False),
        ('[{"facts_version": 1}]', False),
        ("", False),
    ],
)
def test_reports_are_known_by_their_beginning(tmp_path, text, is_one):
    """No trace begins like one."""
    path = tmp_path / "x.json"
    path.write_text(text)
    assert is_doctor_report(path) == is_one
    assert not is_doctor_report(tmp_path / "none.json")


@pytest.mark.parametrize(
    "text",
    [
        '{"facts_version": 1, "host": "a"',
        '{"facts_version": 2, "host": "a", "environment": {}}',
        '{"facts_version": 1, "host": 7, "environment": {}}',
        '{"facts_version": 1, "host": "a", "environment": []}',
        '{"facts_version": 1, "host": "a", "environment": {"x": "' + "y" * REPORT_MAX_BYTES + '"}}',
        '{"nodes": ' + "[" * 100_000,
    ],
    ids=["cut off", "version", "host", "environment", "too large", "deep"],
)
def test_broken_reports_are_passed_over_by_name(tmp_path, text):
    """The traces next to them are analysed."""
    job(tmp_path)
    path = tmp_path / "doctor.json"
    path.write_text(text)
    with pytest.raises(MalformedError):
        read_report(path)
    assert [Path(each["path"]).name for each in summary(tmp_path)["skipped"]] == ["doctor.json"]


def test_verdicts_of_another_form_are_not_counted(tmp_path):
    """Parts that make no sense are left out."""
    path = tmp_path / "doctor.json"
    good = {"name": "collective library", "verdict": "warn", "found": "NCCL_P2P_DISABLE=1"}
    report = {
        "nodes": {"a": [7, {"name": 1, "verdict": "warn"}, good, {**good, "verdict": "ok"}], "b": 3},
        "between_nodes": None,
    }
    path.write_text(json.dumps(report))
    assert [(each.host, each.name) for each in read_report(path).checks] == [("a", "collective library")]
