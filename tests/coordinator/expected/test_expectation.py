# ruff: noqa: N806
"""What is expected of a run: when a model is fitted, when not, and what it is asked."""

import json
from dataclasses import replace

import numpy as np
import pytest

from coordinator.decide import events as ev
from coordinator.decide.incidents import Prediction, from_json, to_json
from coordinator.expected.expectation import Expectation, fault_of
from coordinator.expected.healthy import WINDOW_STEPS, HealthySteps, KeptWindow, window_from_json, window_to_json
from coordinator.expected.model_fit import fit_model, predict_gain
from coordinator.record.journal import Entry, JournalWriter, read_entry
from coordinator.settings.specs import SpecText
from lockstep.contracts.domains import from_degrees, pack_ranks
from lockstep.contracts.errors import ConfigError, MalformedError
from lockstep.contracts.messages import GroupInfo
from lockstep.simulator.calibration.measured import STEPS_MIN
from tests.coordinator.conftest import START_UNIX_S, announce, anomaly, evaluated
from tests.coordinator.detect.ranks.test_slow_rank import DATA, recorded
from tests.coordinator.scenarios import Scenario, generate
from tests.coordinator.test_runs import NOW, runs, two_nodes
from tests.coordinator.test_store import incident

SPEC = """
model:
  type: operators
  operators:
    - {name: layers, flops: 1.0e+9, moved_elements: 1.0e+5, parameters: 1.0e+6, stored_bytes: 0}
    - {name: head, flops: 1.0e+8, moved_elements: 1.0e+5, parameters: 1.0e+5, stored_bytes: 0}
strategy: {dp: 4}
cluster:
  device: {name: core, flops_per_second: 1.0e+12, memory_bytes_per_second: 1.0e+11, memory_bytes: 1.0e+10}
  levels: [{name: loopback, fanout: 4, bytes_per_second: 1.0e+9}]
batch: 32
"""
GPT = """
model: {type: gpt, layers: 4, hidden: 512, heads: 8, sequence: 512, vocabulary: 8192}
strategy: {tp: 2, dp: 4}
cluster: {preset: DGX A100, nodes: 1, device: {flops_per_second: 2.0e+12}}
batch: 32
"""
TEXT = SpecText(text=SPEC, name="specification", source="api")
JOB = Scenario(degrees="dp=4", steps=130)
FAULTY = generate(JOB.with_fault("data", 2, seconds=0.2, begin=100))
TOPOLOGY = FAULTY.topology
ROWS = list(FAULTY.rows())


class Watch:
    """Runs with what a fit and a prediction are answered by; `instructions` are those about models."""

    def __init__(self, text=TEXT, **more):
        self.runs = runs(**more)
        self.runs.expect(lambda _: text)
        self.instructions = []

    def play(self, recording, first, last, **more):
        for step in range(first, last):
            for node, ranks in (("n0", (0, 1)), ("n1", (2, 3))):
                batch = recording.batch(step, step + 1, ranks=ranks, node=node, run="job", **more)
                self.perform(self.runs.take(batch, NOW + step))
        return self

    def perform(self, orders):
        for name, given in orders:
            for each in given:
                if isinstance(each, ev.FitModel):
                    self.instructions.append(each)
                    self.perform(self.runs.take_fitted(name, answer(each)))
                if isinstance(each, ev.Predict):
                    self.instructions.append(each)
                    prediction = Prediction(**gain_of(each))
                    event = ev.PredictedEvent(
                        unix_s=0.0, cause_id="", incident_id=each.incident_id, prediction=prediction
                    )
                    self.perform(self.runs.feed(name, event))

    @property
    def run(self):
        return self.runs.by_name["job"]

    @property
    def expectation(self):
        return self.run.expectation


def answer(order):
    """Return what a coordinator's effects make of a fit."""
    common = {name: getattr(order, name) for name in ("spec", "window", "operators")}
    common |= {"unix_s": 0.0, "cause_id": ""}
    try:
        return ev.FittedEvent(**common, model=fit_model(order.spec, order.window, order.operators))
    except ConfigError as error:
        return ev.FittedEvent(**common, model=None, reason=str(error))


def gain_of(order):
    gain = predict_gain(order.model, order.fault)
    names = ("gain_ratio", "faulty_step_seconds", "repaired_step_seconds", "error_band_ratio")
    return {name: getattr(gain, name) for name in names}


@pytest.fixture(scope="module")
def watch():
    """Return a run that was healthy, was fitted, and has had a slow rank for 30 steps."""
    made = Watch()
    two_nodes(made.runs)
    return made.play(FAULTY, 0, 130)


def test_a_healthy_window_is_fitted_once_and_the_fault_is_predicted(watch):
    """One fit after warm-up; the incident's repair gives back what the fault costs, within the band."""
    fits = [each for each in watch.instructions if isinstance(each, ev.FitModel)]
    assert len(fits) == 1
    healthy_s = float(np.median(FAULTY.duration[40:100]))
    faulty_s = float(np.median(FAULTY.duration[100:]))
    seen = watch.expectation.to_json(faulty_s)
    assert (seen["state"], seen["reason"], seen["specification"]) == ("known", "", "api")
    assert seen["step_seconds"] == pytest.approx(healthy_s, rel=0.02)
    assert 0.01 <= seen["error_band_ratio"] < 0.03
    assert seen["measured_over_expected_ratio"] == pytest.approx(faulty_s / healthy_s, rel=0.02)
    (found,) = watch.run.machine.tracker.incidents.values()
    assert found.predicted_gain[0] == pytest.approx(1 - healthy_s / faulty_s, abs=0.02)
    assert found.predicted_gain[1] == "model"
    assert found.prediction.faulty_step_seconds == pytest.approx(faulty_s, rel=0.03)


def test_a_steady_fault_is_predicted_once(watch):
    """Thirty steps of the same excess are one question."""
    assert sum(isinstance(each, ev.Predict) for each in watch.instructions) == 1


def test_snapshot_and_api_show_the_same(watch):
    """What is exported is what the API gives."""
    shown = watch.runs.snapshot_of(watch.run)
    assert shown.expected_state == "known"
    assert shown.expected_step_seconds == watch.expectation.model.expected_step_seconds
    assert shown.expected_error_ratio == watch.expectation.model.error_band_ratio


def test_the_repair_of_a_slow_link_is_predicted():
    """A tensor group whose transfers turn slow: the gain is what the fault costs, within three points."""
    recording = generate(Scenario(degrees="tp=2,dp=4", steps=115).with_fault("tp", 2, 3, seconds=0.2, begin=90))
    groups = [GroupInfo(kind=d.kind, name=d.name, ranks=pack_ranks(d.ranks)) for d in recording.topology.domains]
    made = Watch(text=replace(TEXT, text=GPT))
    made.runs.take(announce(*range(8), world=8, groups=groups), NOW)
    for step in range(115):
        made.perform(made.runs.take(recording.batch(step, step + 1), NOW + step))
    (found,) = made.run.machine.tracker.incidents.values()
    assert (found.kind, found.scope, found.ranks) == ("slow_link", "group", (2, 3))
    healthy_s, faulty_s = np.median(recording.duration[40:90]), np.median(recording.duration[90:])
    assert found.prediction.gain_ratio == pytest.approx(1 - healthy_s / faulty_s, abs=0.03)


def test_without_a_specification_nothing_is_expected():
    """No fit, no number, and the reason."""
    made = Watch(text=None)
    two_nodes(made.runs)
    made.play(FAULTY, 0, 70)
    assert made.instructions == []
    seen = made.expectation.to_json(0.5)
    assert (seen["state"], seen["reason"]) == ("unspecified", "no specification of the job")
    assert {seen[name] for name in ("step_seconds", "error_band_ratio", "measured_over_expected_ratio")} == {None}


def test_a_specification_of_another_job_is_refused_with_its_reason():
    """Twice as many ranks: nothing is expected, the reason names both, and no one asks again."""
    made = Watch(text=replace(TEXT, text=SPEC.replace("dp: 4", "dp: 8").replace("fanout: 4", "fanout: 8")))
    two_nodes(made.runs)
    made.play(FAULTY, 0, 70)
    assert len(made.instructions) == 1
    seen = made.expectation.to_json(0.5)
    assert seen["state"] == "refused"
    assert "got 8, expected the run's 4" in seen["reason"]


def see(expectation, *, rows=ROWS, first=0, last=None, topology=TOPOLOGY, **more):
    """Return what is due after healthy steps."""
    due = []
    for row in rows[first:last]:
        result = evaluated(row.step, step_seconds=float(np.nanmedian(row.duration)), **more)
        due += expectation.see(row, result, topology, "step")
    return due


@pytest.mark.parametrize(
    "more",
    [{"warm": False}, {"disturbed": True}, {"reporting": 3}],
)
def test_steps_that_are_not_healthy_teach_nothing(more):
    """Not warm, disturbed, ranks missing."""
    assert see(Expectation(TEXT), **more) == []


def test_steps_with_a_anomaly_teach_nothing():
    """A fault that lasts is never what is expected."""
    expectation = Expectation(TEXT)
    for row in ROWS:
        assert expectation.see(row, evaluated(row.step, anomaly()), TOPOLOGY, "step") == []


def test_a_window_that_drifts_waits_for_a_better_one():
    """The reason states that meanwhile; half of the window is seen again."""
    expectation = Expectation(TEXT)
    for number, row in enumerate(ROWS[:WINDOW_STEPS]):
        assert expectation.see(row, evaluated(row.step, step_seconds=1 + number / 40), TOPOLOGY, "") == []
    assert expectation.state == "waiting"
    assert "second half" in expectation.reason
    later = [replace(row, step=row.step + 100, end_unix_s=row.end_unix_s + 100) for row in ROWS]
    due = [expectation.see(row, evaluated(row.step, step_seconds=2.0), TOPOLOGY, "") for row in later[:WINDOW_STEPS]]
    assert sum(map(len, due)) == 1


def test_another_size_or_specification_is_fitted_again_and_late_answers_are_dropped():
    """A fit of what the run was before is not what is expected of it now."""
    expectation = Expectation(TEXT)
    (order,) = see(expectation)
    expectation.adopt(TEXT)
    assert expectation.state == "fitting"
    other = replace(TEXT, text=SPEC + "# again\n")
    expectation.adopt(other)
    assert not expectation.take(answer(order))
    assert expectation.state == "waiting"
    (order,) = see(expectation)
    half = list(generate(replace(JOB, degrees="dp=2")).rows())
    see(expectation, rows=half[:1], topology=from_degrees({"dp": 2}, 2), reporting=2)
    assert not expectation.take(answer(order))
    assert (expectation.state, expectation.model) == ("waiting", None)


def test_other_degrees_of_the_same_size_are_fitted_again_and_other_names_are_not():
    """After a restart the groups of a run may be called otherwise, or be announced one by one."""
    expectation = Expectation(TEXT)
    expectation.take(answer(see(expectation)[0]))
    renamed = TOPOLOGY._replace(domains=tuple(each._replace(name="new") for each in TOPOLOGY.domains))
    for other in (renamed, TOPOLOGY._replace(domains=())):
        see(expectation, last=1, topology=other)
        assert expectation.state == "known"
    see(expectation, last=1, topology=from_degrees({"tp": 2, "dp": 2}, 4))
    assert (expectation.state, expectation.model) == ("waiting", None)


def test_another_attempt_keeps_the_model_and_not_a_half_window():
    """A job that begins again with a fault must not teach what is expected."""
    expectation = Expectation(TEXT)
    assert see(expectation, last=WINDOW_STEPS - 1) == []
    expectation.begin_attempt()
    assert see(expectation, first=WINDOW_STEPS - 1, last=2 * WINDOW_STEPS - 2) == []
    (order,) = see(expectation, first=2 * WINDOW_STEPS - 2, last=2 * WINDOW_STEPS - 1)
    assert expectation.take(answer(order))
    model = expectation.model
    expectation.begin_attempt()
    assert see(expectation) == []
    assert expectation.model is model


def test_a_window_that_was_kept_is_fitted_at_the_first_step():
    """After a restart of the coordinator, even while the run is slow; not one of another specification."""
    (order,) = see(Expectation(TEXT))
    kept = KeptWindow(digest=TEXT.digest, window=order.window)
    again = Expectation(TEXT, kept)
    (due,) = again.see(ROWS[0], evaluated(0, anomaly()), TOPOLOGY, "")
    assert due.window is order.window
    other = Expectation(replace(TEXT, text=SPEC + "# other\n"), kept)
    assert see(other, last=10) == []


def test_windows_come_back_from_their_kept_form():
    """Whole, through JSON, missing values included; a damaged one is refused."""
    (order,) = see(Expectation(TEXT))
    exposed_W = order.window.exposed["dp"].copy()
    exposed_W[3] = np.nan
    window = replace(order.window, exposed={"dp": exposed_W}, shortest={"dp": exposed_W / 2})
    text = json.dumps(window_to_json(window))
    back = window_from_json(json.loads(text), where="test")
    for name in ("step_W", "compute_SW", "floor_W", "spread_W"):
        np.testing.assert_array_equal(getattr(back, name), getattr(window, name))
    np.testing.assert_array_equal(back.exposed["dp"], exposed_W)
    np.testing.assert_array_equal(back.shortest["dp"], exposed_W / 2)
    older = {name: each for name, each in json.loads(text).items() if name != "shortest"}
    assert window_from_json(older, where="test").shortest == {}
    assert (back.members, back.degrees, back.world_size) == (window.members, window.degrees, window.world_size)
    for damage in ({"step": [1.0]}, {"compute": None}, {"members": 3}):
        with pytest.raises(MalformedError, match="healthy window"):
            window_from_json(json.loads(text) | damage, where="test")


def test_what_a_step_is_reduced_to():
    """The median rank of each stage, the floor of the stage where it is longest, the least wait of each domain."""
    recording = generate(Scenario(degrees="tp=2,dp=2,pp=2", steps=3, last_stage_factor=1.5))
    row = next(recording.rows())
    steps = HealthySteps(recording.topology, row.ranks)
    steps.add(row, 0.5)
    window = steps.window()
    compute_R = row.components["compute"]
    assert window.compute_SW[:, 0] == pytest.approx([np.median(compute_R[:4]), np.median(compute_R[4:])])
    own_R = row.self_seconds
    spreads = [own_R[stage].max() - np.median(own_R[stage]) for stage in (slice(4), slice(4, 8))]
    assert window.spread_W[0] == pytest.approx(max(spreads))
    tp = [recording.waits["tp"][0][list(d.ranks)].min() for d in recording.topology.domains if d.kind == "tp"]
    assert window.exposed["tp"][0] == pytest.approx(np.median(tp))
    assert window.degrees == {"tp": 2, "pp": 2}
    assert window.members["tp"] == (0, 1)


def test_a_stored_window_has_the_optimizer_where_it_was_measured():
    """Seconds by stage, NaN in a step whose phases are unknown; a window of an earlier version has none."""
    steps = HealthySteps(TOPOLOGY, ROWS[0].ranks)
    for number, seconds in enumerate((0.02, np.nan)):
        known_R = np.array([seconds, seconds, np.nan, seconds])
        steps.add(replace(ROWS[number], end_unix_s=number, views={"optimizer": known_R}), 0.5)
    window = steps.window()
    np.testing.assert_array_equal(window.optimizer_SW, [[0.02, np.nan]])
    stored = json.loads(json.dumps(window_to_json(window)))
    np.testing.assert_array_equal(window_from_json(stored, where="test").optimizer_SW, window.optimizer_SW)
    del stored["optimizer"]
    assert window_from_json(stored, where="test").optimizer_SW is None
    with pytest.raises(MalformedError):
        window_from_json(stored | {"optimizer": [[0.02]]}, where="test")


def test_waits_for_everybody_count_where_no_group_is_called_so():
    """A DistributedDataParallel job books its waits as the world's, and its only group is called dp."""
    steps = HealthySteps(TOPOLOGY, ROWS[0].ranks)
    waits_s, floors_s = np.array([0.3, 0.1, 0.2, 0.4]), np.array([0.02, np.nan, 0.03, 0.05])
    steps.add(replace(ROWS[0], transfers={"world": waits_s}, floors={"world": floors_s}), 0.5)
    window = steps.window()
    assert {kind: seconds.tolist() for kind, seconds in window.exposed.items()} == {"world": [0.1]}
    assert {kind: seconds.tolist() for kind, seconds in window.shortest.items()} == {"world": [0.02]}
    assert window.members["world"] == (0, 3)


def test_steps_that_come_too_soon_are_not_taken():
    """Of steps of a tenth of a second every third is, so that a window lasts ten seconds."""
    steps = HealthySteps(TOPOLOGY, ROWS[0].ranks)
    for number in range(30):
        steps.add(replace(ROWS[0], step=number, end_unix_s=START_UNIX_S + number / 10), 0.1)
    assert len(steps) == 10


@pytest.mark.parametrize("name", ["healthy-49ms-gloo", "healthy-62ms-c"])
def test_a_recorded_job_on_shared_cores_is_fitted_and_its_fault_predicted(name):
    """Real steps of four processes on two cores: few later ones are above the band; a rank that is slow by two steps."""
    own, step_s = recorded(DATA / f"{name}.csv")
    own, step_s = own[40::5], step_s[40::5]  # a quarter of a second apart, as they are taken
    last = step_s - own.max(axis=1)
    window = replace(
        see(Expectation(TEXT))[0].window,
        step_W=step_s[:WINDOW_STEPS],
        compute_SW=np.median(own[:WINDOW_STEPS], axis=1)[None],
        optimizer_SW=None,
        floor_W=np.zeros(WINDOW_STEPS),
        spread_W=(own.max(axis=1) - np.median(own, axis=1))[:WINDOW_STEPS],
        exposed={"dp": np.maximum(last[:WINDOW_STEPS], 0.0)},
    )
    expectation = Expectation(TEXT, KeptWindow(digest=TEXT.digest, window=window))
    (order,) = see(expectation, last=1)
    expectation.take(answer(order))
    model = expectation.model
    assert model.expected_step_seconds == pytest.approx(np.median(step_s), rel=0.3)  # the host's pace wanders so
    too_long = step_s[WINDOW_STEPS:] > (1 + model.error_band_ratio) * model.expected_step_seconds
    assert too_long.mean() < 0.2
    excess_s = 2 * model.expected_step_seconds
    slow = incident(1, ranks=(2,), excess_seconds=excess_s)
    (predict,) = expectation.repairs([slow], "")
    assert gain_of(predict)["gain_ratio"] == pytest.approx(2 / 3, abs=0.1)


def test_repairs_are_asked_again_when_the_excess_has_moved():
    """Not for noise, not in every step; at once when the incident has become another one, and closed ones are forgotten."""
    expectation = Expectation(TEXT)
    expectation.take(answer(see(expectation)[0]))
    slow = incident(1, ranks=(2,), excess_seconds=0.1)
    asked = [bool(expectation.repairs([replace(slow, excess_seconds=0.1 + 0.005 * (n % 2))], "")) for n in range(20)]
    assert asked == [True] + [False] * 19
    asked = [bool(expectation.repairs([replace(slow, excess_seconds=0.3)], "")) for n in range(40)]
    assert sum(asked) == 1
    (wider,) = expectation.repairs([replace(slow, ranks=(2, 3))], "")
    assert wider.fault.ranks == (2, 3)
    assert expectation.repairs([], "") == []
    assert len(expectation.repairs([slow], "")) == 1


def test_what_a_model_can_mend():
    """Slow ranks, groups and nodes; not a whole job, a hang or a slower run."""
    assert fault_of(incident(1)).kind == "rank"
    link = incident(1, kind="slow_link", cause="link", scope="node", slowdown_ratio=1.5)
    assert (fault_of(link).slowdown_ratio, fault_of(link).is_uplink) == (1.5, True)
    assert not fault_of(replace(link, scope="group")).is_uplink
    for other in (replace(link, scope="job"), incident(1, kind="hang"), incident(1, kind="fluctuation", ranks=())):
        assert fault_of(other) is None


def test_predictions_outlive_store_and_recording():
    """An incident's JSON form and a recording's journal hold the prediction; one of before has none."""
    prediction = Prediction(gain_ratio=0.25, faulty_step_seconds=0.4, repaired_step_seconds=0.3, error_band_ratio=0.05)
    value = json.loads(json.dumps(to_json(incident(1, prediction=prediction))))
    assert value["predicted_gain"] == {"ratio": 0.25, "source": "model"}
    assert from_json(value, where="test").prediction == prediction
    del value["prediction"]
    assert from_json(value, where="test").prediction is None
    event = ev.PredictedEvent(unix_s=START_UNIX_S, cause_id="c", incident_id="job-1", prediction=prediction)
    row = json.loads(json.dumps(JournalWriter().write(Entry(1, int(START_UNIX_S) * 10**9, event, "job"))))
    assert read_entry(row, where="test").what == event


def test_a_run_that_returns_smaller_gets_a_new_expectation():
    """The model of four ranks shows nothing of two."""
    made = Watch()
    two_nodes(made.runs)
    made.play(FAULTY, 0, 90)
    assert made.expectation.state == "known"
    later = START_UNIX_S + 5000
    made.runs.take(announce(0, 1, world=2, attempt=2, heartbeat_s=later), NOW + 5000)
    half = generate(Scenario(degrees="dp=2", steps=STEPS_MIN))
    for step in range(STEPS_MIN):
        made.runs.take(half.batch(step, step + 1, start_s=later), NOW + 5000 + step)
    assert (made.expectation.state, made.expectation.model) == ("waiting", None)
