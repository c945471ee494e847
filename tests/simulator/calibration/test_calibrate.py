import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.calibration.calibrate import Observation, calibrate, fit_link, select_names, with_parameters
from lockstep.simulator.hardware.clusters import dgx_a100, hc2
from lockstep.simulator.models.transformers import gpt
from lockstep.simulator.simulate import simulate
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule

TABLES = sorted(Path(__file__).parent.parent.glob("data/*_AR_GPU*.csv"))
MODELS = [gpt(layers=layers, hidden=512, heads=8, sequence=512, vocabulary=1024) for layers in (2, 4)]
WAYS = [Degrees(dp=8), Degrees(tp=4, dp=2), Degrees(tp=2, pp=2, dp=2), Degrees(tp=8), Degrees(dp=4, pp=2)]


def observe(cluster, *, noise=0.0, seed=0):
    """Return steps of ten jobs on `cluster`, with the given relative noise."""
    random = np.random.default_rng(seed)
    rows = []
    for model in MODELS:
        for way in WAYS:
            tree = preset(model, way, Schedule(micro_batches=2))
            seconds = simulate(tree, cluster, batch=32).step_seconds
            rows.append(Observation(tree=tree, batch=32, seconds=seconds * float(np.exp(noise * random.normal()))))
    return rows


def test_parameters_that_made_the_steps_are_found():
    """From noiseless steps of a known cluster, the held-out steps come back to 1 % and the efficiency to 5 %."""
    truth = {"matrix_efficiency": 0.45, "memory_efficiency": 0.55, "launch_s": 2e-5}
    rows = observe(with_parameters(dgx_a100(), truth))
    found = calibrate(rows, dgx_a100(), names=tuple(truth))
    assert found.error_band_ratio < 0.01
    assert len(found.held_out_errors) == 5
    assert found.parameters["launch_s"] == pytest.approx(2e-5, rel=0.05)
    assert found.cluster.device.memory_efficiency == found.parameters["memory_efficiency"]


@pytest.mark.parametrize("others", [0, 2])
def test_no_parameter_serves_a_single_run(others):
    """Of jobs that one outlier sends over the network alone, the network is not fitted; with two others it is."""
    cluster = dgx_a100(2)
    slow = with_parameters(cluster, {"network/bandwidth_ratio": 0.2})
    inside = [preset(MODELS[0], way, Schedule(micro_batches=2)) for way in WAYS]
    across = [
        preset(MODELS[index % 2], Degrees(dp=16), Schedule(micro_batches=2 ** (index // 2)))
        for index in range(1 + others)
    ]
    rows = [
        Observation(tree=tree, batch=64, seconds=simulate(tree, machine, batch=64).step_seconds)
        for trees, machine in ((inside, cluster), (across, slow))
        for tree in trees
    ]
    names = select_names([row for row in rows for _ in ("fitted", "held out")], cluster)
    assert ("network/bandwidth_ratio" in names) == bool(others)


def test_t18_a_degraded_link_is_healed_on_paper():
    """Calibrated on jobs with a card at half rate, the forecast of the healed cluster is the healthy step within 2 %."""
    truth = {"memory_efficiency": 0.5, "launch_s": 3e-5}
    healthy = with_parameters(hc2(2), truth)
    sick = healthy.with_link(1, 1, 0.5)
    jobs = [
        preset(model, Degrees(dp=dp, tp=16 // dp), Schedule(micro_batches=m))
        for model in MODELS
        for dp in (16, 8, 4)
        for m in (1, 2)
    ]
    rows = [Observation(tree=t, batch=64, seconds=simulate(t, sick, batch=64).step_seconds) for t in jobs]
    found = calibrate(rows, hc2(2).with_link(1, 1, 0.5), names=tuple(truth)).cluster
    healed = found.with_link(1, 1, 1.0)
    for tree in jobs:
        expected = simulate(tree, healthy, batch=64).step_seconds
        assert simulate(tree, healed, batch=64).step_seconds == pytest.approx(expected, rel=0.02)
    assert simulate(jobs[0], healthy, batch=64).step_seconds < 0.9 * rows[0].seconds


def test_the_band_is_as_wide_as_the_noise():
    """Steps with 10 % noise give a band of that order, not the error of the fit."""
    truth = with_parameters(dgx_a100(), {"memory_efficiency": 0.5, "launch_s": 3e-5})
    found = calibrate(observe(truth, noise=0.1), dgx_a100(), names=("memory_efficiency", "launch_s"))
    assert 0.02 < found.error_band_ratio < 0.25


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_t12_measured_collectives_follow_latency_and_bandwidth(table):
    """Latency and bandwidth fit vTrain's measured all-reduces of 16 MB and more to 1.5 % on average."""
    rows = list(csv.reader(table.read_text().splitlines()))[1:]
    n = int(table.stem.rpartition("GPU")[2])
    sizes = np.array([float(row[0]) for row in rows])
    seconds = np.array([float(row[3]) for row in rows]) * 1e-9
    link = fit_link(sizes, seconds, n)
    large = sizes >= 16e6
    predicted = link.launch_s + 2 * (n - 1) / n * sizes[large] / link.bytes_per_second
    assert np.abs(predicted / seconds[large] - 1).mean() <= 0.015
    declared = dgx_a100().levels[0].measured if table.stem.startswith("a100") else None
    if declared is not None and n in declared:
        assert link.bytes_per_second == pytest.approx(declared[n][-1].bytes_per_second, rel=0.03)


def test_tables_are_there():
    """The tables that the test above reads are part of the repository."""
    assert len(TABLES) >= 4


@pytest.mark.parametrize(
    ("names", "change", "message"),
    [
        (("luck",), {}, "got 'luck'"),
        (("launch_s",), {"seconds": 0.0}, "measured step of observation 0: got 0.0"),
        (("launch_s",) * 6, {}, "expected at least 12 for 6 parameters"),
    ],
)
def test_what_cannot_be_fitted_is_reported(names, change, message):
    """Unknown parameters, times that are none and too few rows are errors."""
    rows = observe(dgx_a100())
    with pytest.raises(ConfigError, match=message):
        calibrate([replace(rows[0], **change), *rows[1:]], dgx_a100(), names=names)
    with pytest.raises(ConfigError, match="expected at least 2"):
        fit_link([1e6, 32e6], [1.0, 2.0], 2)


def test_slower_products_slow_attention():
    """Tensor cores at a lower clock compute products and fused attention more slowly alike."""
    model = gpt(layers=2, hidden=1024, heads=8, sequence=65536, fused_attention=True)

    def step_s(efficiency):
        cluster = dgx_a100().with_device(matrix_efficiency=efficiency, memory_bytes_per_second=1e18, launch_s=0.0)
        return simulate(preset(model, Degrees(), Schedule()), cluster, batch=1).step_seconds

    assert step_s(0.43) == pytest.approx(2 * step_s(0.86), rel=1e-3)
