"""`lockstep calibrate`: what it writes is what made the measurements, and what `simulate` and `whatif` read."""

import json
import sys

import numpy as np
import pytest

from coordinator.record.steplog import StepLog, write
from lockstep.cli.main import main
from lockstep.contracts.errors import LockstepError
from lockstep.simulator.calibration.online import Setup, computing
from lockstep.simulator.spec import load_spec

SPEC = """\
model: {type: gpt, layers: 4, hidden: 1024, heads: 16, sequence: 1024, vocabulary: 8192}
batch: 64
strategy: {dp: 8, tp: 2}
cluster: {preset: DGX A100, nodes: 2}
"""
TRUTH = """\
calibration:
  parameters: {matrix_efficiency: 0.55}
  links: {network: {bandwidth_ratio: 0.4}}
"""
STEPS = 48
SECOND_NS = 10**9


def write_runs(path, *, truth=TRUTH, extra="", batches=(64, 128)):
    """Write the steps of four layouts of the job in each batch as the truth has them.

    Of one batch, a single parameter is fitted, which takes a tenth of the time.
    """
    true = load_spec(SPEC + truth, "truth")
    lines = ["strategy.tp,strategy.dp,batch,step_seconds" + extra]
    for tp, dp in ((2, 8), (1, 16), (4, 4), (8, 2)):
        for batch in batches:
            job = true.changed_by({"strategy.tp": tp, "strategy.dp": dp, "batch": batch})
            lines.append(f"{tp},{dp},{batch},{job.forecast().step_seconds}")
    path.write_text("\n".join(lines) + "\n")


def write_steps(path, *, slower=1.3, overhead_s=0.004):
    """Write a step log of ranks that compute `slower` than the job does, without noise but a thousandth."""
    spec = load_spec(SPEC, "job")
    forecast = Setup.of(spec).forecast()
    compute_s, wait_s = computing(forecast) * slower, forecast.step_seconds - computing(forecast)
    random = np.random.default_rng(5)
    n = spec.degrees.ranks
    step = np.repeat(np.arange(STEPS), n)
    jitter = np.repeat(1 + 0.001 * random.normal(size=STEPS), n)
    compute = (compute_s * jitter * SECOND_NS).astype(np.int64)
    wait = np.full(len(step), int(wait_s * SECOND_NS))
    data = np.full(len(step), int(overhead_s * SECOND_NS))
    zero = np.zeros(len(step), dtype=np.int64)
    columns = {
        "rank": np.tile(np.arange(n), STEPS),
        "step": step,
        "start_ns": step * SECOND_NS,
        "duration_ns": compute + wait + data,
        "compute_ns": compute,
        "data_ns": data,
        "host_ns": zero,
        "gc_ns": zero,
        "dp_wait_ns": wait,
        "tp_wait_ns": zero,
    }
    write(StepLog("job", columns), path)
    return float(np.median(columns["duration_ns"])) / SECOND_NS


@pytest.mark.parametrize("network", [0.4, 0.3, 0.2, 0.15, 0.12, 0.1, 0.05])
def test_measured_runs_give_back_what_made_them(tmp_path, capsys, network):
    """Network and device come back apart; the file makes `simulate` foretell a layout that was not measured."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    truth = TRUTH.replace("0.4", str(network))
    write_runs(tmp_path / "runs.csv", truth=truth)
    arguments = [str(tmp_path / "spec.yaml"), "--runs", str(tmp_path / "runs.csv")]
    assert main(["calibrate", *arguments, "--output", str(tmp_path / "found.yaml")]) == 0
    assert "held out" in capsys.readouterr().out
    found = load_spec(SPEC + "calibration: {file: found.yaml}\n", "found", folder=tmp_path)
    true = load_spec(SPEC + truth, "truth")
    assert found.calibration.parameters["matrix_efficiency"] == pytest.approx(0.55, rel=0.05)
    assert found.calibration.parameters["network/bandwidth_ratio"] == pytest.approx(network, rel=0.1)
    assert found.calibration.error_band_ratio < 0.02
    other = {"strategy.tp": 2, "strategy.dp": 8, "strategy.micro_batches": 4, "batch": 256}
    foretold = found.changed_by(other).forecast()
    assert foretold.step_seconds == pytest.approx(true.changed_by(other).forecast().step_seconds, rel=0.03)
    assert foretold.error_band_ratio == found.calibration.error_band_ratio
    (tmp_path / "calibrated.yaml").write_text(SPEC + "calibration: {file: found.yaml}\n")
    assert main(["whatif", str(tmp_path / "calibrated.yaml"), "--degrees", "tp=4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["now"]["error_band_ratio"] == found.calibration.error_band_ratio


def test_a_step_log_gives_the_step_of_the_run(tmp_path, capsys):
    """The section fitted to a log of slower ranks makes the forecast their step, time outside it included."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    measured_s = write_steps(tmp_path / "log.parquet")
    assert main(["calibrate", str(tmp_path / "spec.yaml"), "--steps", str(tmp_path / "log.parquet")]) == 0
    (tmp_path / "found.yaml").write_text(capsys.readouterr().out)
    found = load_spec(SPEC + "calibration: {file: found.yaml}\n", "found", folder=tmp_path)
    plain = load_spec(SPEC, "plain").forecast()
    assert found.calibration.overhead_seconds == pytest.approx(0.004, abs=0.1 * measured_s)
    assert found.forecast().step_seconds == pytest.approx(measured_s, rel=0.01)
    assert plain.step_seconds < 0.9 * measured_s
    assert 0 < found.calibration.error_band_ratio < 0.02


def test_a_configuration_is_fitted_or_held_out_as_a_whole(tmp_path, capsys):
    """Repetitions of one configuration are one run, so that the band is not that of runs that were fitted."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    runs = tmp_path / "runs.csv"
    write_runs(runs, batches=(64,))
    head, *rows = runs.read_text().splitlines()
    arguments = ["calibrate", str(tmp_path / "spec.yaml"), "--runs", str(runs)]
    assert main(arguments) == 0
    once = capsys.readouterr().out
    late = [",".join((*row.split(",")[:3], str(5 * float(row.split(",")[3])))) for row in rows]
    runs.write_text(
        "\n".join([head, *(each for row, slow in zip(rows, late, strict=True) for each in (row, row, slow))])
    )
    assert main(arguments) == 0
    assert capsys.readouterr().out == once
    runs.write_text("\n".join([head, rows[0], rows[0]]))
    assert main(arguments) == 2
    assert "got 2 of one configuration" in capsys.readouterr().err


def test_a_table_as_spreadsheets_write_it(tmp_path, capsys):
    """A mark of the byte order, blanks around names and empty lines do not matter."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    runs = tmp_path / "runs.csv"
    write_runs(runs, batches=(64,))
    arguments = ["calibrate", str(tmp_path / "spec.yaml"), "--runs", str(runs)]
    assert main(arguments) == 0
    plain = capsys.readouterr().out
    text = runs.read_text().replace(",", " , ").replace("\n", "\r\n\r\n")
    runs.write_text(text, encoding="utf-8-sig")
    assert main(arguments) == 0
    assert capsys.readouterr().out == plain


def test_what_it_cannot_use_is_refused(tmp_path, capsys):
    """Other ranks than the job's, no step times, a value that no specification takes, too few rows: each by place."""
    spec, runs = tmp_path / "spec.yaml", tmp_path / "runs.csv"
    spec.write_text(SPEC)
    write_steps(tmp_path / "log.parquet")
    half = tmp_path / "half.yaml"
    half.write_text(SPEC.replace("dp: 8", "dp: 4"))

    def refusal(*arguments):
        assert main(["calibrate", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    assert "expected steps of all 8" in refusal(half, "--steps", tmp_path / "log.parquet")
    assert "got no such file or folder" in refusal(spec, "--steps", tmp_path / "none.parquet")
    runs.write_text("batch,step_seconds\n64,0.1\n")
    assert "got 1 rows, expected 2 to" in refusal(spec, "--runs", runs)
    runs.write_text("batch,seconds\n64,0.1\n64,0.2\n")
    assert "expected step_seconds" in refusal(spec, "--runs", runs)
    runs.write_text("batch,step_seconds\n64,0.1\n65,0.2\n")
    assert "runs.csv, line 3" in refusal(spec, "--runs", runs)
    for step in ("soon", "-1", "0", "inf", "nan", ""):
        runs.write_text(f"batch,step_seconds\n64,0.1\n64,{step}\n")
        assert "runs.csv, line 3" in refusal(spec, "--runs", runs)
    runs.write_text("batch,step_seconds\n64,0.1\n64,0.1,7\n")
    assert "got 1 more cells, expected 2 cells" in refusal(spec, "--runs", runs)
    runs.write_text("batch,step_seconds,tokens_per_second\n64,0.1,5\n128,0.1,5\n")
    assert "tokens_per_second" in refusal(spec, "--runs", runs)
    runs.write_text("cluster.nodes,step_seconds\n2,0.1\n4,0.2\n")
    assert "of which a run takes the first devices" in refusal(spec, "--runs", runs)


def test_no_fit_passes_a_physical_bound(tmp_path, capsys):
    """Steps that are faster than the device at its peak give an efficiency of 1, and a band that shows the misfit."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    runs = tmp_path / "runs.csv"
    write_runs(runs)
    head, *rows = runs.read_text().splitlines()
    faster = [",".join((*row.split(",")[:3], str(float(row.split(",")[3]) / 10))) for row in rows]
    runs.write_text("\n".join([head, *faster]) + "\n")
    assert (
        main(["calibrate", str(tmp_path / "spec.yaml"), "--runs", str(runs), "--output", str(tmp_path / "f.yaml")]) == 0
    )
    capsys.readouterr()
    found = load_spec(SPEC + "calibration: {file: f.yaml}\n", "found", folder=tmp_path)
    assert found.calibration.parameters["matrix_efficiency"] == 1.0
    assert found.calibration.error_band_ratio > 0.5


def test_a_calibration_is_checked_like_the_rest():
    """An efficiency above 1, a level that the cluster has not, a file together with values."""
    for section, message in (
        ("{parameters: {matrix_efficiency: 1.49}}", "matrix_efficiency"),
        ("{links: {fabric: {bandwidth_ratio: 0.5}}}", "unknown level 'fabric'"),
        ("{file: a.yaml, overhead_seconds: 1}", "overhead_seconds and a file"),
        ("{file: a.yaml}", "files are not read here"),
    ):
        with pytest.raises(LockstepError, match=message):
            load_spec(SPEC + f"calibration: {section}\n", "spec")


CPU_SPEC = """\
model: {type: gpt, layers: 2, hidden: 256, heads: 4, sequence: 128, vocabulary: 512, precision: full}
strategy: {dp: 2}
batch: 8
cluster:
  device: {name: core, flops_per_second: 1.0e+13, memory_bytes_per_second: 1.0e+12, memory_bytes: 8.0e+9}
  levels: [{name: loopback, fanout: 2, bytes_per_second: 1.0e+10, launch_s: 1.0e-4}]
"""


@pytest.mark.torch
def test_operators_of_this_machine(tmp_path, capsys):
    """Products, memory, attention and all-reduces of two ranks, in the file that `simulate` reads."""
    (tmp_path / "spec.yaml").write_text(CPU_SPEC)
    arguments = ["--operators", "--device", "cpu", "--seconds", "1", "--local-ranks", "2"]
    output = tmp_path / "calibration.yaml"
    assert main(["calibrate", str(tmp_path / "spec.yaml"), *arguments, "--output", str(output)]) == 0
    assert "error of those held out: products" in capsys.readouterr().out
    job = load_spec(CPU_SPEC + "calibration: " + json.dumps({"file": "calibration.yaml"}), "made", folder=tmp_path)
    parameters = job.calibration.parameters
    assert {"matrix_efficiency", "memory_efficiency", "attention_ratio", "half_flops"} <= parameters.keys()
    assert {"loopback/bandwidth_ratio", "loopback/latency_ratio"} <= parameters.keys()
    assert 0 < parameters["matrix_efficiency"] <= 1
    assert job.forecast().error_band_ratio is None


def test_operators_need_pytorch(tmp_path, capsys, monkeypatch):
    """Without PyTorch the command names it; the device that PyTorch does not find as well."""
    (tmp_path / "spec.yaml").write_text(CPU_SPEC)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["calibrate", str(tmp_path / "spec.yaml"), "--operators", "--device", "cpu"]) == 2
    assert "got no PyTorch" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--seconds", "0"), ("--local-ranks", "0")])
def test_bounds_of_measured_operators(tmp_path, capsys, option, value):
    """Before anything is measured."""
    (tmp_path / "spec.yaml").write_text(CPU_SPEC)
    assert main(["calibrate", str(tmp_path / "spec.yaml"), "--operators", "--device", "cpu", option, value]) == 2
    assert option in capsys.readouterr().err
