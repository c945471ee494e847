"""`lockstep.analyze`, `lockstep.read_steps` and `lockstep.incidents`."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lockstep
from lockstep.cli.main import main
from lockstep.contracts.errors import ConfigError, MalformedError, PeerError
from lockstep.notebook.analyses import AnalysisResult
from tests.coordinator.test_runs import play
from tests.coordinator.web import FAULTY, Site

RECORDED = Path(__file__).parents[1] / "analysis" / "recorded"


def test_an_analysis_is_that_of_the_command(capsys):
    """The same summary as `lockstep analyze --json`, as tables and as HTML."""
    found = lockstep.analyze(RECORDED / "loader")
    assert main(["analyze", "--json", str(RECORDED / "loader")]) == 0
    assert found.summary == json.loads(capsys.readouterr().out)
    findings = found.findings()
    assert findings.loc[0, "ranks"].tolist() == [2]
    assert findings.loc[0, "lost_ns"] > 10**7
    assert findings.loc[0, "advice"].tolist()
    ranks = found.ranks()
    parts = ["compute_ns", "communication_ns", "host_ns", "overlap_ns", "free_ns"]
    assert ranks[parts].sum(axis=1).tolist() == ranks["window_ns"].tolist()
    html = found._repr_html_()
    assert findings.loc[0, "cause"].replace("_", " ") in html
    assert html.count("<table") == html.count("</table>") == 2


def test_a_name_from_a_trace_is_text_in_a_notebook():
    """What a hostile trace calls its function is escaped."""
    found = lockstep.analyze(RECORDED / "loader")
    found.summary["findings"][0]["subject"] = "<script>alert(1)</script>"
    assert "<script>" not in AnalysisResult(found.summary)._repr_html_()


def test_nothing_found_is_a_sentence():
    """A healthy job's answer names its ranks and no finding."""
    found = lockstep.analyze([RECORDED / "healthy"])
    assert repr(found) == "<lockstep analysis of 4 ranks: 0 findings>"
    assert "Nothing was found" in found._repr_html_()
    assert len(found.findings()) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"processes": 0}, "processes: got 0, expected at least 1"),
        ({"domains": "tp=x"}, "domains: "),
        ({"order": "tp-tp"}, "order: "),
    ],
)
def test_a_wrong_argument_is_named(arguments, message):
    """What, got, expected."""
    with pytest.raises(ConfigError, match=message):
        lockstep.analyze(RECORDED / "healthy", **arguments)


def test_a_report_is_one_file(tmp_path):
    """The same page that `--out` writes."""
    lockstep.analyze(RECORDED / "healthy").write_report(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


def _step_log(path, rows=6):
    columns = {
        "rank": np.arange(rows) % 2,
        "step": np.arange(rows) // 2,
        "start_ns": 10**18 + np.arange(rows) // 2 * 1000,
        "duration_ns": np.full(rows, 1000),
        "compute_ns": np.full(rows, 600),
        "host_ns": np.full(rows, 100),
        "data_ns": np.full(rows, 50),
        "gc_ns": np.zeros(rows, int),
        "world_wait_ns": np.full(rows, 250),
        "tokens": pa.array([None, *range(1, rows)]),
    }
    pq.write_table(pa.table(columns), path)


def test_a_step_log_is_a_frame(tmp_path):
    """One row for each step of each rank; what was not measured is <NA>, a measured zero is 0."""
    _step_log(tmp_path / "steps.parquet")
    frame = lockstep.read_steps(tmp_path / "steps.parquet")
    assert frame[["rank", "step"]].to_numpy().tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]
    assert frame["gc_ns"].tolist() == [0] * 6
    assert frame["tp_wait_ns"].isna().all()
    assert frame["tokens"].isna().tolist() == [True] + [False] * 5
    assert frame["run"].unique().tolist() == ["run"]
    assert frame.groupby("step")["compute_ns"].median().tolist() == [600.0] * 3


def test_what_is_no_step_log_is_named(tmp_path):
    """File and column."""
    pq.write_table(pa.table({"rank": [1]}), tmp_path / "steps.parquet")
    with pytest.raises(MalformedError, match=r"column in .*steps.parquet: got no step, .*, expected rank, step, "):
        lockstep.read_steps(tmp_path / "steps.parquet")


async def test_incidents_of_a_coordinator():
    """Rows of the coordinator's own application, chosen by run and state."""
    async with Site() as site:
        play(site.runs, FAULTY, 0, 50)
        url = str(site.client.make_url("/"))
        frame = await asyncio.to_thread(lockstep.incidents, url)
        assert frame["cause"].tolist() == ["data"]
        assert frame.loc[0, "ranks"].tolist() == [2]
        assert frame["closed_step"].isna().tolist() == [True]
        assert frame.loc[0, "onset_step"] == 40
        assert len(await asyncio.to_thread(lockstep.incidents, url, state="closed")) == 0
        assert len(await asyncio.to_thread(lockstep.incidents, url, run="other")) == 0
        with pytest.raises(PeerError, match=r"got 404 Not Found \(.*\), expected 200"):
            await asyncio.to_thread(lockstep.incidents, url + "/wrong")


@pytest.mark.parametrize("url", ["coordinator:9856", "http://", "ftp://host", "http://[::1"])
def test_an_address_that_is_none_is_refused(url):
    """Before anything is sent."""
    with pytest.raises(ConfigError, match=r"url: got .*, expected a URL like http://coordinator:9856"):
        lockstep.incidents(url)


def test_no_coordinator_is_an_error_that_names_the_address():
    """Nothing listens on port 9 of this machine."""
    with pytest.raises(PeerError, match=r"coordinator at http://127.0.0.1:9/api/v1/incidents: got no answer"):
        lockstep.incidents("http://127.0.0.1:9")


def test_a_state_that_is_none_is_refused():
    """What, got, expected."""
    with pytest.raises(ConfigError, match="state: got 'opened', expected 'open', 'closed' or ''"):
        lockstep.incidents("http://127.0.0.1:9", state="opened")
