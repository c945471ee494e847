"""What a job that is slower as a whole would get back: from the model where it knows, else from the records."""

import json
from dataclasses import replace

import numpy as np
import pytest

from coordinator.decide import events as ev
from coordinator.decide.incidents import from_json, to_json
from coordinator.expected.expectation import Expectation, fault_of
from coordinator.expected.predicted_gain import loss_of
from lockstep.contracts.finding import Advice
from lockstep.simulator.calibration.repair import COMPUTING, FLOOR
from tests.coordinator.expected.test_expectation import JOB, TEXT, Watch, answer, see
from tests.coordinator.live import effects_of
from tests.coordinator.scenarios import generate
from tests.coordinator.test_runs import two_nodes
from tests.coordinator.test_store import incident

BEGIN, END = 90, 130
NUMBERS = {
    "baseline_step_seconds": 0.5,
    "step_growth_seconds": 0.1,
    "explained_share": 0.8,
    "data_growth_seconds": 0.08,
}
SLOWER = incident(
    1, kind="fluctuation", cause="data", scope="job", ranks=(), domain=None, excess_seconds=0.1, numbers=NUMBERS
)


class Slower(Watch):
    """A run that all four ranks of slow down; the gain by the records is reported as the coordinator's effects do."""

    def __init__(self, part, *, seconds=0.15, text=None):
        super().__init__(text=text)
        two_nodes(self.runs)
        self.recording = generate(replace(JOB, steps=END).with_fault(part, 0, 1, 2, 3, seconds=seconds, begin=BEGIN))
        self.play(self.recording, 0, END)

    def perform(self, orders):
        super().perform(orders)
        for name, given in orders:
            for each in given:
                if isinstance(each, ev.PredictGain):
                    self.instructions.append(each)
                    common = {"unix_s": 0.0, "cause_id": "", "incident_id": each.incident_id}
                    self.perform(self.runs.feed(name, ev.PredictedEvent(**common, prediction=each.prediction)))

    @property
    def gain(self):
        """What its repair really gives back."""
        step_s = np.median(self.recording.duration, axis=1)
        return 1 - np.median(step_s[40:BEGIN]) / np.median(step_s[BEGIN:])

    @property
    def incidents(self):
        return [each for each in self.instructions if isinstance(each, ev.PredictGain | ev.Predict)]


@pytest.mark.parametrize("part", ["data", "host", "compute"])
def test_records_show_what_a_slower_run_gets_back(part):
    """Without a specification: the cause's growth beyond the healthy past, within three points of the truth, once."""
    watch = Slower(part)
    (found,) = watch.run.machine.tracker.incidents.values()
    assert (found.kind, found.scope, found.cause) == ("fluctuation", "job", part)
    assert found.predicted_gain[0] == pytest.approx(watch.gain, abs=0.03)
    assert found.predicted_gain[1] == "records"
    assert found.prediction.error_band_ratio is None
    assert len(watch.incidents) <= 2


@pytest.mark.parametrize(("part", "kind"), [("data", FLOOR), ("compute", COMPUTING)])
def test_the_model_goes_before_the_records(part, kind):
    """With a specification: data and host are its floor, computing that of all ranks; no one asks twice."""
    watch = Slower(part, text=TEXT)
    (found,) = watch.run.machine.tracker.incidents.values()
    assert {each.fault.kind for each in watch.incidents} == {kind}
    assert found.predicted_gain[0] == pytest.approx(watch.gain, abs=0.03)
    assert found.predicted_gain[1] == "model"


def test_the_coordinator_reports_the_gain_that_its_records_show():
    """Through its effects: no thread, no model, and the incident is to be written down again."""
    watch = Slower("data")
    (found,) = watch.run.machine.tracker.incidents.values()
    effects = effects_of(watch.runs, None, lambda: 7.0)
    gain = replace(found.prediction, gain_ratio=0.125)
    effects.perform([("job", [ev.PredictGain(cause_id="c", incident_id=found.id, prediction=gain)])])
    assert watch.run.machine.tracker.incidents[found.id].predicted_gain == (0.125, "records")
    assert effects.writer.incidents[found.id].prediction == gain


def test_growth_without_a_cause_promises_nothing():
    """No cause, no growth, or none that the incident holds: no number."""
    assert loss_of(SLOWER).lost_seconds == pytest.approx(0.08)
    assert loss_of(SLOWER).step_seconds == pytest.approx(0.6)
    changes = (
        {"cause": "unknown"},
        {"numbers": {}},
        {"numbers": NUMBERS | {"explained_share": 0.0}},
        {"numbers": NUMBERS | {"step_growth_seconds": -0.1}},
        {"excess_seconds": 0.0},
        {"kind": "hang"},
        {"kind": "slow_rank", "ranks": (1,)},
    )
    for change in changes:
        assert loss_of(replace(SLOWER, **change)) is None
        assert Expectation().repairs([replace(SLOWER, **change)], "") == []


def test_no_more_is_promised_than_the_step_has_grown_by():
    """Parts that grew by more than the step, of which other parts shrank."""
    more = replace(SLOWER, numbers=NUMBERS | {"step_growth_seconds": 5.0, "explained_share": 1.0})
    (repair,) = Expectation().repairs([more], "")
    assert repair.prediction.repaired_step_seconds == pytest.approx(0.5)
    assert repair.prediction.gain_ratio == pytest.approx(1 / 6)


def test_scattered_collections_promise_what_collecting_together_saves():
    """Not all that they cost: ranks still have to collect."""
    numbers = {"lost_seconds": 0.02, "saving_seconds": 0.015, "lost_ratio": 0.1}
    found = replace(SLOWER, kind="unsynchronised_gc", cause="gc", numbers=numbers)
    (repair,) = Expectation().repairs([found], "")
    assert repair.prediction.gain_ratio == pytest.approx(0.015 / 0.22)


def test_a_whole_network_promises_what_its_transfers_take_longer():
    """Beyond the run's own step, where that is known; a group's or a node's links are the model's alone."""
    found = replace(SLOWER, kind="slow_link", cause="link", numbers={})
    (repair,) = Expectation().repairs([found], "", 0.4)
    assert repair.prediction.gain_ratio == pytest.approx(0.2)
    assert Expectation().repairs([found], "") == []
    assert Expectation().repairs([replace(found, scope="node", ranks=(0, 1))], "", 0.4) == []


def test_a_model_that_comes_later_is_asked_about_what_the_records_gave():
    """And where the model does not know, as of a network, records still give it."""
    expectation = Expectation(TEXT)
    (order,) = see(expectation)
    network = replace(SLOWER, id="job-2", cause="link")
    first = expectation.repairs([SLOWER, network], "")
    assert [type(each) for each in first] == [ev.PredictGain, ev.PredictGain]
    assert expectation.take(answer(order))
    later = expectation.repairs([SLOWER, network], "")
    assert [type(each) for each in later] == [ev.Predict, ev.PredictGain]
    assert expectation.repairs([SLOWER, network], "") == []
    assert fault_of(network) is None


def test_another_cause_takes_the_gain_of_the_first_with_it():
    """What the loader would give back is not what the host would."""
    watch = Slower("data")
    book = watch.run.machine.tracker
    (found,) = book.incidents.values()
    step_result = watch.run.machine.step_result
    other = [replace(each, cause="host") for each in step_result.anomalies]
    for step in range(book.policy.cause_steps):
        assert book.incidents[found.id].prediction is not None
        book.take(
            replace(step_result, step=step_result.step + 1 + step, anomalies=tuple(other)), found.opened_unix_ns, set()
        )
    after = book.incidents[found.id]
    assert (after.cause, after.prediction) == ("host", None)


def test_records_go_before_the_breakdown_of_a_capture_and_are_kept():
    """A capture is of some ranks and some steps. Through the store's form, too."""
    (repair,) = Expectation().repairs([SLOWER], "")
    advice = (Advice(suggestion="s", how="h", predicted_gain_ratio=0.4, source="x"),)
    found = replace(SLOWER, advice=advice, prediction=repair.prediction)
    assert found.predicted_gain == (pytest.approx(0.08 / 0.6), "records")
    assert replace(found, prediction=None).predicted_gain == (0.4, "breakdown")
    value = json.loads(json.dumps(to_json(found)))
    assert value["predicted_gain"]["source"] == "records"
    assert from_json(value, where="test").prediction == repair.prediction
