import numpy as np
import pytest

from lockstep.diagnosis.host_causes.nesting import CallPlace, own_ns_by_name, places
from tests.diagnosis.host_causes.scenes import call, frame, span, view

TRAIN = "train.py(12): step"
TORCH = "torch/_tensor.py(30): wrapped"


def _place(events, **more):
    seen = view(events, 1000, **more)
    return places(seen, np.flatnonzero(seen.calls))


def test_own_time_is_without_the_time_of_callees():
    """Each moment belongs to the innermost event; names come with most time first."""
    seen = view([frame("a", 0, 100), frame("b", 10, 60), frame("a", 20, 5)], 1000)
    assert own_ns_by_name(seen, seen.host) == {"b": 55_000, "a": 45_000}


def test_own_time_of_events_that_cross_is_what_their_caller_covers():
    """Clocks that round let a callee end after its caller; no time is counted twice."""
    seen = view([frame("a", 0, 100), frame("b", 90, 20)], 1000)
    assert own_ns_by_name(seen, seen.host) == {"a": 90_000, "b": 10_000}


def test_a_place_is_the_operator_and_the_users_frames_around_a_call():
    """Frames of torch are left out where the user's own are there; the outermost operator names what was called."""
    events = [
        frame(TRAIN, 0, 100),
        frame(TORCH, 5, 90),
        span("aten::item", 10, 50),
        span("aten::_local_scalar_dense", 12, 40),
        call("cudaStreamSynchronize", 20, 10),
    ]
    assert _place(events) == [CallPlace("aten::item", TRAIN)]
    assert str(_place(events)[0]) == f"aten::item in {TRAIN}"


def test_frames_of_torch_are_shown_where_there_are_no_others():
    """Something is better than nothing."""
    assert _place([frame(TORCH, 0, 100), call("cudaStreamSynchronize", 20, 10)]) == [CallPlace("", TORCH)]


def test_frames_that_have_ended_are_no_callers():
    """A call after a frame's end, or on another thread, is not made from it."""
    events = [frame(TRAIN, 0, 20), frame(TRAIN, 0, 100, thread=2), call("cudaStreamSynchronize", 20, 10)]
    assert _place(events) == [CallPlace()]


def test_callers_in_another_process_of_the_same_thread_count():
    """Ascend's profiler has Python's and CANN's rows of one thread of the system in processes of their own."""
    events = [
        frame(TRAIN, 0, 100, thread=(100, 437)),
        span("aten::item", 10, 50, thread=(100, 437)),
        call("AscendCL@aclrtSynchronizeStream", 20, 10, thread=(200, 437)),
        call("AscendCL@aclrtSynchronizeStream", 20, 10, thread=(200, 438)),
    ]
    assert _place(events) == [CallPlace("aten::item", TRAIN), CallPlace()]


@pytest.mark.parametrize(
    "stack", ["lib/x.py(1): g;\r\n/home/u/train.py(12): step", "lib/x.py(1): g\ntrain.py(12): step"]
)
def test_a_recorded_stack_goes_before_frames(stack):
    """Ascend writes the stack as an argument of the operator around the call, parted by semicolons."""
    events = [
        frame("other.py(1): f", 0, 100),
        span("aten::item", 10, 50, stack=stack),
        call("aclrtSynchronizeStream", 20, 10),
    ]
    (place,) = _place(events)
    assert place.code.startswith("lib/x.py(1): g < ")
    assert place.code.endswith("train.py(12): step")


def test_each_call_keeps_its_own_place():
    """Places come in the order of the calls asked for, not of their times."""
    events = [
        call("cudaStreamSynchronize", 60, 5),
        call("cudaStreamSynchronize", 20, 5),
        frame("a.py(1): f", 0, 40),
        frame("b.py(1): g", 50, 40),
    ]
    assert [place.code for place in _place(events)] == ["b.py(1): g", "a.py(1): f"]
