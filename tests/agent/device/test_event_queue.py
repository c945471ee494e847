"""Steps on a simulated device: what hides behind its work costs nothing, and what does not is found exactly."""

import signal
from threading import Thread

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.accounting import device_step
from lockstep.accounting.device_tracker import PENDING_STEPS_MAX
from lockstep.agent.device import event_queue
from lockstep.agent.device.event_queue import ERRORS_MAX, EVENTS_MAX, READ_FROM, RESERVE
from lockstep.contracts.records import MISSING, Flag
from tests.agent.device.marked import MarkedScene
from tests.agent.device.simulated import ASIDE, COMMUNICATION, DP, HOME, MS, TP, Device
from tests.agent.mark_buffers import WRITERS
from tests.agent.rings import wait_ns

US = 1000


@pytest.fixture
def scene():
    scene = MarkedScene()
    yield scene
    scene.check()


def ddp_step(scene, backward_ns=40 * MS, took_ns=10 * MS, not_before_ns=0):
    """One bucket in the middle of backward, one at its end; the reducer waits unseen. Returns the last one's arrival."""
    scene.data(MS)
    scene.forward(2 * MS, 20 * MS)
    with scene.backward():
        scene.forward(MS, backward_ns // 2)
        scene.collective(took_ns)
        scene.forward(MS, backward_ns // 2)
        arrival_ns = scene.device.free_ns[HOME]
        scene.collective(took_ns, not_before_ns=not_before_ns)
        scene.device.wait(HOME, COMMUNICATION)
    scene.optimize(MS, 5 * MS)
    return arrival_ns


def test_what_hides_behind_the_device_costs_nothing(scene):
    """A host that runs ahead: loading and launching are hidden, and each phase is as long as the device took."""
    for _ in range(6):
        scene.step()
    scene.finish()
    for record in scene.records[2:]:
        assert (record["data_ns"], record["host_ns"], record["compute_ns"]) == (0, 0, 65 * MS)
        assert (record["forward_ns"], record["backward_ns"], record["optimizer_ns"]) == (20 * MS, 40 * MS, 5 * MS)
        assert record["device_step_ns"] == record["end_ns"] - record["start_ns"] == 65 * MS


def test_what_the_device_waited_for_is_found(scene):
    """A host that looks at the loss each step: loading is exposed in full, and so are the launches behind it."""
    for _ in range(3):
        scene.step(data_ns=30 * MS)
        scene.device.synchronize()
    scene.finish()
    assert scene.records[2]["data_ns"] == 30 * MS
    assert scene.records[2]["compute_ns"] == (2 + 20 + 40 + 5) * MS


def test_partly_hidden_data(scene):
    """Of a batch that takes longer than what is queued, the rest is exposed."""
    scene.step()
    scene.step(data_ns=100 * MS)
    scene.finish()
    queued_ns = 68 * MS - (1 + 3 * 2) * MS  # 1 ms of data and 2 of launch exposed, then 65 of work; the host took 7
    queued_ns -= MS  # the first batch
    assert scene.records[1]["data_ns"] == pytest.approx(100 * MS - queued_ns, abs=2 * MS)


def test_host_lead_shows_a_device_that_waits_for_launches(scene):
    """The lead is near 0 where each launch takes longer than its work, and what is queued elsewhere."""
    for _ in range(4):
        scene.step(forward_ns=MS, backward_ns=MS, launch_ns=10 * MS)
    for _ in range(4):
        scene.step()
    scene.finish()
    assert scene.records[3]["host_lead_ns"] <= 2 * MS
    assert scene.records[7]["host_lead_ns"] >= 50 * MS


@pytest.mark.parametrize("full", [True, False])
def test_hidden_collection(scene, full):
    """A collection that the device has work to last through is counted and costs nothing."""
    for _ in range(3):
        scene.step()
    scene.data(MS)
    scene.collect_garbage(10 * MS, full=full)
    scene.forward(MS, 20 * MS)
    with scene.backward():
        scene.forward(MS, 40 * MS)
    scene.optimize(MS, 5 * MS)
    scene.finish()
    record = scene.records[3]
    assert (record["gc_count"], record["gc_full_count"]) == (1, full)
    assert record["gc_ns"] == 0
    assert record["compute_ns"] == 65 * MS


def test_exposed_collection(scene):
    """Of a full collection in mid-forward the part counts that the device had nothing to do in."""
    scene.step()
    scene.device.synchronize()
    scene.data(MS)
    scene.forward(MS, 20 * MS)
    scene.collect_garbage(150 * MS, full=True)
    scene.forward(MS, 20 * MS)
    with scene.backward():
        scene.forward(MS, 40 * MS)
    scene.optimize(MS, 5 * MS)
    scene.finish()
    assert scene.records[1]["gc_ns"] == 130 * MS
    assert scene.records[1]["compute_ns"] == (1 + 20 + 1 + 20 + 40 + 5) * MS


def test_young_collection_of_an_idle_device(scene):
    """Without events of its own a collection counts as far as the lead at the next mark leaves it."""
    scene.step()
    scene.device.synchronize()
    scene.data(MS)
    scene.collect_garbage(8 * MS, full=False)
    with scene.backward():
        scene.forward(MS, 40 * MS)
    scene.optimize(MS, 5 * MS)
    scene.finish()
    assert scene.records[1]["gc_ns"] == 8 * MS


def test_slow_rank_waits_least():
    """Of two ranks in one all-reduce the slow one computes longer and the other one waits for it."""
    slow, quick = MarkedScene(), None
    arrivals = [ddp_step(slow, backward_ns=80 * MS) for _ in range(4)]
    slow.finish()
    quick = MarkedScene()
    for arrival_ns in arrivals:
        ddp_step(quick, not_before_ns=arrival_ns)
    quick.finish()
    for scene in (slow, quick):
        scene.check()
    for late, early in zip(slow.records[1:], quick.records[1:], strict=True):
        assert late["end_ns"] - late["start_ns"] == early["end_ns"] - early["start_ns"]
        assert late["dp_wait_ns"] == 10 * MS
        assert early["dp_wait_ns"] == 50 * MS
        assert late["compute_ns"] - early["compute_ns"] == 40 * MS


def test_reducer_hides_all_but_its_last_bucket(scene):
    """DDP's wait is what is left after the last issue; how long the buckets were in flight is unknown."""
    for _ in range(3):
        ddp_step(scene)
    scene.finish()
    record = scene.records[2]
    assert record["dp_wait_ns"] == 10 * MS
    assert (record["dp_count"], record["dp_bytes"], record["dp_bus_bytes"]) == (2, 200, 300)
    assert (record["dp_comm_ns"], record["dp_shortest_ns"], record["device_comm_ns"]) == (MISSING,) * 3


def test_synchronous_collective_on_the_training_stream(scene):
    """Events before and behind it show all: the wait for others, and the time in flight."""
    for _ in range(3):
        scene.data(MS)
        scene.forward(MS, 20 * MS)
        others = scene.device.free_ns[HOME] + 7 * MS
        scene.collective(3 * MS, kind=TP, synchronous=True, not_before_ns=others)
        with scene.backward():
            scene.forward(MS, 40 * MS)
        scene.optimize(MS, 5 * MS)
    scene.finish()
    record = scene.records[2]
    assert record["tp_wait_ns"] == record["tp_comm_ns"] == record["tp_shortest_ns"] == 10 * MS
    assert record["device_comm_ns"] == 10 * MS
    assert record["compute_ns"] == 65 * MS


@pytest.mark.parametrize(("took_ms", "waited_ms"), [(5, 0), (30, 10)])
def test_asynchronous_collective_costs_what_its_wait_takes(scene, took_ms, waited_ms):
    """One that somebody waits for later blocks only there, in a backward too."""
    for _ in range(3):
        scene.data(MS)
        scene.forward(MS, 20 * MS)
        with scene.backward():
            scene.forward(MS, 20 * MS)
            scene.collective(took_ms * MS, kind=TP)
            scene.forward(MS, 20 * MS)
            scene.wait()
            scene.forward(MS, 10 * MS)
        scene.optimize(MS, 5 * MS)
    scene.finish()
    record = scene.records[2]
    assert record["tp_wait_ns"] == waited_ms * MS
    assert record["compute_ns"] == 75 * MS
    assert record["tp_comm_ns"] == MISSING


def test_synchronous_collective_of_an_older_torch(scene):
    """It runs on a stream of the backend's and is waited for: its wait is seen there, not made up."""
    for _ in range(3):
        scene.data(MS)
        scene.forward(MS, 20 * MS)
        scene.collective(8 * MS, synchronous=True, in_order=False)
        scene.wait()
        with scene.backward():
            scene.forward(MS, 40 * MS)
        scene.optimize(MS, 5 * MS)
    scene.finish()
    assert scene.records[2]["dp_wait_ns"] == 8 * MS
    assert scene.records[2]["dp_comm_ns"] == MISSING


@pytest.mark.parametrize(("took_ms", "waited_ms"), [(15, 0), (28, 8)])
def test_collective_on_a_stream_of_its_own(scene, took_ms, waited_ms):
    """FSDP's: synchronous there, it blocks the training only where that waits; its time in flight is known."""
    for _ in range(3):
        scene.data(MS)
        with scene.device.on(ASIDE):
            scene.device.wait(ASIDE, HOME)
            assert not scene.timeline.has_aside
            scene.collective(took_ms * MS, synchronous=True)
        assert scene.timeline.has_aside
        scene.forward(MS, 20 * MS)
        scene.wait_aside()
        with scene.backward():
            scene.forward(MS, 40 * MS)
        scene.optimize(MS, 5 * MS)
    scene.finish()
    record = scene.records[2]
    assert record["dp_wait_ns"] == waited_ms * MS
    assert record["dp_comm_ns"] == record["dp_shortest_ns"] == took_ms * MS
    assert record["compute_ns"] == 65 * MS
    assert not scene.timeline.has_aside


def test_collective_of_the_host(scene):
    """One that a host's backend (gloo) carries counts as far as the device ran dry."""
    for _ in range(2):
        scene.step()
    scene.data(MS)
    scene.recorder.expect(scene.issue(DP, synchronous=True))
    began = scene.recorder.begin_block()
    lead_ns = scene.device.free_ns[HOME] - scene.device.now
    scene.device.host(lead_ns + 9 * MS)
    scene.recorder.block(began, scene.device.now)
    scene.forward(MS, 20 * MS)
    with scene.backward():
        scene.forward(MS, 40 * MS)
    scene.optimize(MS, 5 * MS)
    scene.finish()
    assert scene.records[2]["dp_wait_ns"] == 9 * MS


def test_step_waits_for_its_last_collective(scene):
    """A step whose collective outlasts it is written when that is done, and the steps stay in order."""
    scene.step()
    scene.device.synchronize()
    scene.data(MS)
    with scene.device.on(ASIDE):
        scene.collective(500 * MS, synchronous=True)
    with scene.backward():
        scene.forward(MS, 40 * MS)
    scene.optimize(MS, 5 * MS)
    scene.device.synchronize()
    scene.step()
    scene.device.synchronize()
    assert len(scene.records) == 1
    scene.device.host(500 * MS)
    scene.step()
    assert len(scene.records) == 3
    assert scene.records[1]["dp_shortest_ns"] == 500 * MS
    scene.finish()
    assert len(scene.records) == 4


def test_host_too_far_ahead(scene):
    """More than PENDING_STEPS_MAX steps on their way: the oldest is written with its wait missing, flagged, and no gap."""
    for _ in range(2):
        ddp_step(scene)
        scene.device.synchronize()
    for _ in range(PENDING_STEPS_MAX + 3):
        ddp_step(scene, backward_ns=4000 * MS)
    assert len(scene.records) == 5
    for record in scene.records[2:]:
        assert record["dp_wait_ns"] == record["dp_comm_ns"] == record["device_step_ns"] == MISSING
        assert record["dp_count"] == 2
        assert record["flags"] & Flag.WARM_UP
    scene.finish()
    assert scene.records[5]["flags"] & Flag.WARM_UP
    assert scene.records[6]["flags"] == 0
    assert scene.records[6]["dp_wait_ns"] == 10 * MS
    assert scene.records[-1]["end_ns"] == scene.device.now


def parallel_step(scene, collectives, wait_ns=30 * US, micro_batches=1, launch_ns=20 * US):
    """Run a step of a layer-parallel job: of so many all-reduces on the training's stream each waits for its peers."""
    for _ in range(micro_batches):
        scene.data(MS)
        for half in range(2):
            if half:
                scene.recorder.enter_backward()
            for _ in range(collectives // micro_batches // 2):
                scene.forward(launch_ns, 100 * US)
                scene.collective(10 * US, kind=TP, synchronous=True, not_before_ns=scene.device.free_ns[HOME] + wait_ns)
        scene.device.host(1)  # no call is instant: two marks of one time would be one
        scene.collective(MS)
        scene.device.wait(HOME, COMMUNICATION)
        scene.recorder.leave_backward()
    scene.optimize(MS, 5 * MS)


@pytest.mark.parametrize(("collectives", "micro_batches"), [(2048, 32), (2048, 1), (8192, 1)])
def test_thousands_of_collectives_in_a_step_are_measured_exactly(collectives, micro_batches):
    """A host that its device's queue holds back has every wait measured, with events that are used again."""
    scene = MarkedScene(Device(queue_max=1024))
    for _ in range(4):
        parallel_step(scene, collectives, micro_batches=micro_batches)
    scene.finish()
    scene.check()
    assert len(scene.records) == 4
    for record in scene.records[1:]:
        assert record["device_step_ns"] == record["end_ns"] - record["start_ns"]
        assert record["flags"] == 0
        assert record["tp_count"] == collectives
        assert record["tp_wait_ns"] == record["tp_comm_ns"] == collectives * 40 * US
        assert record["tp_shortest_ns"] == 40 * US
        assert record["dp_wait_ns"] == micro_batches * MS
        assert record["compute_ns"] == collectives * 100 * US + 5 * MS
    assert scene.device.made <= 2 * READ_FROM + 1024


@pytest.mark.parametrize("collectives", [512, 2048, 8192])
def test_a_collective_costs_the_same_however_many_there_are(collectives):
    """What is asked of the device for one is bounded: two distances, and a part of a question."""
    scene = MarkedScene(Device(queue_max=1024))
    for _ in range(3):
        parallel_step(scene, collectives)
    scene.finish()
    assert scene.device.asked <= 3 * (2.1 * collectives + 100)


@pytest.mark.parametrize("collectives", [2048, 8192])
def test_collectives_that_no_event_is_left_for(collectives):
    """A host ahead by more events than may be in use: no step is given up, and only the waits it hides are missing."""
    scene = MarkedScene()
    for _ in range(4):
        parallel_step(scene, collectives, launch_ns=US)
        scene.device.synchronize()
    scene.finish()
    scene.check()
    assert len(scene.records) == 4
    for record in scene.records[1:]:
        length_ns = record["end_ns"] - record["start_ns"]
        assert record["device_step_ns"] == length_ns
        assert record["flags"] == 0
        assert (record["tp_count"], record["dp_wait_ns"]) == (collectives, MS)
        is_measured = collectives * 2 < EVENTS_MAX
        assert record["tp_wait_ns"] == (collectives * 40 * US if is_measured else MISSING)
        assert record["tp_shortest_ns"] == 40 * US
        assert record["device_comm_ns"] == MISSING
    assert scene.device.made <= EVENTS_MAX + RESERVE


def test_collectives_are_measured_again_once_the_device_has_caught_up():
    """A step in which the host looks at the device comes after one in which it was too far ahead."""
    scene = MarkedScene()
    scene.step()
    parallel_step(scene, 8192, launch_ns=US)
    scene.device.synchronize()
    for _ in range(2):
        parallel_step(scene, 1024, launch_ns=US)
        scene.device.synchronize()
    scene.finish()
    scene.check()
    assert [record["tp_wait_ns"] for record in scene.records] == [MISSING, MISSING, 1024 * 40 * US, 1024 * 40 * US]
    assert scene.records[1]["compute_ns"] >= 8192 * 100 * US


def test_waits_that_no_event_is_left_for(monkeypatch):
    """A wait that was seen without its events is missing, for every kind that it may have been for."""
    monkeypatch.setattr(event_queue, "EVENTS_MAX", 10)
    scene = MarkedScene()
    for waits in (2, 12):
        scene.data(MS)
        scene.forward(MS, 20 * MS)
        for _ in range(waits):
            scene.collective(5 * MS, kind=TP)
            scene.wait()
        with scene.backward():
            scene.forward(MS, 40 * MS)
        scene.optimize(MS, 5 * MS)
        scene.device.synchronize()
    scene.finish()
    scene.check()
    assert [record["tp_wait_ns"] for record in scene.records] == [10 * MS, MISSING]
    assert all(record["device_step_ns"] != MISSING for record in scene.records)


def test_marks_of_a_step_without_an_end(monkeypatch):
    """A process that never ends a step holds so many marks and events, not more; what follows is measured."""
    monkeypatch.setattr(device_step, "POINTS_MAX", 1000)
    scene = MarkedScene(Device(queue_max=1024))
    scene.step()
    parallel_step(scene, 4096)
    for _ in range(2):
        scene.step()
    scene.finish()
    scene.check()
    assert [record["device_step_ns"] == MISSING for record in scene.records] == [False, True, False, False]
    assert scene.records[1]["tp_wait_ns"] == MISSING
    assert scene.device.made <= 2 * READ_FROM + 1024


def elsewhere(*calls):
    """Make the calls on another thread."""
    thread = Thread(target=lambda: [call() for call in calls])
    thread.start()
    thread.join()


def test_optimizers_and_collectives_of_autograds_thread():
    """On a device it works for the open backward: its step ends with that, and its collectives are the step's."""
    scene = MarkedScene(claim_thread=lambda _steps: 2)
    optimizer = object()
    for _ in range(4):
        scene.data(MS)
        scene.forward(MS, 20 * MS)
        with scene.backward():
            elsewhere(
                lambda: scene.forward(MS, 40 * MS),
                lambda: scene.collective(3 * MS, kind=TP, synchronous=True),
                lambda: scene.recorder.enter_optimizer(optimizer),
                lambda: scene.forward(MS, 5 * MS),
                scene.recorder.leave_optimizer,
            )
        scene.device.synchronize()
    scene.finish()
    scene.check()
    assert len(scene.records) == 4
    for record in scene.records[1:]:
        assert record["device_step_ns"] == record["end_ns"] - record["start_ns"] == 70 * MS
        assert (record["backward_ns"], record["tp_wait_ns"], record["tp_count"]) == (45 * MS, 3 * MS, 1)


@pytest.mark.parametrize("writer", WRITERS)
def test_optimizers_fused_into_the_backward(writer):
    """They have no events of their own, however many they are; the step ends with the backward's."""
    scene = MarkedScene(writer=writer)
    for _ in range(4):
        scene.data(MS)
        scene.forward(MS, 20 * MS)
        with scene.backward():
            for _ in range(300):
                scene.optimize(1, 1000)
        scene.device.synchronize()
    scene.finish()
    scene.check()
    assert [record["device_step_ns"] for record in scene.records[1:]] == [22 * MS + 300 * US] * 3
    assert scene.device.made < 20


def test_several_optimizers_in_a_step(scene):
    """Each end of theirs is an anchor, and the step is as long as they are together."""
    optimizers = [object() for _ in range(3)]
    for _ in range(15):
        scene.data(MS)
        scene.forward(MS, 20 * MS)
        with scene.backward():
            scene.forward(MS, 40 * MS)
        for optimizer in optimizers:
            scene.collective(2 * MS, synchronous=True)
            scene.recorder.enter_optimizer(optimizer)
            scene.forward(MS, 5 * MS)
            scene.recorder.leave_optimizer()
        scene.device.synchronize()
    scene.finish()
    record = scene.records[-1]
    assert record["device_step_ns"] == record["end_ns"] - record["start_ns"] == 83 * MS
    assert (record["optimizer_ns"], record["dp_wait_ns"], record["dp_count"]) == (15 * MS, 6 * MS, 3)


def test_events_are_used_again(scene):
    """A long run makes no more events than were in use at one time."""
    for _ in range(10):
        ddp_step(scene)
        scene.device.synchronize()
    made = scene.device.made
    for _ in range(200):
        ddp_step(scene)
        scene.device.synchronize()
    assert scene.device.made == made <= 30
    assert len(scene.records) >= 208


def test_graph_capture(scene):
    """While a graph is captured no event is recorded and none asked for; the steps it touches are given up."""
    scene.step()
    scene.device.synchronize()
    scene.data(MS)
    scene.device.capturing = True
    scene.forward(MS, 20 * MS)
    with scene.backward():
        scene.collective(MS, synchronous=True)
    scene.optimize(MS, 5 * MS)
    scene.device.capturing = False
    scene.device.synchronize()
    for _ in range(3):
        scene.step()
        scene.device.synchronize()
    scene.finish()
    lost = [record["step"] for record in scene.records if record["device_step_ns"] == MISSING]
    assert lost == [1, 2]  # the captured one, and the next, whose beginning has no event
    assert scene.records[1]["dp_wait_ns"] == MISSING
    assert scene.records[4]["compute_ns"] == 67 * MS


def test_replayed_graph(scene):
    """What a replay carries out is counted, and how long it waited is missing, not 0; other kinds are measured."""
    for replays in (0, 2, 0):
        scene.data(MS)
        scene.collective(MS, kind=TP, synchronous=True)
        for _ in range(replays):
            scene.forward(MS, 20 * MS)
            scene.recorder.note_unmeasured({TP: (8, 800, 1200)})
        with scene.backward():
            scene.forward(MS, 40 * MS)
            scene.collective(2 * MS)
            scene.device.wait(HOME, COMMUNICATION)
        scene.optimize(MS, 5 * MS)
        scene.device.synchronize()
    scene.finish()
    fields = ("tp_wait_ns", "tp_comm_ns", "tp_count", "tp_bytes", "tp_bus_bytes", "dp_wait_ns", "device_comm_ns")
    assert [scene.records[1][name] for name in fields] == [MISSING, MISSING, 17, 1700, 2550, 2 * MS, MISSING]
    assert [record["tp_wait_ns"] for record in scene.records] == [MS, MISSING, MS]
    assert [record["device_step_ns"] != MISSING for record in scene.records] == [True] * 3


def test_replay_of_a_graph_whose_capture_was_not_seen(scene):
    """Any kind that the training uses may be in it: no wait is known in that step, though nothing was dispatched."""
    for replays in (False, True):
        scene.data(MS)
        if replays:
            scene.recorder.note_unmeasured(None)
        else:
            scene.collective(MS, kind=TP, synchronous=True)
        with scene.backward():
            scene.forward(MS, 40 * MS)
        scene.optimize(MS, 5 * MS)
        scene.device.synchronize()
    scene.finish()
    assert [(record["tp_wait_ns"], record["tp_count"]) for record in scene.records] == [(MS, 1), (MISSING, 0)]
    assert scene.records[1]["dp_wait_ns"] == MISSING


@pytest.mark.parametrize("name", ["record", "ready", "elapsed_ns"])
def test_exception_of_a_signal_handler_while_the_device_is_asked(scene, monkeypatch, name):
    """What a handler of the training raises there is the training's, be it like a device's error; others are measured."""

    class HandlerError(RuntimeError):
        pass

    def handle(_number, _frame):
        raise HandlerError("out of time")

    original = getattr(scene.device, name)

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGUSR1)
        return original(*arguments)

    former = signal.signal(signal.SIGUSR1, handle)
    try:
        scene.step()
        scene.device.synchronize()
        scene.step()
        scene.device.synchronize()
        interrupt = scene.poll
        if name == "record":
            scene.recorder.enter_data()
            interrupt = scene.recorder.leave_data
        with monkeypatch.context() as patched:
            patched.setattr(scene.device, name, interrupted)
            with pytest.raises(HandlerError):
                interrupt()
    finally:
        signal.signal(signal.SIGUSR1, former)
    for _ in range(3):
        scene.step()
        scene.device.synchronize()
    scene.finish()
    assert len(scene.records) == 5
    assert scene.records[-1]["device_step_ns"] != MISSING


def test_fault_of_the_device_is_reported_once_and_left_to_the_training(scene, capsys):
    """A fault of CUDA's fails every later call: ours ends quietly, the training's own raises as without the agent."""
    scene.step()
    scene.device.lost = True
    for _ in range(3):
        scene.step()
    scene.finish()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "lockstep: no device times any more: RuntimeError: device lost"
    with pytest.raises(RuntimeError, match="device lost"):
        scene.device.record()
    assert len(scene.records) == 4


@pytest.mark.parametrize("name", ["record", "ready", "elapsed_ns"])
def test_error_that_no_later_call_returns_costs_one_step(scene, monkeypatch, capsys, name):
    """A call that failed by itself, while the device answers others, costs the step that it was made for."""
    original = getattr(scene.device, name)
    errors = []

    def fail_once(*arguments):
        if not errors:
            errors.append(RuntimeError("out of events"))
            raise errors[0]
        return original(*arguments)

    scene.step()
    scene.device.synchronize()
    scene.step()
    monkeypatch.setattr(scene.device, name, fail_once)
    for _ in range(4):
        scene.step()
        scene.device.synchronize()
    scene.finish()
    assert errors
    assert len(scene.records) == 6
    assert 1 <= [record["device_step_ns"] for record in scene.records].count(MISSING) <= 2
    assert scene.records[-1]["device_step_ns"] != MISSING
    assert capsys.readouterr().err == ""


def test_calls_that_keep_failing_end(scene, monkeypatch, capsys):
    """A device that records events and never shows when they were is asked a few times, and then no more."""
    asked = []

    def fail(*_arguments):
        asked.append(1)
        raise RuntimeError("not timed")

    monkeypatch.setattr(scene.device, "elapsed_ns", fail)
    for _ in range(2 * ERRORS_MAX):
        scene.step()
        scene.device.synchronize()
    scene.finish()
    assert len(scene.records) == 2 * ERRORS_MAX
    assert len(asked) == ERRORS_MAX
    assert capsys.readouterr().err == "lockstep: no device times any more: RuntimeError: not timed\n"


def test_lost_device(scene):
    """A device that fails raises nothing here: what was on its way is written as far as the host knows it."""
    scene.step()
    scene.device.synchronize()
    ddp_step(scene)
    scene.device.lost = True
    ddp_step(scene)
    ddp_step(scene)
    scene.finish()
    assert [record["device_step_ns"] == MISSING for record in scene.records] == [False, True, True, True]
    assert scene.records[3]["dp_wait_ns"] == MISSING


def test_end_of_the_process(scene):
    """Steps that the device is not done with at the end are written, and nothing is waited for."""
    scene.step()
    scene.step()
    now = scene.device.now
    scene.recorder.finish()
    assert scene.device.now == now
    assert len(scene.records) == 2
    assert scene.records[1]["device_step_ns"] == MISSING
    scene.step()
    assert len(scene.records) == 2


def test_work_on_another_stream_is_not_the_trainings_own(scene):
    """Marks on a side stream are left out; its length is not taken for the step's."""
    scene.step()
    scene.device.synchronize()
    scene.data(MS)
    with scene.device.on(ASIDE):
        scene.device.work(400 * MS)
        with scene.backward():
            scene.forward(MS, MS)
    scene.optimize(MS, 5 * MS)
    scene.device.synchronize()
    scene.finish()
    assert scene.records[1]["device_step_ns"] < 20 * MS


@pytest.mark.parametrize("rate", [0.9999, 1.0, 1.0001])
def test_clocks_that_drift_stay_together(rate):
    """Drift of 100 ppm, with the coarse times that drivers answer, never moves a step from when the host lived it."""
    scene = MarkedScene(Device(rate=rate, grain=512))
    ends = []
    for _ in range(3000):
        scene.step()
        scene.device.synchronize()
        ends.append(scene.device.now)
    scene.finish()
    scene.check()
    assert len(scene.records) == 3000
    for record, end_ns in zip(scene.records, ends, strict=True):
        assert abs(record["end_ns"] - end_ns) <= 80 * MS  # a step: what is seen done is seen at the next boundary


def test_anchor_behind_a_queue():
    """A device that is busy when it is first seen is anchored no earlier than any work was queued."""
    device = Device()
    device.work(300 * MS)
    scene = MarkedScene(device)
    scene.step()
    device.synchronize()
    scene.step()
    scene.finish()
    scene.check()
    assert scene.records[0]["end_ns"] == scene.records[0]["start_ns"] + (1 + 65) * MS  # the batch came after 1 ms
    assert scene.records[0]["flags"] & Flag.WARM_UP


ACTIONS = st.one_of(
    st.tuples(st.just("host"), st.integers(0, 50)),
    st.tuples(st.just("work"), st.integers(0, 50)),
    st.tuples(st.just("synchronize"), st.just(0)),
    st.tuples(st.just("wait"), st.just(0)),
    st.tuples(st.just("full"), st.integers(0, 20)),
    st.tuples(st.just("young"), st.integers(0, 20)),
    st.tuples(st.just("in_order"), st.integers(0, 30)),
    st.tuples(st.just("async"), st.integers(0, 30)),
    st.tuples(st.just("aside"), st.integers(0, 30)),
    st.tuples(st.just("wait_aside"), st.just(0)),
)
STEPS = st.lists(st.tuples(*(st.lists(ACTIONS, max_size=4) for _ in range(3))), min_size=1, max_size=14)


def play(scene, actions):
    """Run actions; return how long collectives in order took on the device."""
    total_ns = 0
    for name, amount in actions:
        if name in ("host", "work"):
            getattr(scene.device, name)(amount)
        elif name == "synchronize":
            scene.device.synchronize()
        elif name in ("wait", "wait_aside"):
            getattr(scene, name)()
        elif name in ("full", "young"):
            scene.collect_garbage(amount, full=name == "full")
        elif name == "aside":
            with scene.device.on(ASIDE):
                scene.collective(amount, synchronous=True)
        elif name == "in_order":
            scene.collective(amount, kind=TP, synchronous=True)
            total_ns += amount
        else:
            scene.collective(amount)
    return total_ns


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.sampled_from([1.0, 1.0003, 0.9997]), st.sampled_from([1, 7]))
def test_any_run_adds_up(steps, rate, grain):
    """Whatever is queued in whatever order: one record a step, exact sums, no gap, nothing negative, no event lost."""
    scene = MarkedScene(Device(rate=rate, grain=grain, record_ns=1))
    in_order = []
    for before, forward, backward in steps:
        scene.recorder.enter_data()
        total = play(scene, before)
        scene.recorder.leave_data()
        total += play(scene, forward)
        with scene.backward():
            total += play(scene, backward)
        scene.optimize(1, 1)
        waits = any(name.startswith("wait") for name, _ in (*before, *forward, *backward))
        in_order.append((total, waits))
    scene.finish()
    scene.check()
    assert len(scene.records) == len(steps)
    for record, (total, waits) in zip(scene.records, in_order, strict=True):
        for kind in ("tp", "dp"):
            wait, flight = record[f"{kind}_wait_ns"], record[f"{kind}_comm_ns"]
            assert wait == MISSING or wait >= 0
            assert flight == MISSING or flight >= wait
        if (rate, grain) == (1.0, 1) and record["device_step_ns"] != MISSING and record["step"] > 0:
            assert record["device_step_ns"] == record["end_ns"] - record["start_ns"]
            assert MISSING in (record["tp_wait_ns"], record["dp_wait_ns"]) or wait_ns(record) >= total
            if record["tp_count"] > 0 and record["dp_count"] in (0, MISSING) and not waits:
                assert total <= record["tp_wait_ns"] <= total + record["tp_count"]  # a launch takes 1 ns
    assert len(scene.device.pool) >= scene.device.made - 1
