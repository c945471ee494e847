"""A run's model, fitted to steps that another, known model has made."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.calibration.measured import Window
from lockstep.simulator.calibration.online import LinkRatios, Setup, computing, fit, level_of, with_links
from lockstep.simulator.calibration.operator_split import operator_split
from lockstep.simulator.calibration.repair import COMPUTING, LINK, RANK, MeasuredFault, predict_gain
from lockstep.simulator.calibration.repair import FLOOR as FLOOR_FAULT
from lockstep.simulator.lowering.graph import GRADIENT
from lockstep.simulator.simulate import compile_job
from lockstep.simulator.spec import load_spec

SPEC = """
model: {type: gpt, layers: 4, hidden: 1024, heads: 16, sequence: 1024, vocabulary: 8192}
strategy: {tp: 2, dp: 4, pp: 2, micro_batches: 2}
cluster: {preset: DGX A100, nodes: 2}
batch: 32
"""
DECLARED = Setup.of(load_spec(SPEC, "spec.yaml"))
MEMBERS = {"tp": (0, 1), "dp": (0, 2, 4, 6), "pp": (0, 8)}
DEGREES = {"tp": 2, "dp": 4, "pp": 2}
STEPS = 60
FLOOR = 0.004
REST = 0.006


def truth(*, efficiency=0.5, links=(0.7, 0.4)):
    """Return the job as it really is: a slower device and slower links than declared."""
    device = DECLARED.cluster.with_device(matrix_efficiency=efficiency, memory_efficiency=0.6)
    return replace(DECLARED, cluster=with_links(device, {level: scaled(ratio) for level, ratio in enumerate(links)}))


def scaled(ratio):
    """Return links that are so many times as fast, in bandwidth and in latency alike."""
    return LinkRatios(bandwidth=ratio, latency=1 / ratio)


def measure(real, *, noise=0.01, steps=STEPS, seed=3, spread=0.0, **more):
    """Return the window that a monitor of `real` sees: each level's cost is what a step without it would save."""
    rng = np.random.default_rng(seed)
    step_s, compute_s = real.forecast().step_seconds, computing(real.forecast())
    saved = [step_s - real.forecast(with_links(real.cluster, {level: scaled(1e9)})).step_seconds for level in (0, 1)]

    def noisy(seconds):
        return seconds * np.exp(noise * rng.normal(size=steps))

    values = {
        "step_W": noisy(step_s + FLOOR + REST + spread),
        "compute_SW": np.stack([noisy(compute_s), noisy(compute_s)]),
        "floor_W": noisy(FLOOR),
        "spread_W": noisy(spread),
        "exposed": {"dp": noisy(saved[0]), "pp": noisy(saved[1])},
        "members": MEMBERS,
        "world_size": 16,
        "degrees": DEGREES,
    }
    return Window(**(values | more))


@pytest.fixture(scope="module")
def model():
    """Return the model fitted to the true job's window."""
    return fit(DECLARED, measure(truth()))


def test_the_numbers_that_made_the_steps_are_found(model):
    """From noisy steps the expected step, the floor, the rest and each level's ratio come back."""
    real = truth()
    assert model.expected_step_seconds == pytest.approx(real.forecast().step_seconds + FLOOR + REST, rel=0.01)
    assert model.compute_seconds == pytest.approx(computing(real.forecast()), rel=0.01)
    assert model.floor_seconds == pytest.approx(FLOOR, rel=0.01)
    assert model.rest_seconds == pytest.approx(REST, abs=0.1 * model.expected_step_seconds)
    assert model.parameters["network/bandwidth_ratio"] == pytest.approx(0.4, rel=0.3)
    assert 0.01 <= model.error_band_ratio < 0.03
    assert fit(DECLARED, measure(real)).expected_step_seconds == model.expected_step_seconds


def test_the_band_is_that_of_steps_that_were_not_fitted():
    """Noise in the second half alone widens the band; in the first half alone it does not."""
    quiet = measure(truth())
    wild = quiet.step_W * np.exp(0.1 * np.random.default_rng(1).normal(size=STEPS))
    half = STEPS // 2
    late = replace(quiet, step_W=np.concatenate([quiet.step_W[:half], wild[half:]]))
    early = replace(quiet, step_W=np.concatenate([wild[:half], quiet.step_W[half:]]))
    assert fit(DECLARED, late).error_band_ratio > 0.1
    assert fit(DECLARED, early).error_band_ratio < 0.06


def test_who_is_slow_for_a_reason_hides_who_is_slow_by_chance():
    """What ranks differ by is part of the healthy step, not of the rest, and not added to a larger fault."""
    real, spread_s = truth(), 0.02
    model = fit(DECLARED, measure(real, spread=spread_s))
    plain = fit(DECLARED, measure(real))
    assert model.expected_step_seconds == pytest.approx(plain.expected_step_seconds + spread_s, rel=0.02)
    assert model.rest_seconds == pytest.approx(plain.rest_seconds, abs=0.01 * model.expected_step_seconds)
    large, small = (MeasuredFault(kind=RANK, ranks=(13,), excess_seconds=seconds) for seconds in (0.5, 0.002))
    faulty_s = predict_gain(plain, large).faulty_step_seconds
    assert predict_gain(model, large).faulty_step_seconds == pytest.approx(faulty_s, rel=0.02)
    assert predict_gain(model, small).gain_ratio == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("rank", [0, 13])
@pytest.mark.parametrize("share", [0.9, 0.5, 0.1])
def test_the_gain_of_mending_a_rank_is_that_of_the_real_job(model, rank, share):
    """A rank at a share of its speed, known by its excess alone: the gain is the real job's within two points."""
    real = truth()
    healthy_s, sick_s = real.forecast().step_seconds, real.forecast(real.cluster.with_rank(rank, share)).step_seconds
    excess_s = computing(real.forecast()) * (1 / share - 1)
    gain = predict_gain(model, MeasuredFault(kind=RANK, ranks=(rank,), excess_seconds=excess_s))
    assert gain.gain_ratio == pytest.approx(1 - (healthy_s + FLOOR + REST) / (sick_s + FLOOR + REST), abs=0.02)
    assert gain.faulty_step_seconds == pytest.approx(sick_s + FLOOR + REST, rel=0.05)
    assert gain.repaired_step_seconds == model.expected_step_seconds
    assert gain.error_band_ratio == model.error_band_ratio


@pytest.mark.parametrize("share", [0.9, 0.5])
def test_the_gain_of_mending_all_ranks_is_that_of_the_real_job(model, share):
    """Everybody computes at a share of the speed: a pipeline loses more than each rank does, and the model knows it."""
    real = truth()
    slow = real.cluster
    for rank in range(16):
        slow = slow.with_rank(rank, share)
    healthy_s, sick_s = real.forecast().step_seconds, real.forecast(slow).step_seconds
    excess_s = computing(real.forecast()) * (1 / share - 1)
    assert sick_s - healthy_s > 1.1 * excess_s
    gain = predict_gain(model, MeasuredFault(kind=COMPUTING, excess_seconds=excess_s))
    assert gain.gain_ratio == pytest.approx(1 - (healthy_s + FLOOR + REST) / (sick_s + FLOOR + REST), abs=0.02)
    assert gain.repaired_step_seconds == model.expected_step_seconds


def test_what_steps_stand_besides_computing_is_given_back_whole():
    """A loader that takes 10 ms longer on every rank costs 10 ms, however ranks are spread by chance."""
    model = fit(DECLARED, measure(truth(), spread=0.02))
    healthy_s = model.expected_step_seconds
    gain = predict_gain(model, MeasuredFault(kind=FLOOR_FAULT, excess_seconds=0.01))
    assert gain.faulty_step_seconds == pytest.approx(healthy_s + 0.01)
    assert gain.gain_ratio == pytest.approx(0.01 / (healthy_s + 0.01))
    slow = predict_gain(model, MeasuredFault(kind=COMPUTING, excess_seconds=0.005))
    assert slow.faulty_step_seconds > healthy_s + 0.005  # who is slow by chance still is


def test_the_gain_of_mending_a_link_is_that_of_the_real_job():
    """A node's way out at a fifth: given as the node's uplink and as the group that crosses it."""
    real = truth(links=(1.0, 0.05))
    model = fit(DECLARED, measure(real))
    sick_s = real.forecast(real.cluster.with_link(1, 0, 0.2)).step_seconds
    expected = 1 - (real.forecast().step_seconds + FLOOR + REST) / (sick_s + FLOOR + REST)
    assert expected > 0.05
    node = predict_gain(model, MeasuredFault(kind=LINK, ranks=tuple(range(8)), slowdown_ratio=4.0, is_uplink=True))
    group = predict_gain(model, MeasuredFault(kind=LINK, ranks=(0, 8), slowdown_ratio=4.0))
    assert node.gain_ratio == pytest.approx(expected, abs=0.03)
    assert group.gain_ratio == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    "fault",
    [
        MeasuredFault(kind=RANK, ranks=(), excess_seconds=1.0),
        MeasuredFault(kind=RANK, ranks=(16,), excess_seconds=1.0),
        MeasuredFault(kind=RANK, ranks=(1,), excess_seconds=0.0),
        MeasuredFault(kind=RANK, ranks=(1,), excess_seconds=float("inf")),
        MeasuredFault(kind=COMPUTING, excess_seconds=0.0),
        MeasuredFault(kind=COMPUTING, excess_seconds=float("inf")),
        MeasuredFault(kind=FLOOR_FAULT, excess_seconds=float("nan")),
        MeasuredFault(kind=LINK, ranks=(1,), slowdown_ratio=1.0),
        MeasuredFault(kind=LINK, ranks=(0, 1), slowdown_ratio=-0.5),
        MeasuredFault(kind=LINK, ranks=tuple(range(16)), slowdown_ratio=1.0, is_uplink=True),
    ],
)
def test_what_the_model_does_not_know_has_no_gain(model, fault):
    """No such rank, no link beyond the last level, nothing slower, a standstill: no number is made up."""
    assert predict_gain(model, fault) is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"steps": 19}, "got 19 steps"),
        ({"noise": 0.6, "steps": 400}, "scatter"),
        ({"step_W": np.linspace(1, 1.6, STEPS)}, "second half"),
        ({"step_W": np.full(STEPS, np.nan)}, "duration"),
        ({"world_size": 32}, "got 16, expected the run's 32"),
        ({"degrees": {"tp": 4}}, "degree tp of the specification: got 2, expected the run's 4"),
        ({"compute_SW": np.full((2, STEPS), 1e-5)}, "peak of A100"),
        ({"compute_SW": np.zeros((2, STEPS))}, "no time of computing"),
        ({"step_W": np.full(STEPS, 100.0)}, "does more"),
        ({"step_W": np.full(STEPS, 0.01)}, "does less"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_its_reason(changed, named):
    """Too short, too noisy, drifting, of another job: the message names which, and what was expected."""
    with pytest.raises(ConfigError, match=named):
        fit(DECLARED, measure(truth(), **changed))


def test_links_that_hide_teach_nothing():
    """Where transfers cost nothing measured and nothing modelled, the declared links stay."""
    one = SPEC.replace("batch: 32", "batch: 2").replace("tp: 2, dp: 4, pp: 2, micro_batches: 2", "dp: 1")
    alone, window = Setup.of(load_spec(one, "one.yaml")), measure(truth())
    seen = replace(window, world_size=1, degrees={}, compute_SW=window.step_W[None] - FLOOR - REST)
    for exposed in (window.exposed, {"dp": np.zeros(STEPS)}):
        assert fit(alone, replace(seen, exposed=exposed)).setup.cluster.levels == alone.cluster.levels


def test_the_level_of_a_group_is_the_highest_that_parts_it():
    """Inside a node, across nodes, and nowhere."""
    cluster = DECLARED.cluster
    assert [level_of(cluster, ranks) for ranks in ((0, 1), (0, 8), (7, 8), (3,), (), (0, 99))] == [
        0, 1, 1, None, None, None,
    ]  # fmt: skip


def small(**more):
    """Return a job whose optimizer takes a tenth of a step, and its specification with `more` changes."""
    text = """
model: {type: gpt, layers: 4, hidden: 256, heads: 4, sequence: 128, vocabulary: 512, precision: full}
strategy: {dp: 2}
cluster:
  device: {name: core, flops_per_second: 2.0e+11, memory_bytes_per_second: 4.0e+10, memory_bytes: 8.0e+9}
  levels: [{name: loopback, fanout: 4, cores: 2, bytes_per_second: 2.0e+9, launch_s: 1.0e-4}]
batch: 16
"""
    return Setup.of(load_spec(text, "spec.yaml").changed_by(more))


def window_of(real, optimizer_s=None, **more):
    """Return the window of a job of two ranks whose optimizer takes `optimizer_s`, without noise."""
    step_s, compute_s = real.forecast().step_seconds, computing(real.forecast())
    saved_s = step_s - real.forecast(with_links(real.cluster, {0: scaled(1e9)})).step_seconds
    return Window(
        step_W=np.full(STEPS, step_s),
        compute_SW=np.full((1, STEPS), compute_s),
        optimizer_SW=None if optimizer_s is None else np.full((1, STEPS), optimizer_s),
        floor_W=np.zeros(STEPS),
        spread_W=np.zeros(STEPS),
        exposed={"world": np.full(STEPS, saved_s)},
        **more,
        members={"world": (0, 1)},
        world_size=2,
    )


def optimizer_seconds(setup, cluster):
    """Return what a step's optimizer takes."""
    plain, free = (setup.forecast(each) for each in (cluster, cluster.with_device(optimizer_ratio=1e9)))
    return computing(plain) - computing(free)


@pytest.mark.parametrize("changes", [{"batch": 8}, {"batch": 32}, {"batch": 4}, {"strategy.micro_batches": 4}])
def test_an_optimizer_that_was_measured_does_not_grow_with_the_batch(changes):
    """With its time a what-if of another batch is the real job's; without, it takes a share of the optimizer along."""
    device = {"matrix_efficiency": 0.5, "memory_efficiency": 0.5, "optimizer_ratio": 0.15}
    real = small()
    real = replace(real, cluster=real.cluster.with_device(**device))
    window = window_of(real, optimizer_seconds(real, real.cluster))
    model = fit(small(), window)
    assert model.parameters["optimizer_ratio"] == pytest.approx(0.15, rel=0.02)
    changed = small(**changes)
    truth_s = changed.forecast(real.cluster).step_seconds
    assert changed.forecast(model.setup.cluster).step_seconds == pytest.approx(truth_s, rel=0.02)
    rough = fit(small(), replace(window, optimizer_SW=None))
    assert "optimizer_ratio" not in rough.parameters
    if "batch" in changes:
        assert changed.forecast(rough.setup.cluster).step_seconds != pytest.approx(truth_s, rel=0.04)


@pytest.mark.parametrize("optimizer_s", [None, 0.0, float("nan"), 1e-6, 1e3])
def test_an_optimizer_that_is_unknown_or_implausible_is_fitted_with_the_rest(optimizer_s):
    """Nothing measured, nothing taken, faster than the memory or longer than all computing: one efficiency for all."""
    real = small()
    model = fit(small(), window_of(real, optimizer_s))
    assert "optimizer_ratio" not in model.parameters
    assert model.expected_step_seconds == pytest.approx(real.forecast().step_seconds, rel=0.01)


def test_captured_operators_are_divided_without_the_optimizer():
    """Products and other operators of a capture, of which the optimizer's time is known, give all three back."""
    device = {"matrix_efficiency": 0.5, "memory_efficiency": 0.3, "optimizer_ratio": 0.4}
    real = small()
    real = replace(real, cluster=real.cluster.with_device(**device))
    operators = operator_split(real.tree, real.cluster.device, batch=real.batch)
    model = fit(small(), window_of(real, optimizer_seconds(real, real.cluster)), operators=operators)
    for name, value in device.items():
        assert model.parameters[name] == pytest.approx(value, rel=0.03)


def shortest_seconds(real):
    """Return the number of all-reduces of a step times the shortest of them, with the link to itself."""
    job = compile_job(real.tree, real.cluster, batch=real.batch, options=real.options)
    sent = np.flatnonzero(job.graph.queue == GRADIENT)
    speed_s = [job.graph.flows[flow].alone for flow in job.graph.flow[sent]]
    return len(sent) * min(job.graph.seconds[sent] + job.graph.volume_bytes[sent] / speed_s)


@pytest.mark.parametrize("links", [(0.7, 8.0), (2.0, 8.0), (0.3, 0.5), (1.0, 30.0)])
@pytest.mark.parametrize("bucket", [2**18, 2**20, 6 * 2**20, None])
def test_a_small_and_a_large_bucket_show_latency_and_bandwidth(links, bucket):
    """DDP's first bucket is short, so both numbers come back, and a what-if of other buckets is the real job's."""
    real = small(batch=16)
    real = replace(real, cluster=with_links(real.cluster, {0: LinkRatios(*links)}))
    window = window_of(real, shortest={"world": np.full(STEPS, shortest_seconds(real))})
    model = fit(small(batch=16), window)
    found = [model.parameters[f"loopback/{name}_ratio"] for name in ("bandwidth", "latency")]
    assert found == pytest.approx(links, rel=0.15)
    changed = small(**{"strategy.bucket_bytes": bucket})
    truth_s = changed.forecast(real.cluster).step_seconds
    assert changed.forecast(model.setup.cluster).step_seconds == pytest.approx(truth_s, rel=0.02)


@pytest.mark.parametrize("share", [0.0, 0.1, 20.0, float("nan")])
def test_a_shortest_collective_that_is_not_the_models_shows_no_latency(share):
    """Of another size than any of the model, or longer than all of a step's waits: both ratios follow the wait alone."""
    real = small()
    real = replace(real, cluster=with_links(real.cluster, {0: LinkRatios(0.5, 2.0)}))
    window = window_of(real, shortest={"world": np.full(STEPS, share * shortest_seconds(real))})
    parameters = fit(small(), window).parameters
    assert parameters == fit(small(), window_of(real)).parameters
    assert parameters["loopback/latency_ratio"] == pytest.approx(1 / parameters["loopback/bandwidth_ratio"])


def test_collectives_of_one_size_show_one_number():
    """One bucket holds everything, and its time cannot be divided."""
    one = {"strategy.bucket_bytes": None}
    real = small(**one)
    real = replace(real, cluster=with_links(real.cluster, {0: LinkRatios(0.5, 8.0)}))
    window = window_of(real, shortest={"world": np.full(STEPS, shortest_seconds(real))})
    assert fit(small(**one), window).parameters == fit(small(**one), window_of(real)).parameters


def test_cores_that_compute_hide_no_transfer():
    """Small buckets overlap the backward pass, but two ranks on two cores compute and copy in turn; four cores hide them."""
    times = {}
    for cores in (2, 3, 4):
        for bucket in (None, 2**20):
            job = small(**{"strategy.bucket_bytes": bucket})
            level = replace(job.cluster.levels[0], cores=cores, link=replace(job.cluster.levels[0].link, launch_s=0.0))
            times[cores, bucket] = job.forecast(replace(job.cluster, levels=(level,))).step_seconds
    assert times[2, None] == pytest.approx(times[4, None])
    assert times[2, 2**20] == pytest.approx(times[2, None], rel=0.01)
    assert times[4, 2**20] < times[3, 2**20] < times[2, 2**20]
    assert times[4, 2**20] < 0.97 * times[2, 2**20]
