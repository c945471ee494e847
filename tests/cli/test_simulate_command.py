"""`lockstep simulate`: what it prints, the trace that it writes, and the picture."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from lockstep.cli.main import main
from lockstep.cli.simulation.chrome import chrome_trace
from lockstep.cli.simulation.picture import ROWS_MAX, timeline_picture
from lockstep.simulator.spec import load_spec
from lockstep.simulator.step_timeline import simulated_timeline
from lockstep.trace.columns import WorkKind
from lockstep.trace.kineto.load import load_trace
from tests.support.browser import chromium

KEYS = {
    *(
        "step_seconds",
        "tokens_per_second",
        "device_hours_per_billion_tokens",
        "cost",
        "mfu_ratio",
        "communication_seconds",
        "bubble_seconds",
    ),
    *("peak_memory_bytes", "stage_memory_bytes", "usable_memory_bytes", "out_of_memory", "error_band_ratio"),
}
SPEC = """\
name: a & <small> job
model: {type: gpt, layers: 8, hidden: 1024, heads: 16, sequence: 512, vocabulary: 1024}
batch: 32
strategy: {tp: 8, pp: 2, micro_batches: 4}
cluster:
  preset: HC2
  health: {ranks: {3: 0.5}}
calibration: {error_band_ratio: 0.08}
"""
OVERLAPS = """(() => { const boxes = [...document.querySelectorAll("text")]
  .map(each => [each.textContent, each.getBoundingClientRect()]);
  return boxes.flatMap(([text, a], at) => boxes.slice(at + 1)
    .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3).map(([other]) => text + " | " + other)); })()"""
OUTSIDE = """(() => { const page = document.documentElement.getBoundingClientRect();
  return [...document.querySelectorAll("text, rect, path")].map(each => [each.textContent, each.getBoundingClientRect()])
    .filter(([, box]) => box.left < page.left - 1 || box.right > page.right + 1 || box.bottom > page.bottom + 1)
    .map(([text]) => text); })()"""
ON_TEXT = """(() => { const marks = [...document.querySelectorAll("rect[class]:not(.back), path")]
    .map(each => each.getBoundingClientRect());
  return [...document.querySelectorAll("text")].filter(each => { const a = each.getBoundingClientRect();
    return marks.some(b => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3); }).map(each => each.textContent); })()"""
BACK = """getComputedStyle(document.querySelector("rect.back")).fill"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    return file


def test_a_person_reads_step_time_place_and_memory(path, capsys):
    """Step with its band, throughput, MFU, where the time goes, memory by stage, and what is sick."""
    assert main(["simulate", str(path)]) == 0
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert lines[0] == "a & <small> job"
    assert "tp=8, pp=2, 4 micro-batches" in lines[2]
    step = next(line for line in lines if line.startswith("step"))
    assert "ms" in step
    assert "+-8.0% (calibrated)" in step
    parts = [line for line in lines if line.startswith(("  computing", "  communicating", "  idle"))]
    shares = [float(part.rstrip("%")) for line in parts for part in line.split() if part.endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=1.5)
    assert [line.split()[:2] for line in lines if line.startswith("  stage")] == [["stage", "0"], ["stage", "1"]]
    assert "degraded: rank/3" in output


def test_json_has_these_keys_and_no_others(path, capsys):
    """What other programs read is a contract, and states what the library gives."""
    assert main(["simulate", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == KEYS
    assert set(report["communication_seconds"]) == {"total", "exposed", "by_kind"}
    found = load_spec(SPEC, "x").forecast()
    assert report["step_seconds"] == found.step_seconds
    assert report["peak_memory_bytes"] == list(found.peak_memory_bytes)
    hours = 1e9 / report["tokens_per_second"] / 3600 * load_spec(SPEC, "spec").degrees.ranks
    assert report["device_hours_per_billion_tokens"] == pytest.approx(hours)
    assert report["error_band_ratio"] == 0.08


def test_memory_that_does_not_suffice_is_printed(path, capsys):
    """A job that does not fit is reported loudly, for people and programs."""
    path.write_text(SPEC.replace("preset: HC2", "preset: HC2\n  device: {memory_bytes: 1e8}"))
    assert main(["simulate", str(path)]) == 0
    assert "OUT OF MEMORY" in capsys.readouterr().out
    assert main(["simulate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["out_of_memory"] is True


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        (SPEC.replace("layers", "leyers"), "line 2, column 20: got the unknown key 'leyers', expected 'layers'"),
        (SPEC.replace("tp: 8", "tp: 8, virtual: 2, max_ongoing: 1"), "max_ongoing: got 1"),
        ("\udcff", "expected UTF-8"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(path, text, expected_text, capsys):
    """A wrong field, a job that cannot be, bytes that are no text."""
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert main(["simulate", str(path)]) == 2
    error = capsys.readouterr().err
    assert expected_text in error
    assert error.count("\n") == 1


def test_files_that_cannot_be_are_named(path, tmp_path, capsys):
    """A specification that is not there, a trace that cannot be written."""
    assert main(["simulate", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: got No such file" in capsys.readouterr().err
    assert main(["simulate", str(path), "--trace", str(tmp_path / "no" / "trace.json")]) == 2
    assert "--trace" in capsys.readouterr().err


def test_the_trace_is_read_again(path, tmp_path, capsys):
    """Loaded as any trace: processes and threads by name, times to the ns, collectives as communication."""
    trace = tmp_path / "trace.json"
    assert main(["simulate", str(path), "--trace", str(trace)]) == 0
    capsys.readouterr()
    columns = load_trace(trace)
    rows, step_s = simulated_timeline(load_spec(SPEC, "x"))
    assert [row.ranks for row in rows] == [7, 1, 7, 1]
    assert columns.dropped_count == 0
    assert len(columns) == sum(len(lane.spans) for row in rows for lane in row.lanes)
    assert set(columns.thread_names.values()) >= {"compute", "feature", "send"}
    assert int(columns.end_ns.max() - columns.start_ns.min()) == pytest.approx(step_s * 1e9, abs=2)
    communication = columns.work == WorkKind.COMMUNICATION
    queues = [columns.thread_names[code] for code in columns.thread.tolist()]
    assert [queue != "compute" for queue in queues] == communication.tolist()
    mine = sum(span.end_s - span.start_s for span in rows[1].lanes[0].spans)
    process = [columns.threads[code][0] for code in columns.thread.tolist()]
    theirs_ns = columns.duration_ns[(np.array(process) == 1) & ~communication].sum()
    assert theirs_ns == pytest.approx(mine * 1e9, abs=2 * len(rows[1].lanes[0].spans))


def test_threads_of_the_trace_never_overlap():
    """Complete events of a thread follow each other to the last thousandth, as viewers need them."""
    rows, _ = simulated_timeline(load_spec(SPEC.replace("pp: 2, micro_batches: 4", "dp: 2"), "x"))
    ends = {}
    events = json.loads(chrome_trace(rows, "x"))["traceEvents"]
    named = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert named == {"compute", "feature", "gradient"}
    for event in events:
        if event["ph"] == "X":
            key = event["pid"], event["tid"]
            assert event["ts"] >= ends.get(key, 0.0) - 1e-6
            ends[key] = event["ts"] + event["dur"]


def test_the_picture_is_well_formed_and_bounded(path, tmp_path, capsys):
    """One document, names escaped, a mark for every class; many classes are counted, not drawn."""
    file = tmp_path / "picture.svg"
    assert main(["simulate", str(path), "--picture", str(file)]) == 0
    capsys.readouterr()
    root = ET.fromstring(file.read_text())
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text and text.startswith("a & <small> job: one step of") for text in texts)
    rows, step_s = simulated_timeline(load_spec(SPEC, "x"))
    many = timeline_picture(rows * 20, step_s, "x" * 10_000)
    assert f"{80 - ROWS_MAX} more classes of ranks" in many
    assert len(many) < 400_000


@pytest.mark.servers
def test_the_picture_reads_in_both_schemes(tmp_path):
    """In a browser no text lies on another or on a mark, nothing lies outside, and the back follows the scheme."""
    file = Path(tmp_path, "picture.svg")
    rows, step_s = simulated_timeline(load_spec(SPEC, "x"))
    file.write_text(timeline_picture(rows * 10, step_s, "a name of " + "many words " * 30))
    backs = []
    with chromium() as browser:
        for scheme in ("light", "dark"):
            browser.open(file, width=1140, scheme=scheme)
            assert browser.complaints == []
            assert browser.ask(OVERLAPS) == []
            assert browser.ask(ON_TEXT) == []
            assert browser.ask(OUTSIDE) == []
            backs.append(browser.ask(BACK))
    assert backs == ["rgb(255, 255, 255)", "rgb(13, 17, 23)"]


def test_the_strategy_is_named_with_its_layout(tmp_path, capsys):
    """Hybrid sharding, whole experts and a ring stand in the line of the strategy."""
    file = tmp_path / "layout.yaml"
    file.write_text(
        "model: {type: moe, layers: 4, hidden: 512, heads: 8, sequence: 4096, ffn: 256, experts: 8}\n"
        "batch: 32\n"
        "strategy: {tp: 2, cp: 2, ep: 4, expert_tp: 1, dp: 4, zero: 1, hsdp_replicas: 2, context_exchange: ring}\n"
        "cluster: {preset: DGX H100, nodes: 2}\n"
    )
    assert main(["simulate", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "tp=2, cp=2, ep=4, dp=4, zero=1, 2 HSDP replicas, experts whole on a rank, ring, 1 micro-batch" in shown
