"""Forecasts against what was measured: T13 to T16 of the simulator's tests. The whole tables are extra cases."""

import numpy as np
import pytest

from benchmarks.simulator_measured import (
    COMMITTED,
    PUBLISHED,
    PUBLISHED_EFFICIENCY,
    SHARED,
    VTRAIN,
    VTRAIN_NODE,
    halves,
    held_out_of_sample,
    kendall_tau,
    predict,
    published_cluster,
    read_published,
    read_vtrain,
    seconds,
)
from benchmarks.simulator_published import RECIPES, RUNS, read_runs
from benchmarks.simulator_untuned import forecasts
from lockstep.simulator.calibration.calibrate import Observation, calibrate, with_parameters
from lockstep.simulator.hardware.clusters import dgx_a100, hc2
from lockstep.simulator.models.transformers import gpt
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule

GIB = 2**30


def within(rows, cluster, budget_ratio):
    """Assert mean error and order of the steps predicted for `rows`."""
    measured, predicted = seconds(rows), predict(rows, cluster)
    assert np.abs(predicted / measured - 1).mean() <= budget_ratio
    assert kendall_tau(predicted, measured) >= 0.7


def test_t13_measured_steps_are_predicted():
    """A sample of vTrain's steps of an A100 node that no fit has seen is met to 7.5 % on average, and ranked.

    The whole half is held to 7 % below; the mean of this sixth of it is known to 0.6 % only.
    """
    rows = held_out_of_sample(read_vtrain(COMMITTED / VTRAIN).rows, seed=0)
    assert len(rows) >= 100
    within(rows, with_parameters(dgx_a100(), VTRAIN_NODE), 0.075)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="no tables beside the checkout")
def test_t13_half_of_the_whole_table_is_predicted():
    """All of vTrain's steps that no fit has seen are met to 7 % on average, and ranked; the benchmark fits again."""
    _, held_out = halves(read_vtrain(SHARED / VTRAIN).rows, seed=0)
    within(held_out, with_parameters(dgx_a100(), VTRAIN_NODE), 0.07)


def test_t16_published_steps_need_one_efficiency():
    """One efficiency of A100 for Megatron's published steps from 1.7B to 310B meets them to 6 % on average.

    Each is met to 10 % but for two whose table leaves the micro-batch open: one sequence of a narrow model fills its
    waves of tiles badly. The benchmark fits the efficiency to half of the
    rows, those to 1T included, which takes a minute.
    """
    rows = [row for row in read_published(COMMITTED / PUBLISHED)["A100"].rows if len(row.tree.root.children) <= 98]
    assert len(rows) == 12
    cluster = published_cluster(240).with_device(matrix_efficiency=PUBLISHED_EFFICIENCY)
    errors = np.abs(predict(rows, cluster) / seconds(rows) - 1)
    assert errors.max() <= 0.16
    assert (errors > 0.10).sum() <= 2
    assert errors.mean() <= 0.06


# Korthikanti et al. 2022, figure 1 and table 3: hidden, heads, layers, t, p, v, micro-batch, then GiB of the first stage
# without and with sequence parallelism and selective recomputation (activations and 18 bytes a parameter).
MEMORY = [
    pytest.param((6144, 64, 48, 8, 1, 1, 4), 59.25 + 45.5625, 9.5625 + 45.5625, id="22B"),
    pytest.param((12288, 96, 96, 8, 8, 3, 1), 66.84375 + 45.5625, 12.3515625 + 45.5625, id="175B"),
]


@pytest.mark.parametrize(("shape", "plain_gib", "spared_gib"), MEMORY)
def test_t14_memory_and_overflow_of_published_runs(shape, plain_gib, spared_gib):
    """The first stage's job is the published one to 10 %: without recomputation no run fits 80 GB, with it each does."""
    hidden, heads, layers, tp, pp, virtual, micro = shape
    model = gpt(layers=layers, hidden=hidden, heads=heads, sequence=2048)
    for spared, gib in ((False, plain_gib), (True, spared_gib)):
        recompute = "selective" if spared else "none"
        way = Degrees(tp=tp, pp=pp, virtual=virtual, sequence_parallel=spared, recompute=recompute)
        tree = preset(model, way, Schedule(micro_batches=2 * pp))
        found = simulate(tree, dgx_a100(max(1, tp * pp // 8)), batch=2 * pp * micro)
        first = found.stage_memory_bytes[0]
        job_bytes = first.weights + first.gradients + first.optimizer + first.activations
        assert job_bytes / GIB == pytest.approx(gib, rel=0.10)
        assert found.out_of_memory is not spared


@pytest.mark.parametrize("half", ["open", "held"])
def test_t14_measured_memory_of_published_runs(half):
    """Peaks of runs with a measured one are met to 4 % (mean; nothing fitted to the half held), overflow is caught.

    Two runs with the same layout are reported to differ by 17 GiB, so a single run may be far off.
    """
    runs = [run for run in read_runs(COMMITTED / RUNS) if run.half == half]
    measured = [run for run in runs if run.memory_bytes]
    ratios = [
        max(each.peak_memory_bytes) / run.memory_bytes for run, each in zip(measured, forecasts(measured), strict=True)
    ]
    assert len(ratios) >= 26
    assert np.median(ratios) == pytest.approx(1.0, abs=0.03)
    assert np.abs(np.array(ratios) - 1).mean() <= (0.04 if half == "held" else 0.07)
    failed = [run for run in runs if run.out_of_memory]
    assert all(each.out_of_memory for each in forecasts(failed))


def test_t14_published_runs_that_ran_fit():
    """None of the published runs is forecast to be out of memory: they ran."""
    for row in read_published(COMMITTED / PUBLISHED)["A100"].rows:
        if len(row.tree.root.children) <= 64:
            found = simulate(row.tree, published_cluster(), batch=row.batch, options=row.options)
            assert not found.out_of_memory, row.tree.model.name


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_t14_zero_divides_what_it_states(zero):
    """Each stage of ZeRO divides one item more over the data-parallel ranks, to the byte; activations stay."""
    model = gpt(layers=4, hidden=1024, heads=16, sequence=512, vocabulary=1024)
    plain, parted = (
        simulate(preset(model, Degrees(dp=8, zero=stage), Schedule()), dgx_a100(), batch=8).stage_memory_bytes[0]
        for stage in (0, zero)
    )
    items = {"optimizer": 12, "gradients": 4, "weights": 2}  # bytes a parameter
    for index, (item, width) in enumerate(items.items()):
        saved = width * model.parameters * 7 / 8 * (index < zero)
        assert getattr(plain, item) - getattr(parted, item) == pytest.approx(saved, rel=1e-9)
    assert parted.activations == plain.activations
    assert (parted.gathered > 0) is (zero == 3)


def test_t15_throttled_links_are_foretold_from_healthy_steps():
    """Fitted to healthy steps only, steps over a throttled card are foretold to 10 %.

    No table of measured steps has a throttled link, so the truth is the simulator's own, with numbers of the device
    that are not known to the fit, another gamma, and noise of 3 % on every step.
    """
    truth = with_parameters(hc2(2), {"memory_efficiency": 0.5, "launch_s": 4e-5, "matrix_efficiency": 0.7})
    truth = truth.with_device(overlap_factor=0.15)
    random = np.random.default_rng(7)
    models = [gpt(layers=n, hidden=1024, heads=16, sequence=512, vocabulary=8192) for n in (4, 8)]
    jobs = [
        (preset(m, Degrees(dp=dp, tp=16 // dp), Schedule()), b) for m in models for dp in (16, 4) for b in (64, 128)
    ]

    def measure(tree, batch, cluster):
        step_s = simulate(tree, cluster, batch=batch, options=Options()).step_seconds
        return step_s * float(np.exp(0.03 * random.normal()))

    healthy = [Observation(tree=tree, batch=batch, seconds=measure(tree, batch, truth)) for tree, batch in jobs]
    names = ("matrix_efficiency", "memory_efficiency", "launch_s", "link_bandwidth_ratio")
    found = calibrate(healthy, hc2(2), names=names).cluster
    errors, slowdowns = [], []
    for share in (0.5, 0.25):
        for tree, batch in jobs:
            measured = measure(tree, batch, truth.with_link(1, 0, share))
            foretold = simulate(tree, found.with_link(1, 0, share), batch=batch).step_seconds
            errors.append(abs(foretold / measured - 1))
            slowdowns.append(measured / simulate(tree, truth, batch=batch).step_seconds)
    assert max(slowdowns) > 1.5
    assert np.mean(errors) <= 0.10


@pytest.mark.parametrize("speed", [0.9, 0.5])
def test_a_slow_rank_is_a_class_and_holds_everybody_up(speed):
    """A rank at part of its speed parts its groups only, and the step is what simulating every rank gives."""
    model = gpt(layers=4, hidden=1024, heads=16, sequence=512, vocabulary=1024)
    tree = preset(model, Degrees(tp=2, pp=2, dp=4), Schedule(micro_batches=4))
    whole, hurt = dgx_a100(2), dgx_a100(2).with_rank(5, speed)
    healthy, slow, everyone = (
        simulate(tree, cluster, batch=64, options=Options(collapsing=collapsing))
        for cluster, collapsing in ((whole, True), (hurt, True), (hurt, False))
    )
    assert slow.step_seconds == pytest.approx(everyone.step_seconds, rel=1e-9)
    assert slow.operations < everyone.operations
    assert healthy.step_seconds < slow.step_seconds <= healthy.step_seconds / speed * (1 + 1e-9)


def test_runs_with_experts_fit_their_devices():
    """None of the published runs of Megatron with experts is forecast to run out of memory, as with outputs kept."""
    runs = [
        run
        for run in read_runs(COMMITTED / RECIPES)
        if run.set_name.startswith("Megatron") and any(kind in run.set_name for kind in ("experts", "dropped tokens"))
    ]
    found = [simulate(run.tree, run.cluster, batch=run.batch, options=run.options) for run in runs]
    assert len(runs) == 23
    assert not any(each.out_of_memory for each in found)
    peaks = [
        (max(each.peak_memory_bytes), run.memory_bytes)
        for each, run in zip(found, runs, strict=True)
        if run.memory_bytes
    ]
    assert [predicted / measured for predicted, measured in peaks] == [pytest.approx(1.0, abs=0.05)]
