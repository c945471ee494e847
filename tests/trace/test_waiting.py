import pytest

from lockstep.trace.calls import build_calls
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.waiting import WAIT_NAME
from tests.trace.traces import RECORDING, document, event, without_children_ns, write

_US = 1000
BACKWARD = "<built-in method run_backward of torch._C._EngineBase object at 0x7f>"


def _tree(tmp_path, *events):
    own = [event("main", 0, 2000 * _US), event("Optimizer.step#SGD.step", 1900 * _US, 50 * _US, cat="user_annotation")]
    return build_calls(load_trace(write(tmp_path, document([*own, *events]))))


def _reduce(start_us, duration_us):
    return event("gloo:all_reduce", start_us * _US, duration_us * _US, tid=9, cat="user_annotation")


def test_standing_in_backward_while_a_collective_runs_is_waiting(tmp_path):
    """Only time in backward, in none of its operators, and under a collective counts; it moves out of its self time."""
    tree = _tree(
        tmp_path,
        event(BACKWARD, 100 * _US, 1000 * _US),
        event("aten::mm", 100 * _US, 300 * _US, cat="cpu_op"),
        _reduce(300, 400),  # 100 of it under the operator
        _reduce(1000, 500),  # 400 of it after backward
    )
    nodes = dict(zip(tree.name, zip(tree.kind, tree.total_ns, without_children_ns(tree), strict=True), strict=True))
    assert nodes[WAIT_NAME] == ("communication", 400 * _US, 400 * _US)
    assert nodes[BACKWARD.replace(" at 0x7f", "")] == ("python", 1000 * _US, 300 * _US)


@pytest.mark.parametrize(("gap_us", "waits"), [(100, True), (99, False)])
def test_short_gaps_are_the_engines(tmp_path, gap_us, waits):
    """A gap of 0.1 ms is a wait, a shorter one is the engine's own."""
    first = event("a", 100 * _US, 200 * _US, cat="cpu_op")
    second = event("b", (300 + gap_us) * _US, 200 * _US, cat="cpu_op")
    tree = _tree(tmp_path, event(BACKWARD, 100 * _US, (400 + gap_us) * _US), first, second, _reduce(0, 2000))
    assert (WAIT_NAME in tree.name) is waits


def test_a_wait_inside_of_backward_is_waiting(tmp_path):
    """A hook of FSDP waits in a call of its own: neither backward nor the hook works meanwhile."""
    hook = event("torch/distributed/fsdp/_fully_shard/_fsdp_state.py(380): _pre_backward", 200 * _US, 700 * _US)
    tree = _tree(
        tmp_path, event(BACKWARD, 100 * _US, 1000 * _US), hook, event(WAIT, 300 * _US, 500 * _US), _reduce(250, 600)
    )
    at = tree.name.index(WAIT_NAME)
    assert (tree.name[tree.parent[at]], tree.total_ns[at]) == (WAIT.replace(" at 0x7f", ""), 500 * _US)


def test_work_during_a_collective_is_no_waiting(tmp_path):
    """Communication hidden behind forward is not waited for, nor is a frame of the user's called wait."""
    tree = _tree(tmp_path, event("model.py(3): wait", 0, 1000 * _US), _reduce(0, 1000))
    assert WAIT_NAME not in tree.name


def test_without_stacks_time_in_no_operator_is_waiting(tmp_path):
    """No frame states where backward is: the thread waits where it is in no operator while a collective is under way."""
    events = [
        event("data", 0, 500 * _US, cat="user_annotation"),
        event("aten::mm", 500 * _US, 300 * _US, cat="cpu_op"),
        event("Optimizer.step#SGD.step", 1900 * _US, 50 * _US, cat="user_annotation"),
        _reduce(700, 400),  # 100 of it under the operator
    ]
    tree = build_calls(load_trace(write(tmp_path, document(events))))
    nodes = dict(zip(tree.name, zip(tree.kind, tree.total_ns, strict=True), strict=True))
    assert nodes[WAIT_NAME] == ("communication", 300 * _US)


WAIT = "<built-in method wait of pybind11_builtins.Work object at 0x7f>"


def _receive(start_us, duration_us):
    """Return a receive: it is annotated on the thread that posts it, and ends inside another call."""
    return event("gloo:recv", start_us * _US, duration_us * _US, cat="user_annotation")


def test_standing_for_a_receive_is_waiting_and_the_receive_no_call(tmp_path):
    """It was posted 200 us before the wait, and work went on meanwhile."""
    post = event("irecv", 100 * _US, 100 * _US)
    work = event("forward", 250 * _US, 100 * _US)
    tree = _tree(tmp_path, post, work, _receive(150, 750), event(WAIT, 400 * _US, 600 * _US))
    nodes = dict(zip(tree.name, tree.total_ns, strict=True))
    assert "gloo:recv" not in nodes
    assert nodes[WAIT_NAME] == 500 * _US
    assert (nodes["irecv"], nodes["forward"]) == (100 * _US, 100 * _US)


def test_without_stacks_a_receive_is_waited_for_outside_of_operators(tmp_path):
    """What the thread computes while a receive is under way is its own."""
    events = [
        event("aten::mm", 500 * _US, 300 * _US, cat="cpu_op"),
        event("Optimizer.step#SGD.step", 1900 * _US, 50 * _US, cat="user_annotation"),
        _receive(600, 700),
    ]
    tree = build_calls(load_trace(write(tmp_path, document(events))))
    assert dict(zip(tree.name, tree.total_ns, strict=True))[WAIT_NAME] == 500 * _US


def test_recording_waits_in_backward():
    """Of 78.3 ms in backward the recorded rank works 24 and waits 54."""
    tree = build_calls(load_trace(RECORDING))
    at = tree.name.index(WAIT_NAME)
    assert tree.name[tree.parent[at]].startswith("<built-in method run_backward")
    assert 54e6 < tree.total_ns[at] < 55e6
    assert without_children_ns(tree)[tree.parent[at]] < 1e6
