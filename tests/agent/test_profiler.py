"""Profiles on request: from a control block to a trace, with training going on."""

import cProfile
import gc
import json
import os
import sys
import threading
import time

import numpy as np
import pytest
import torch

from lockstep.agent import agent as agent_module
from lockstep.agent.capture import budget, obstacles
from lockstep.agent.capture.recording import STEP_MARK
from lockstep.agent.ring import RingWriter
from lockstep.contracts.capture import (
    BACKWARD,
    RESULT_STATES,
    CaptureResult,
    StepBoundary,
    request_to_json,
    result_from_json,
    result_to_json,
)
from lockstep.contracts.paths import incoming_directory, trace_name
from lockstep.contracts.records import Flag
from lockstep.trace.kineto.agent_metadata import read_notes
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.names import GC_KIND
from lockstep.trace.summarise import summarise_trace
from tests.agent.orders import ControlBlock, look_for_requests, make_order
from tests.agent.rings import unaccounted_ns

pytestmark = pytest.mark.torch

SLACK_NS = 5_000_000  # between reading two clocks on a busy machine
LONG_COLLECTION_US = 10_000


class Training:
    """A loop that is run a few steps at a time, with a control block next to it."""

    def __init__(self, watched):
        self.watched = watched
        self.model = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.data = torch.ones(4, 8)

    def let_a_second_pass(self):
        self.watched.agent.capture._control._looked_ns -= 2_000_000_000

    def steps(self, count):
        """Run steps; each begins with the look for requests that other trainings have ten times a second."""
        for _ in range(count):
            look_for_requests(self.watched.agent)
            self.optimizer.zero_grad()
            self.model(self.data).sum().backward()
            self.optimizer.step()

    @property
    def answer(self):
        value = self.watched.ring().answer
        return None if value is None else result_from_json(value, where="ring")

    @property
    def flags(self):
        return [record["flags"] for record in self.watched.ring().records]

    def trace(self, request_id):
        return incoming_directory(self.watched.directory) / trace_name(request_id, 0)


@pytest.fixture
def training(watched, monkeypatch):
    # Steps of microseconds; starting a profiler during other tests takes a second now and then.
    monkeypatch.setattr(budget, "SLOWDOWN_FLOOR_NS", 60_000_000_000)
    made = Training(watched)
    made.steps(1)
    made.block = ControlBlock(watched.directory)
    made.let_a_second_pass()
    yield made
    records = watched.ring().records
    assert [record["step"] for record in records] == list(range(len(records)))
    assert all(unaccounted_ns(record) == 0 for record in records)
    assert {path.name for path in watched.directory.iterdir()} - {"0.stacks"} == {"0.ring"}


def marks_of(trace):
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event.get("name")]
    return [name for name in names if name.startswith(STEP_MARK)]


def facts_of(trace):
    return json.loads(trace.read_text())["lockstep"]


def collections_of(trace):
    return [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("name") == "Python GC"]


def test_order_becomes_a_trace(training):
    """The next steps are captured into a plain JSON file with a mark per step, and the answer states that."""
    training.block.order(7, steps=3)
    training.steps(1)
    assert (training.answer.state, training.answer.first_step) == ("running", 2)
    training.steps(2)
    assert training.answer.state == "running"
    training.steps(1)
    answer = training.answer
    assert (answer.request_id, answer.state, answer.reason) == (7, "done", "")
    assert (answer.first_step, answer.steps) == (2, 3)
    assert answer.trace_bytes == training.trace(7).stat().st_size
    assert 0 < answer.start_ns < answer.end_ns
    assert answer.cost_ns == sum(facts_of(training.trace(7))["cost_ns"].values())
    records = training.watched.ring().records
    assert records[2]["start_ns"] <= answer.start_ns
    assert answer.end_ns >= records[4]["end_ns"]
    assert marks_of(training.trace(7)) == [f"lockstep.step#{step}" for step in (2, 3, 4, 5)]
    names = {event.get("name") for event in json.loads(training.trace(7).read_text())["traceEvents"]}
    assert "aten::linear" in names
    assert training.trace(7).stat().st_mode & 0o777 == 0o640


def test_the_trainings_standard_error_stays_its_own(training, capfd):
    """Torch's profiler library writes lines of its own when one begins and ends: none of a capture of ours."""
    training.block.order(7, stacks=True)
    training.steps(4)
    assert training.answer.state == "done"
    assert capfd.readouterr().err == ""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        training.steps(1)
    assert "profiler_start" in capfd.readouterr().err  # the training's own states what it always did


def test_every_touched_step_is_flagged(training):
    """Steps that the profiler started, ran or was written in are flagged, those before and after are not."""
    training.block.order(7, steps=2)
    training.steps(6)
    assert training.flags == [Flag.WARM_UP, 0, Flag.PROFILED, Flag.PROFILED, Flag.PROFILED, 0, 0]


def test_order_for_a_later_step_waits(training):
    """It is accepted at once and begins before the step it names."""
    training.block.order(8, first_step=5, steps=1)
    training.steps(1)
    assert training.answer.state == "accepted"
    training.steps(2)
    assert training.answer.state == "accepted"
    training.steps(1)
    assert (training.answer.state, training.answer.first_step) == ("running", 5)
    training.steps(1)
    assert training.answer.state == "done"


def test_order_for_a_past_step_begins_next(training):
    """A rank that is past the step begins at its next one."""
    training.steps(4)
    training.block.order(9, first_step=2, steps=1)
    training.steps(2)
    assert (training.answer.state, training.answer.first_step) == ("done", 6)


def test_order_for_others_is_not_ours(training):
    """A rank that is not asked shows nothing and does nothing."""
    training.block.order(10, ranks=[1, 2])
    training.steps(4)
    assert training.answer is None
    assert training.flags == [Flag.WARM_UP, 0, 0, 0, 0]


@pytest.mark.parametrize("request_id", [9, 10])
def test_a_withdrawn_order_is_not_carried_out(training, request_id):
    """An order for no rank, of the same request or a later one, takes back what has not begun."""
    training.block.order(9, first_step=6)
    training.steps(2)
    assert training.answer.state == "accepted"
    training.block.order(request_id, ranks=[])
    training.steps(8)
    answer = training.answer
    assert (answer.request_id, answer.state, answer.reason) == (9, "refused", "withdrawn before it began")
    assert not any(flags & Flag.PROFILED for flags in training.flags)
    training.block.order(11)
    training.steps(4)
    assert (training.answer.request_id, training.answer.state) == (11, "done")


def test_stacks_bring_python_frames(training):
    """With stacks the trace has Python functions."""
    training.block.order(11, stacks=True, steps=2)
    training.steps(3)
    events = json.loads(training.trace(11).read_text())["traceEvents"]
    assert any(event.get("cat") == "python_function" for event in events)


@pytest.fixture
def ballast():
    """So many objects that a full collection takes more than LONG_COLLECTION_US, and a young one does not."""
    return [[] for _ in range(2_000_000)]


@pytest.mark.usefixtures("ballast")
@pytest.mark.parametrize("stacks", [False, True])
def test_collections_travel_with_the_trace(training, stacks):
    """Whether torch writes them or not, each collection is in the trace once, at its time on the training thread."""
    training.block.order(11, stacks=stacks, steps=2)
    training.steps(1)
    before_ns = time.time_ns()
    gc.collect()
    after_ns = time.time_ns()
    training.steps(2)
    base_ns = json.loads(training.trace(11).read_text())["baseTimeNanoseconds"]
    (event,) = [each for each in collections_of(training.trace(11)) if each["dur"] > LONG_COLLECTION_US]
    start_ns = base_ns + round(event["ts"] * 1000)
    assert before_ns - SLACK_NS < start_ns < start_ns + event["dur"] * 1000 < after_ns + SLACK_NS
    assert (event["pid"], event["tid"]) == (os.getpid(), threading.get_native_id())
    assert GC_KIND in {
        node.kind
        for node in summarise_trace(training.trace(11), run="r", node="n", rank=0, request_id=11, steps=2).tree
    }


@pytest.mark.usefixtures("ballast")
def test_noted_collections_lie_on_the_clock_of_the_trace(training):
    """What the agent noted is read back at the very time that the trace gives the collection, with its generation."""
    training.block.order(11, steps=2)
    training.steps(1)
    gc.collect()
    training.steps(2)
    notes = read_notes(training.trace(11))
    columns = load_trace(training.trace(11))
    (event,) = np.flatnonzero(
        columns.named(lambda name: name == "Python GC") & (columns.duration_ns > LONG_COLLECTION_US * 1000)
    )
    (noted,) = [each for each in notes.collections if each.duration_ns > LONG_COLLECTION_US * 1000]
    assert (noted.start_ns, noted.duration_ns) == (columns.start_ns[event], columns.duration_ns[event])
    assert noted.generation == (2 if sys.version_info < (3, 14) else None)
    assert notes.dropped_count == 0


def test_the_captures_own_log_listens_in_captures_only(training):
    """Outside of a capture nothing but the marks listens to the collector."""
    before = list(gc.callbacks)
    training.block.order(11, steps=2)
    training.steps(1)
    assert len(gc.callbacks) == len(before) + 1
    training.steps(3)
    assert training.answer.state == "done"
    assert gc.callbacks == before


def test_a_rank_without_a_boundary_refuses(training):
    """Where the exporter does not number the rank's steps, nothing shows when to begin."""
    training.block.order(3, boundaries=[])
    training.steps(2)
    assert (training.answer.state, training.answer.reason) == ("refused", "the steps of this rank are not numbered")


def test_boundaries_of_steps_of_several_ends(training):
    """Where every third end of a backward ends a step, the capture begins and ends there, under the step's number."""
    boundary = StepBoundary(BACKWARD, ends_per_step=3, first_end=1, first_step=40)
    training.block.order(3, first_step=41, steps=2, boundaries=[boundary])
    training.steps(2)
    assert training.answer.state == "accepted"
    training.steps(6)
    assert training.answer.state == "running"
    training.steps(1)
    assert (training.answer.state, training.answer.first_step, training.answer.steps) == ("done", 41, 2)
    assert marks_of(training.trace(3)) == [f"lockstep.step#{step}" for step in (41, 42, 43)]


def test_facts_travel_with_the_trace(training):
    """Who, which steps and when, what it cost, and how this host's two clocks stand to each other."""
    training.block.order(11, steps=2)
    training.steps(1)
    gc.collect()
    training.steps(2)
    facts = facts_of(training.trace(11))
    records = training.watched.ring().records
    assert (facts["version"], facts["run"], facts["rank"], facts["reason"]) == (2, "default", 0, "")
    assert [step for step, _ in facts["boundaries"]] == [2, 3, 4]
    assert facts["boundaries"][1][1] >= records[2]["end_ns"]
    generation = 2 if sys.version_info < (3, 14) else None
    ours = [(start_ns, end_ns) for start_ns, end_ns, noted in facts["collections"] if noted == generation]
    assert facts["boundaries"][0][1] < ours[0][0] < ours[0][1]  # younger ones come as allocations have it
    assert abs(facts["unix_minus_monotonic_ns"] - (time.time_ns() - time.monotonic_ns())) < SLACK_NS
    assert all(facts["cost_ns"][name] > 0 for name in ("start", "stop", "export", "free"))


def test_capture_that_takes_too_much_ends_early(training, monkeypatch):
    """At the next boundary, with the steps it has and the reason; the rank can be asked again."""
    monkeypatch.setattr("lockstep.agent.capture.budget.PROFILE_EVENTS_MAX", 0)
    training.block.order(3, steps=50)
    training.steps(3)
    assert (training.answer.state, training.answer.steps) == ("done", 1)
    assert training.answer.reason.endswith("with one more step, expected at most 0")
    assert facts_of(training.trace(3))["reason"] == training.answer.reason
    assert marks_of(training.trace(3)) == ["lockstep.step#2", "lockstep.step#3"]
    assert training.flags == [Flag.WARM_UP, 0, Flag.PROFILED, Flag.PROFILED]


def test_short_memory_is_refused(training, monkeypatch):
    """Where one step could take more than is left, the profiler is not begun."""
    monkeypatch.setattr("lockstep.agent.capture.budget.FREE_MARGIN_BYTES", 1 << 60)
    training.block.order(3)
    training.steps(2)
    assert training.answer.state == "refused"
    assert training.answer.reason.startswith("memory: got ")
    assert training.flags == [Flag.WARM_UP, 0, 0]


def test_results_are_freed(training):
    """What a capture took is given back when it is done, not at the next one's start."""
    training.block.order(3, steps=1)
    training.steps(1)
    profile = training.watched.agent.capture._runner._recording._profile
    assert profile.profiler.kineto_results is None  # torch sets it when it stops
    training.steps(1)
    assert training.answer.state == "done"
    assert profile.profiler.kineto_results is None


def test_device_is_left_out_where_it_is_not_asked_for(training):
    """An order may ask for the host alone; here there is no device either way."""
    training.block.order(3, steps=1, device=False)
    training.steps(2)
    assert training.answer.state == "done"


def test_orders_follow_each_other(training):
    """One capture after the other, and the same request is not carried out twice."""
    training.block.order(1, steps=1)
    training.steps(3)
    training.block.order(2, steps=1)
    training.steps(3)
    training.block.order(2, steps=1)
    training.steps(3)
    assert (training.answer.request_id, training.answer.state) == (2, "done")
    assert training.trace(1).exists()
    assert training.flags.count(Flag.PROFILED) == 4


def _python(calls):
    def profile(_frame, event, _argument):
        calls.append(event)

    sys.setprofile(profile)
    return lambda: sys.setprofile(None)


def _c_profile(calls):
    profile = cProfile.Profile()
    profile.enable()

    def end():
        profile.disable()
        calls.extend(entry.code for entry in profile.getstats() if "steps" in str(entry.code))

    return end


@pytest.mark.parametrize("begin", [_python, _c_profile])
@pytest.mark.parametrize("ends_early", [False, True])
def test_python_profiler_that_the_user_begins_in_a_capture_goes_on(training, begin, ends_early):
    """Torch's end takes whatever profiles Python away: ours ends at the next boundary, and the user's is put back."""
    calls = []
    training.block.order(1, steps=3, stacks=True)
    training.steps(2)
    assert training.watched.agent.capture.running
    end = begin(calls)
    theirs = sys.getprofile()
    try:
        if ends_early:
            end()
            theirs = None
        training.steps(1)
        assert sys.getprofile() is theirs
        assert (training.answer.state, training.answer.reason) == ("done", "the training began to profile Python")
        calls.clear()
        training.steps(2)
    finally:
        sys.setprofile(None)
        end()
    assert bool(calls) != ends_early or begin is _c_profile
    training.block.order(2, steps=1, stacks=True)
    training.steps(3)
    assert (training.answer.request_id, training.answer.state, training.answer.reason) == (2, "done", "")


@pytest.mark.parametrize("setter", [sys.setprofile, threading.setprofile])
def test_python_profiler_of_the_user_is_respected(training, setter):
    """Torch would take its place for good, on every thread: refused with stacks, and it goes on."""
    calls = []

    def profile(_frame, event, _argument):
        calls.append(event)

    setter(profile)
    try:
        training.block.order(1, stacks=True)
        training.steps(3)
        assert (training.answer.state, training.answer.reason) == (
            "refused",
            "the training profiles Python by sys.setprofile (cProfile and others)",
        )
        assert (sys.getprofile() or threading.getprofile()) is profile
        training.block.order(2, steps=1, stacks=False)
        training.steps(2)
        assert (sys.getprofile() or threading.getprofile()) is profile
    finally:
        setter(None)
    assert training.answer.state == "done"
    training.block.order(3, steps=1, stacks=True)
    training.steps(2)
    assert training.answer.state == "done"


def test_order_during_a_capture_comes_after_it(training):
    """A newer order does not disturb the running one."""
    training.block.order(1, steps=2)
    training.steps(2)
    training.block.order(2, steps=1)
    training.steps(1)
    assert len(facts_of(training.trace(1))["boundaries"]) == 2 + 1  # whole; the newer one may be accepted by now
    training.steps(2)
    assert (training.answer.request_id, training.answer.state) == (2, "done")


def test_running_profiler_of_the_user_is_respected(training):
    """Two at once would empty the user's: refused, and theirs is whole."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        training.block.order(3)
        training.steps(3)
    assert (training.answer.state, training.answer.reason) == ("refused", "another profiler is running")
    assert any(event.key == "aten::linear" for event in theirs.key_averages())
    training.block.order(4, steps=1)
    training.steps(2)
    assert training.answer.state == "done"


def test_too_little_space_is_refused(training, monkeypatch):
    """A trace that may not fit is not begun; the figures are in the reason."""
    monkeypatch.setattr(obstacles, "FREE_MARGIN_BYTES", 1 << 60)
    training.block.order(3, trace_max_bytes=1000)
    training.steps(2)
    assert training.answer.state == "refused"
    assert training.answer.reason.startswith("free space: got ")
    assert training.answer.reason.endswith(f"expected at least {(1 << 60) + 1000}")
    assert training.flags == [Flag.WARM_UP, 0, 0]


def test_too_large_trace_is_removed(training):
    """A trace above the order's limit is not left behind, and the rank can be asked again."""
    training.block.order(3, steps=1, trace_max_bytes=1000)
    training.steps(2)
    assert training.answer.state == "refused"
    assert "expected at most 1000" in training.answer.reason
    assert not training.trace(3).exists()
    training.block.order(4, steps=1)
    training.steps(2)
    assert training.answer.state == "done"


def test_events_are_listed_only_where_the_trace_may_be_too_large(training, monkeypatch):
    """Listing takes a third of the time that stopping does; far below the limit the file's size shows their number."""
    listed, appetites = [], []
    result = torch._C._autograd._ProfilerResult
    events = result.events
    monkeypatch.setattr(result, "events", lambda self: listed.append(len(found := events(self))) or found)
    monkeypatch.setattr(
        budget.TraceSizeEstimator, "learn", lambda _self, _order, events, _captured_ns: appetites.append(events)
    )
    training.block.order(3, steps=1, trace_max_bytes=512 << 20)
    training.steps(2)
    assert training.answer.state == "done"
    assert listed == []
    training.block.order(4, steps=1, trace_max_bytes=1000)
    training.steps(2)
    assert training.answer.state == "refused"
    known, counted = appetites
    assert listed == [counted]
    assert counted / 2 < known < 2 * counted


def test_failing_export_is_refused(training):
    """Where the trace cannot be written, training goes on and the answer states why."""
    training.block.order(3, steps=1)
    training.steps(1)
    training.trace(3).mkdir()
    training.steps(2)
    assert training.answer.state == "refused"
    assert training.answer.reason.startswith("trace of step 2 to 2: ")
    assert training.answer.cost_ns > 0


@pytest.mark.parametrize(
    ("value", "request_id", "reason"),
    [
        ({"request_id": 5}, 5, "fields of CaptureRequest"),
        ({**result_to_json(CaptureResult(request_id=6, state="done"))}, 6, "fields of CaptureRequest"),
        ([1, 2], 0, "CaptureRequest in control block: got list"),
        ({"request_id": "9"}, 0, "fields of CaptureRequest"),
    ],
)
def test_malformed_order_is_refused_by_name(training, value, request_id, reason):
    """What is no order is refused under its number if it has one, with what was wrong."""
    training.block.store(value)
    training.steps(2)
    assert (training.answer.request_id, training.answer.state) == (request_id, "refused")
    assert reason in training.answer.reason
    training.block.order(12, steps=1)
    training.steps(2)
    assert training.answer.state == "done"


def test_order_out_of_bounds_is_refused(training):
    """Limits hold here too."""
    training.block.store(request_to_json(make_order(20, steps=10_000)))
    training.steps(2)
    assert training.answer.state == "refused"
    assert "steps in control block: got 10000" in training.answer.reason


def test_foreign_control_block_is_refused(watched):
    """A control block of another version is refused by name; training goes on."""
    training = Training(watched)
    training.steps(1)
    ControlBlock(watched.directory).path.write_bytes(b"LKSTCTRL" + bytes([9, 0, 0, 0]) + bytes(8180))
    training.let_a_second_pass()
    training.steps(2)
    assert (training.answer.request_id, training.answer.state) == (0, "refused")
    assert "control version" in training.answer.reason
    assert watched.ring().step_count == 3


def test_order_of_a_former_attempt_is_passed_over(watched):
    """What stands in the block when a rank begins was meant for the one before it."""
    ControlBlock(watched.directory).order(5)
    training = Training(watched)
    training.steps(3)
    assert training.answer is None


def test_order_given_as_soon_as_the_ring_appears_is_carried_out(watched, monkeypatch):
    """A ring that can be seen is one whose orders count: only what stood in the block before it was a former attempt's."""

    class SeenAtOnce(RingWriter):
        def __init__(self, directory, header):
            super().__init__(directory, header)
            block.order(1, steps=1)

    block = ControlBlock(watched.directory)
    monkeypatch.setattr(agent_module, "RingWriter", SeenAtOnce)
    training = Training(watched)
    training.steps(1)
    training.let_a_second_pass()
    training.steps(3)
    assert (training.answer.request_id, training.answer.state) == (1, "done")


def test_end_of_training_ends_the_capture(training):
    """A capture that the end cuts short is refused, not left running."""
    training.block.order(5, steps=50)
    training.steps(3)
    training.watched.agent.finish()
    assert (training.answer.state, training.answer.reason) == ("refused", "training ended during the capture")
    assert training.answer.state in RESULT_STATES


def test_training_thread_that_ends_during_its_capture(watched, monkeypatch):
    """The thread that trains next refuses it without a call of torch's profiler, whose session no one else can end."""
    monkeypatch.setattr(budget, "SLOWDOWN_FLOOR_NS", 60_000_000_000)
    monkeypatch.setattr(torch.autograd.profiler, "_is_profiler_enabled", False)  # undoes what torch leaves set
    training = Training(watched)

    def begin():
        training.steps(1)
        training.block = ControlBlock(watched.directory)
        training.let_a_second_pass()
        training.block.order(1, steps=50)
        training.steps(3)

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    assert training.answer.state == "running"
    training.steps(2)
    assert (training.answer.state, training.answer.reason) == (
        "refused",
        "the training thread ended during the capture",
    )
    assert not watched.agent.capture.running
    training.let_a_second_pass()
    training.block.order(2)
    training.steps(2)
    assert (training.answer.state, training.answer.reason) == ("refused", "another profiler is running")
    assert len(watched.ring().records) == 8
