"""All detectors together, on whole jobs."""

from dataclasses import replace

import numpy as np
import pytest

from coordinator.detect.anomalies import SLOW_RANK
from coordinator.detect.detector import Detector
from coordinator.detect.ranks.slow_rank import SlowRankTest
from coordinator.settings.policy import Policy
from tests.coordinator.scenarios import Scenario, generate

POLICY = Policy()


def evaluate_all(scenario, *, change=None):
    """Return every step_result of a generated job."""
    recording = generate(scenario)
    if change is not None:
        change(recording)
    detector = Detector(np.arange(recording.topology.world_size), recording.topology, POLICY)
    return [detector.evaluate(row) for row in recording.rows()]


def first_anomaly(step_results, kind="slow_rank"):
    return next((j.step, f) for j in step_results for f in j.anomalies if f.kind == kind)


def named(step_results, kind="slow_rank"):
    return {rank for j in step_results for f in j.anomalies if f.kind == kind for rank in f.ranks}


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
@pytest.mark.parametrize(("asleep", "cause"), [(False, "compute"), (True, "off_cpu")])
def test_the_third_slow_step_names_the_phase_and_whether_the_thread_slept(phase, asleep, cause):
    """A rank that computes more is distinguished from one that sleeps, in words and numbers, in every phase of compute."""
    scenario = Scenario(degrees="tp=2,dp=4").with_fault(phase, 3, seconds=0.06, begin=60, asleep=asleep)
    step, anomaly = first_anomaly(evaluate_all(scenario))
    assert (step, anomaly.ranks, anomaly.cause, anomaly.confidence) == (62, (3,), cause, "high")
    numbers = anomaly.numbers
    assert numbers[f"{phase}_seconds"] - numbers[f"peers_{phase}_seconds"] == pytest.approx(0.06, rel=0.25)
    off_cpu = numbers["off_cpu_seconds"] - numbers["peers_off_cpu_seconds"]
    assert off_cpu == pytest.approx(0.06 * asleep, abs=0.005)
    assert any(line.startswith("compute: ") and line.endswith(f"the excess in {phase}") for line in anomaly.evidence)
    assert any(line.startswith(f"{phase}: ") for line in anomaly.evidence)
    assert any("was off the CPU for" in line for line in anomaly.evidence) == asleep


def test_an_uneven_batch_lengthens_forward_and_backward_alike():
    """What a work figure explains is taken off both: a sleep in the optimizer is reported in a job of uneven batches."""
    work_r = np.random.default_rng(5).normal(1.0, 0.1, 8)
    recording = generate(Scenario(degrees="dp=8").with_fault("optimizer", 3, seconds=0.06, begin=60, asleep=True))
    detector = Detector(np.arange(8), recording.topology, POLICY)
    more_s_r = 0.3 * (work_r - 1.0)
    step_results = []
    for row in recording.rows():
        longer = {name: row.views[name] + more_s_r * share for name, share in (("forward", 1 / 3), ("backward", 2 / 3))}
        step_results.append(
            detector.evaluate(
                replace(
                    row,
                    self_seconds=row.self_seconds + more_s_r,
                    duration=row.duration + np.max(more_s_r),
                    components=row.components | {"compute": row.components["compute"] + more_s_r},
                    views=row.views | longer,
                    work=work_r,
                )
            )
        )
    _, anomaly = first_anomaly(step_results)
    assert (anomaly.ranks, anomaly.cause) == ((3,), "off_cpu")
    numbers = anomaly.numbers
    for phase, more in (("forward", 0.0), ("backward", 0.0), ("optimizer", 0.06)):
        assert numbers[f"{phase}_seconds"] - numbers[f"peers_{phase}_seconds"] == pytest.approx(more, abs=0.015)


@pytest.mark.parametrize("part", ["compute", "data", "gc", "host"])
def test_the_third_slow_step_names_rank_cause_and_onset(part):
    """A fault of any part is reported at its third step, with rank, cause, onset, domain and the numbers behind it."""
    step_results = evaluate_all(Scenario(degrees="dp=8").with_fault(part, 3, seconds=0.06, begin=60))
    step, anomaly = first_anomaly(step_results)
    assert (step, anomaly.ranks, anomaly.cause, anomaly.onset_step) == (62, (3,), part, 60)
    assert anomaly.domain == ("dp", "dp0")
    assert anomaly.excess_seconds == pytest.approx(0.06, rel=0.15)
    assert f"peers_{part}_seconds" in anomaly.numbers
    assert any("rank 3 works" in line for line in anomaly.evidence)
    assert named(step_results) == {3}


def test_two_slow_ranks_with_their_own_causes():
    """Each is named with its own cause."""
    scenario = Scenario(degrees="dp=8").with_fault("compute", 1, seconds=0.06, begin=60)
    step_results = evaluate_all(scenario.with_fault("data", 6, seconds=0.08, begin=60))
    assert {(f.ranks, f.cause) for f in step_results[-1].anomalies if f.kind == "slow_rank"} == {
        ((1,), "compute"),
        ((6,), "data"),
    }


@pytest.mark.parametrize(("degrees", "slow"), [("dp=8", (0, 2, 4, 6)), ("dp=2", (1,))])
def test_half_of_a_domain_and_a_domain_of_two(degrees, slow):
    """Half of the peers may be slow, and two ranks are enough to show which one is."""
    step_results = evaluate_all(Scenario(degrees=degrees).with_fault("compute", *slow, seconds=0.05, begin=60))
    assert named(step_results) == set(slow)


def test_a_rank_slow_from_the_first_step_is_found_in_the_first_steps():
    """No healthy past is needed where there are peers."""
    step, anomaly = first_anomaly(evaluate_all(Scenario(degrees="dp=8").with_fault("compute", 5, seconds=0.04)))
    assert anomaly.ranks == (5,)
    assert step <= 6


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(degrees="dp=8", steps=600, missing=0.001),
        Scenario(degrees="tp=4,pp=2,dp=2", steps=300, last_stage_factor=1.25),
        Scenario(degrees="tp=4,dp=4", steps=300, sequence_sigma=0.12),
        Scenario(degrees="dp=8", steps=300, checkpoint_every=25),
        Scenario(degrees="dp=8", steps=300, checkpoint_every=25, checkpoint_flagged=False),
        Scenario(degrees="dp=8", steps=120, profiled=(40, 41, 42, 80, 81, 82), profiled_ranks=(1, 3)),
    ],
    ids=["long", "last-stage", "sequences", "checkpoints", "unflagged-checkpoints", "profiled"],
)
def test_what_is_no_fault_is_not_told(scenario):
    """Noise, legitimate imbalance, checkpoints and captures raise nothing."""
    step_results = evaluate_all(scenario)
    assert [f for j in step_results for f in j.anomalies] == []
    assert not any(j.fluctuating for j in step_results)


def evaluating(first, length):
    """Return a change of a recording: no rank runs backward or optimizer in `length` steps, which nothing flags."""

    def change(recording):
        steps = slice(first, first + length)
        for name in ("backward", "optimizer"):
            for values in (recording.duration, recording.components["compute"]):
                values[steps] -= recording.views[name][steps]
            recording.views[name][steps] = 0

    return change


@pytest.mark.parametrize("length", [4, 7, 12, 30])
@pytest.mark.parametrize("after", [3, 20])
def test_an_unflagged_evaluation_is_not_what_steps_usually_consist_of(length, after):
    """A run that is slower after its evaluation is compared, part by part, with the training before it."""
    first = 80
    begin = first + length + after
    scenario = Scenario(degrees="dp=8", steps=begin + 20).with_fault("host", *range(8), seconds=0.06, begin=begin)
    step_results = evaluate_all(scenario, change=evaluating(first, length))
    step, anomaly = first_anomaly(step_results, "fluctuation")
    assert begin + 2 <= step <= begin + 4
    assert (anomaly.cause, anomaly.confidence) == ("host", "high")
    assert anomaly.numbers["usual_compute_seconds"] == pytest.approx(0.4, rel=0.03)
    assert anomaly.numbers["usual_backward_seconds"] == pytest.approx(0.24, rel=0.03)


def test_profiled_steps_and_the_one_after_are_not_evaluated():
    """A capture disturbs its steps and the step in which the trace is written."""
    step_results = evaluate_all(Scenario(degrees="dp=4", profiled=(50, 51, 52)))
    assert [j.step for j in step_results if j.is_disturbed] == [50, 51, 52, 53]


def test_a_rank_that_flags_every_step_does_not_stop_the_others():
    """After half of its recent steps were flagged, a rank's flags excuse no one any more."""

    def flag_all(recording):
        recording.flags[:, 0] = 2

    step_results = evaluate_all(
        Scenario(degrees="dp=8", steps=160).with_fault("compute", 3, seconds=0.06, begin=100), change=flag_all
    )
    assert named(step_results) == {3}


def test_a_slow_tensor_group_is_a_group_anomaly():
    """No one's own work grew: the cause is communication and the scope the group."""
    step_results = evaluate_all(Scenario(degrees="tp=2,dp=4").with_fault("tp", 2, 3, seconds=0.03, begin=60))
    _, anomaly = first_anomaly(step_results, "slow_link")
    assert (anomaly.ranks, anomaly.cause, anomaly.scope, anomaly.domain[0]) == ((2, 3), "link", "group", "tp")
    assert named(step_results) == set()


def test_a_fault_on_every_rank_is_the_runs():
    """When all ranks wait for data, the run is slower than its history and data is why."""
    step_results = evaluate_all(Scenario(degrees="dp=8").with_fault("data", *range(8), seconds=0.05, begin=60))
    step, anomaly = first_anomaly(step_results, "fluctuation")
    assert 62 <= step <= 64
    assert (anomaly.cause, anomaly.scope, anomaly.ranks) == ("data", "job", ())
    assert named(step_results) == set()


@pytest.mark.parametrize(("ranks", "part", "seconds"), [(8, "data", 0.3), (32, "data", 0.3), (32, "compute", 0.2)])
def test_steps_that_each_wait_for_another_rank_are_a_slower_job(ranks, part, seconds):
    """Shared storage holds up one rank in each step: none of them is slow, the job is, and its cause is theirs."""
    chance = np.random.default_rng(3)
    scenario = Scenario(degrees=f"dp={ranks}", steps=150)
    for step in range(120, 150):
        rank = int(chance.integers(ranks))
        scenario = scenario.with_fault(part, rank, seconds=seconds, begin=step, end=step + 1)
    step_results = evaluate_all(scenario)
    step, anomaly = first_anomaly(step_results, "fluctuation")
    assert step <= 124
    assert (anomaly.cause, anomaly.scope) == (part, "job")
    assert named(step_results) == set()


def test_one_strange_step_does_not_change_what_is_lost():
    """Seconds lost are a median: a step in which the peers stumble, as after a capture, leaves them as they were."""
    recording = generate(Scenario(degrees="dp=4", steps=75).with_fault("gc", 3, seconds=0.2, begin=60))
    detector, found = Detector(np.arange(4), recording.topology, POLICY), {}
    for step, row in enumerate(recording.rows()):
        if step == 70:
            row.self_seconds[:3] += 1.0
        found[step] = detector.evaluate(row).anomalies
    for step in (69, 70, 71):
        (anomaly,) = (each for each in found[step] if each.kind == SLOW_RANK)
        assert anomaly.excess_seconds == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize(("degrees", "seeds"), [("pp=8", (0, 1, 2))])
def test_a_slower_run_waits_for_a_rank_that_explains_it_and_is_about_to_alarm(degrees, seeds):
    """Its own history shows the run's third slow step before the rank's alarm: no page names the run for a step."""
    for seed in seeds:
        step_results = evaluate_all(
            Scenario(degrees=degrees, seed=seed).with_fault("compute", 3, seconds=0.03, begin=60)
        )
        step, _ = first_anomaly(step_results)
        before = [f for j in step_results for f in j.anomalies if j.step < step]
        assert [f.kind for f in before if f.is_sure] == []
        assert before[0].kind == "fluctuation"


def test_a_slower_run_waits_two_steps_at_most(monkeypatch):
    """A suspect that never alarms keeps no page back."""
    scenario = Scenario(degrees="dp=8").with_fault("compute", *range(8), seconds=0.05, begin=60)

    def sure_step():
        return next(
            j.step for j in evaluate_all(scenario) for f in j.anomalies if f.kind == "fluctuation" and f.is_sure
        )

    without = sure_step()
    monkeypatch.setattr(SlowRankTest, "suspected_seconds", lambda _: 1.0)
    assert sure_step() == without + 2


def test_blind_ranks_are_counted():
    """A job whose agent measured no wait cannot be evaluated by own work, and states how many ranks that concerns."""
    recording = generate(Scenario(degrees="dp=4", steps=40))
    rows = list(recording.rows())
    detector = Detector(np.arange(4), recording.topology, POLICY)
    for row in rows:
        row.self_seconds[:] = np.nan
        step_result = detector.evaluate(row)
    assert step_result.ranks_blind == 4
    assert step_result.anomalies == ()


def test_a_rank_that_is_slow_here_and_there_is_reported_with_its_share_of_steps():
    """One step in twelve, never two in a row: rank and cause of its last slow step, and what it costs as a mean of steps."""
    scenario = Scenario(degrees="dp=8", steps=500)
    begins = 60 + np.flatnonzero(np.random.default_rng(3).random(110) < 1 / 3) * 4
    for begin in begins.tolist():
        scenario = scenario.with_fault("compute", 3, seconds=0.1, begin=begin, end=begin + 1)
    step_results = evaluate_all(scenario)
    anomaly = [each for result in step_results for each in result.anomalies][-1]
    assert named(step_results) == {3}
    assert (anomaly.cause, anomaly.scope, anomaly.domain) == ("compute", "rank", None)
    share = anomaly.numbers["share_of_steps"]
    assert share == pytest.approx(1 / 12, rel=0.5)
    assert anomaly.numbers["excess_ratio"] == anomaly.excess_ratio
    assert anomaly.lost_seconds == pytest.approx(0.1, rel=0.2)
    assert anomaly.excess_seconds == pytest.approx(share * anomaly.lost_seconds)
    assert anomaly.evidence[0].startswith(f"rank 3 works {anomaly.excess_ratio:.0%} longer in {share:.1%} of the steps")
    assert anomaly.evidence[1].startswith("rank 3 works ")


def here_and_there(part, seconds, *, seed, others=8, begin=400, steps=800):
    """Return a job whose steps are longer in one of four from `begin` on; one rank of `others` in turn or, if 0, all ranks."""
    rng = np.random.default_rng(seed)
    scenario = Scenario(degrees="dp=8", steps=steps, seed=seed)
    for step in (begin + np.flatnonzero(rng.random(steps - begin) < 0.25)).tolist():
        ranks = (int(rng.integers(others)),) if others else tuple(range(8))
        scenario = scenario.with_fault(part, *ranks, seconds=seconds, begin=step, end=step + 1)
    return evaluate_all(scenario)


@pytest.mark.parametrize(("part", "others"), [("data", 0), ("data", 8), ("compute", 8)])
def test_a_job_that_is_slow_here_and_there_is_reported_with_its_cause(part, others):
    """On all ranks at once, or on each in turn: no rank is named, and the cause is that of the long steps."""
    for seed in (0, 1):
        step_results = here_and_there(part, 0.08, seed=seed, others=others)
        counted = [(each.step, f) for each in step_results for f in each.anomalies if "share_of_steps" in f.numbers]
        (step, _), (_, anomaly) = counted[0], counted[-1]
        assert 400 < step < 560
        assert (named(step_results), anomaly.kind, anomaly.cause, anomaly.is_sure) == (set(), "fluctuation", part, True)
        assert anomaly.numbers["share_of_steps"] == pytest.approx(0.2, abs=0.05)
        assert anomaly.excess_seconds == pytest.approx(0.25 * 0.08, rel=0.25)
        assert "here and there" in anomaly.evidence[0]
        acting = {step for step, each in counted if each.acts}
        assert acting == {each.step for each in step_results if each.step_seconds > 0.53} & {s for s, _ in counted}


def test_a_rank_that_is_slow_here_and_there_explains_a_job_that_is():
    """One rank in a quarter of the steps: it is named, and after that the job is not slower by itself."""
    step_results = here_and_there("data", 0.08, seed=2, others=1)
    step, _ = first_anomaly(step_results, "slow_rank")
    assert named(step_results) == {0}
    assert [each.step for each in step_results if each.fluctuating and each.step > step] == []


def test_steps_of_a_new_pace_are_what_steps_usually_consist_of():
    """A run whose work has halved for good is compared with the work that it has now."""
    scenario = Scenario(degrees="dp=8", steps=130).with_fault("host", *range(8), seconds=0.06, begin=110)
    _, anomaly = first_anomaly(evaluate_all(scenario, change=evaluating(80, 50)), "fluctuation")
    assert (anomaly.cause, anomaly.confidence) == ("host", "high")
    assert anomaly.numbers["usual_compute_seconds"] == pytest.approx(0.12, rel=0.03)


def test_a_restart_in_an_evaluation_keeps_what_training_consists_of():
    """What the former pace's steps consist of is state, since the run will go back to it."""
    scenario = Scenario(degrees="dp=8", steps=130).with_fault("host", *range(8), seconds=0.06, begin=110)
    recording = generate(scenario)
    evaluating(80, 20)(recording)
    detector, step_results = Detector(np.arange(8), recording.topology, POLICY), []
    for row in recording.rows():
        if row.step == 95:
            state = detector.state_dict()
            detector = Detector(np.arange(8), recording.topology, POLICY)
            detector.load_state_dict(state)
        step_results.append(detector.evaluate(row))
    _, anomaly = first_anomaly(step_results, "fluctuation")
    assert (anomaly.cause, anomaly.confidence) == ("host", "high")
    assert anomaly.numbers["usual_compute_seconds"] == pytest.approx(0.4, rel=0.03)
