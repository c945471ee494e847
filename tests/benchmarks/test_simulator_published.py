import hashlib
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.simulator_measured import COMMITTED
from benchmarks.simulator_published import HELD, OPEN, RUNS, TABLES, half_of, read_runs
from benchmarks.simulator_untuned import Judged, agreement, formula_seconds, missed, pairs, read_all
from lockstep.contracts.errors import MalformedError


@pytest.fixture(scope="module")
def runs():
    """Return the published runs that the tests carry."""
    return read_runs(COMMITTED / RUNS)


def test_every_published_run_is_a_job_on_its_cluster(runs):
    """Each row becomes a job that fits the cluster its source states; exact repetitions stand once."""
    assert len(runs) == 167
    assert {run.half for run in runs} == {OPEN, HELD}
    for run in runs:
        assert run.gpus <= run.cluster.size
        assert (run.seconds is None) == run.out_of_memory


def test_tables_of_frameworks_are_jobs_and_none_of_them_is_in_the_older_table(runs):
    """Experts, grouped queries and torchtitan's micro-batches are read from the rows; no measured step stands twice."""
    tables = read_runs(COMMITTED / TABLES)
    assert len(tables) == 233
    assert {run.half for run in tables} == {OPEN, HELD}
    known = {(run.tree.model.flops_per_sample, run.gpus, run.batch, run.seconds) for run in runs}
    assert not known & {(run.tree.model.flops_per_sample, run.gpus, run.batch, run.seconds) for run in tables}
    qwen = next(run for run in tables if run.set_name.endswith("experts"))
    assert qwen.tree.model.parameters == pytest.approx(30.5e9, rel=0.01)
    pipelines = [run for run in tables if run.set_name.startswith("torchtitan") and run.stages > 1]
    assert {run.tree.root.order.micro_batches for run in pipelines} == {8}


def test_repetitions_of_one_configuration_are_in_one_half(runs):
    """A configuration that was measured several times is fitted or held as a whole."""
    halves = {}
    for run in runs:
        halves.setdefault((run.job_key, run.micro_batch), set()).add(run.half)
    assert max(map(len, halves.values())) == 1
    assert len(halves) < len(runs)
    assert half_of(("a", "b")) == half_of(("a", "b"))
    assert {half_of((number,)) for number in range(16)} == {OPEN, HELD}


def test_the_formula_counts_recomputation_and_the_bubble(runs):
    """72 FLOPs a parameter-like term, 4 / 3 of it with recomputation, over all peaks, and (p - 1) / m of bubble."""
    run = next(run for run in runs if run.set_name == "bigscience" and run.stages == 12 and run.micro_batch == 4)
    model_flops = run.batch * run.tree.model.flops_per_sample
    expected_s = model_flops * 4 / 3 / (384 * 312e12) * (1 + 11 / (2048 / 4 / 4))
    assert formula_seconds(run) == pytest.approx(expected_s)


def test_only_pairs_that_differ_in_the_micro_batch_alone_are_compared(runs):
    """Pairs share all but the micro-batch, and a prediction that repeats the measured order agrees with each."""
    chosen = [run for run in runs if run.set_name == "bigscience" and run.seconds is not None]
    found = list(pairs(chosen, lambda run: run.job_key))
    assert all(chosen[i].job_key == chosen[j].job_key for i, j in found)
    measured = np.array([run.seconds for run in chosen])
    assert agreement(measured, chosen, found) == (len(found), len(found))
    assert agreement(-measured, chosen, found) == (0, len(found))


def test_a_set_above_its_target_is_listed(runs):
    """Only the half that is never fitted counts: a set that is 20 % off misses the target of 15 %, one at 5 % does not."""
    held = [run for run in runs if run.half == HELD and run.seconds is not None][:4]

    def judged(ratio):
        found = [SimpleNamespace(step_seconds=run.seconds * ratio) for run in held]
        return Judged(held, found, np.array([run.seconds for run in held]), np.array([]))

    shipped, fitted = missed({"near": judged(1.05), "far": judged(0.8)})
    assert shipped == "shipped, target 15% of the half held: missed by far"
    assert fitted == "fitted, target 7% of the half held: missed by none"


def test_a_row_that_cannot_be_read_is_named(tmp_path):
    """A table without a column and a row without a number are refused by file and line."""
    path = tmp_path / "runs.csv"
    text = (COMMITTED / RUNS).read_text().splitlines()[:2]
    path.write_text(text[0].replace("layers", "floors") + "\n" + text[1])
    with pytest.raises(MalformedError, match=r"columns in runs\.csv: .*layers"):
        read_runs(path)
    path.write_text("\n".join((text[0], text[1].replace(",14400,", ",many,"))))
    with pytest.raises(MalformedError, match=r"run in runs\.csv, line 2: .*many"):
        read_runs(path)


def layers_by_stage(run):
    """Return how many transformer layers each stage of a run has, in the order of the data."""
    blocks = list(run.tree.root.children.items())
    meshes = list(dict.fromkeys(block.mesh for _, block in blocks))
    return [sum(name.startswith("layer") for name, block in blocks if block.mesh == mesh) for mesh in meshes]


def test_deepspeed_fills_stages_in_order(runs):
    """78 layers on 12 stages are 7 on each of 11 and one on the last, as BLOOM's chronicles state for that job."""
    run = next(r for r in runs if r.set_name == "bigscience" and r.stages == 12 and len(r.tree.model.blocks) == 80)
    assert layers_by_stage(run) == [7] * 11 + [1]
    balanced = next(r for r in runs if r.set_name == "bigscience" and len(r.tree.model.blocks) == 72 and r.stages == 12)
    assert layers_by_stage(balanced) == [5, *[6] * 10, 5]  # embedding and head count as layers there


def test_what_a_framework_always_does_reaches_the_job(runs):
    """Chunks of MLPerf's pipeline, MegaScale's overlaps in its own rows only, and ZeRO 3's gathers as of 2021."""
    mlperf = next(run for run in runs if run.set_name.startswith("MLPerf"))
    assert (mlperf.chunks, mlperf.options.overlap_tensor) == (12, True)
    megascale = [run for run in runs if run.set_name.startswith("MegaScale")]
    assert {run.options.overlap_tensor for run in megascale} == {True, False}
    zero3 = [run for run in runs if run.set_name.startswith("Narayanan")]
    copied = [run.options.copied_gather_bytes_per_second for run in zero3]
    assert copied.count(None) == 3
    assert all(rate == pytest.approx(27.9e9, rel=0.01) for rate in copied if rate is not None)
    assert all(run.cluster.device.launch_blocking for run in runs if run.set_name == "bigscience")


def test_no_run_moves_between_the_halves():
    """A change of the simulator must not let fitted runs be judged as held: every run is in the half where it was."""
    halves = {name: "".join(run.half[0] for run in runs) for name, runs in read_all(COMMITTED).items()}
    assert [halves[name].count("o") for name in ("bigscience", "torchtitan", "vTrain, one A100 node")] == [34, 3, 124]
    lines = "\n".join(f"{name} {text}" for name, text in halves.items())
    assert hashlib.sha256(lines.encode()).hexdigest()[:16] == "782615e4d5ccd80f"
