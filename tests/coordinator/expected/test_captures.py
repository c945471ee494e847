"""Operator times of healthy ranks in the run's model: whose captures count, and that they make it truer."""

from dataclasses import replace

import numpy as np
import pytest

from coordinator.decide import events as ev
from coordinator.expected.expectation import Expectation
from coordinator.expected.healthy import KeptWindow, kept_from_json, kept_to_json
from coordinator.expected.model_fit import fit_model
from coordinator.store import Store
from lockstep.contracts.errors import MalformedError
from lockstep.simulator.calibration.measured import OperatorTimes
from tests.coordinator.conftest import evaluated
from tests.coordinator.expected.test_expectation import FAULTY, ROWS, TEXT, TOPOLOGY, Watch, answer, see
from tests.coordinator.test_runs import NOW, two_nodes
from tests.simulator.calibration.test_operator_split import share_of, summary_of

SPEC = """
model:
  type: operators
  operators:
    - {name: products, flops: 1.0e+9, moved_elements: 1.0e+5, parameters: 1.0e+6, stored_bytes: 0}
    - {name: norms, flops: 0.0, moved_elements: 2.0e+7, parameters: 0, stored_bytes: 0}
strategy: {dp: 4}
cluster:
  device: {name: core, flops_per_second: 1.0e+12, memory_bytes_per_second: 1.0e+11, memory_bytes: 1.0e+10}
  levels: [{name: loopback, fanout: 4, bytes_per_second: 1.0e+9}]
batch: 32
"""
JOB = replace(TEXT, text=SPEC)
COMPUTE_S = float(np.median(np.stack([row.components["compute"] for row in ROWS[40:100]])))
TRUTH = OperatorTimes(matrix_seconds=0.75 * COMPUTE_S, other_seconds=0.25 * COMPUTE_S)
SICK = OperatorTimes(matrix_seconds=0.1 * COMPUTE_S, other_seconds=0.9 * COMPUTE_S)


class Captured(Watch):
    """A watch whose ranks answer captures at once; `requests` are those made, `sick` the ranks that compute otherwise."""

    def __init__(self, **more):
        super().__init__(text=JOB, **more)
        self.requests, self.sick = [], ()
        two_nodes(self.runs)

    def perform(self, orders):
        super().perform(orders)
        for _, given in orders:
            for each in given:
                if isinstance(each, ev.RequestCapture):
                    self.requests.append(each.request)

    def deliver(self, *, ranks=None, **more):
        """Let the ranks of the last request, or some of them, deliver their summaries."""
        asked = self.requests[-1]
        for rank in asked.ranks if ranks is None else ranks:
            times = SICK if rank in self.sick else TRUTH
            summary = replace(summary_of(times, rank=rank, **more), node="n0", request_id=asked.request_id)
            self.perform(self.runs.take(summary, NOW + 125))

    def ask(self, *ranks):
        event = ev.CaptureRequestedEvent(unix_s=NOW + 95, cause_id="api", ranks=ranks, steps=3)
        self.perform(self.runs.feed("job", event))

    @property
    def fits(self):
        return [each for each in self.instructions if isinstance(each, ev.FitModel)]

    @property
    def share(self):
        return share_of(self.expectation.model.operator_seconds)


def test_healthy_peers_of_an_incident_make_the_model_truer_and_its_suspect_never_counts():
    """One more fit, to the same window: the split of computing was wrong and is right, the expected step stays."""
    watch = Captured()
    watch.sick = (2,)
    watch.play(FAULTY, 0, 115)
    before, without = watch.expectation.model, watch.share
    (asked,) = watch.requests
    assert asked.ranks[0] == 2
    assert len(asked.ranks) > 1
    watch.deliver()
    first, again = watch.fits
    assert (first.operators, again.window) == (None, first.window)
    assert 2 not in again.operators.ranks
    assert abs(without - share_of(TRUTH)) > 0.15
    assert abs(watch.share - share_of(TRUTH)) < 0.02
    model = watch.expectation.model
    assert model.expected_step_seconds == pytest.approx(before.expected_step_seconds)
    assert model.error_band_ratio == before.error_band_ratio
    assert watch.expectation.to_json(None)["captured_ranks"] == sorted(set(asked.ranks) - {2})
    predicted = [each for each in watch.instructions if isinstance(each, ev.Predict)]
    assert [each.model for each in predicted] == [before, model]  # the open incident is asked about again


def test_a_capture_of_a_healthy_run_counts_and_only_the_first_one_does():
    """Asked for by hand while nothing was wrong; a second one does not move what is expected."""
    watch = Captured().play(FAULTY, 0, 95)
    for _ in range(2):
        watch.ask(0, 3)
        watch.deliver()
    assert len(watch.fits) == 2
    assert watch.expectation.to_json(None)["captured_ranks"] == [0, 3]
    assert abs(watch.share - share_of(TRUTH)) < 0.02


@pytest.mark.parametrize("asked_at", [95, 115])
def test_a_capture_by_hand_of_a_run_that_is_or_turns_sick_does_not_count(asked_at):
    """Whether the incident was there when it was asked for or came before it was there."""
    watch = Captured().play(FAULTY, 0, asked_at)
    if watch.requests:  # of the incident: nothing comes of it
        watch.deliver(error="no trace")
    watch.ask(0, 3)
    watch.play(FAULTY, asked_at, 120)
    assert watch.requests[-1].ranks == [0, 3]
    watch.deliver()
    assert len(watch.fits) == 1
    assert watch.expectation.model.captured_ranks == ()


def test_captures_that_come_before_the_window_wait_for_it():
    """The first fit has them already."""
    watch = Captured().play(FAULTY, 0, 30)
    watch.ask(1)
    watch.deliver()
    assert watch.fits == []
    watch.play(FAULTY, 30, 90)
    (only,) = watch.fits
    assert only.operators.ranks == (1,)
    assert watch.expectation.model.captured_ranks == (1,)


@pytest.mark.parametrize("more", [{"error": "the worker failed"}, {"scale": 20.0}])
def test_captures_that_failed_or_that_the_records_contradict_leave_the_model_as_it_was(more):
    """Exactly the result without a capture."""
    plain = Captured().play(FAULTY, 0, 95).expectation.model
    watch = Captured().play(FAULTY, 0, 95)
    watch.ask(0, 1, 2, 3)
    watch.deliver(**more)
    found = watch.expectation.model
    for name in ("parameters", "rest_seconds", "spread_seconds", "error_band_ratio", "captured_ranks"):
        assert getattr(found, name) == getattr(plain, name)


def test_a_run_of_another_shape_forgets_what_was_captured_of_it():
    """The model is fitted again without; the same window with another specification keeps it."""
    expectation = Expectation(JOB)
    (order,) = see(expectation)
    expectation.add_operators(replace(TRUTH, ranks=(0,)))
    assert expectation.refit("") == []  # the first answer is awaited
    assert expectation.take(answer(order))
    (again,) = expectation.refit("")
    assert expectation.refit("") == []
    expectation.adopt(replace(JOB, text=SPEC + "# the same again\n"))
    assert not expectation.take(answer(again))
    (order,) = see(expectation)
    assert order.operators.ranks == (0,)
    see(expectation, last=1, topology=TOPOLOGY._replace(world_size=5))
    (order,) = see(expectation)
    assert order.operators is None


def test_what_was_captured_outlives_a_restart(tmp_path):
    """The store gives it back with the window, and the same model is fitted at the first step."""
    (order,) = see(Expectation(JOB))
    operators = replace(TRUTH, ranks=(0, 3))
    kept = KeptWindow(digest=JOB.digest, window=order.window, operators=operators)
    store = Store(str(tmp_path))
    store.keep_window("job", kept)
    store.keep_window("other", replace(kept, operators=None))
    store.close()
    store = Store(str(tmp_path))
    found = store.load_windows()
    store.close()
    assert (found["job"].operators, found["other"].operators) == (operators, None)
    (due,) = Expectation(JOB, found["job"]).see(ROWS[0], evaluated(0), TOPOLOGY, "")
    assert due.operators == operators
    models = [fit_model(JOB, order.window, operators), fit_model(JOB, due.window, due.operators)]
    assert models[0].parameters == models[1].parameters
    for damage in ({"operators": 3}, {"operators": {"matrix_seconds": -1, "other_seconds": 1, "ranks": []}}):
        with pytest.raises(MalformedError, match="operator times"):
            kept_from_json(kept_to_json(kept) | damage, digest="", where="test")
