"""Each case is a small trace of which anyone can see what it waited for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.trace.columns import ANNOTATION, COPY, KERNEL, OPERATOR, PYTHON, RUNTIME, SYNC, SyncArguments, WorkKind
from lockstep.trace.critical_path.path import DependencyKind, PathClass, ranked
from lockstep.trace.critical_path.walk import PathFinder
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.prepared import prepare
from tests.trace.hta.comparison import CARRIED
from tests.trace.made import columns_of, made
from tests.trace.traces import RECORDING

US = 1000
RUN_BACKWARD = "<built-in method run_backward of torch._C._EngineBase object>"


def _launch(correlation, start_us, duration_us=5, thread=1):
    return made("cudaLaunchKernel", RUNTIME, thread, start_us * US, duration_us * US, correlation=correlation)


def _kernel(name, start_us, duration_us, correlation=-1, *, stream=7, work=WorkKind.COMPUTE):
    category = COPY if work is WorkKind.MEMORY else KERNEL
    return made(name, category, 9, start_us * US, duration_us * US, work, stream, correlation=correlation)


def _host(name, start_us, duration_us, category=OPERATOR, thread=1, **more):
    return made(name, category, thread, start_us * US, duration_us * US, **more)


def _path(events, start_us, end_us):
    path = PathFinder(prepare(columns_of(events))).find(start_us * US, end_us * US)
    _covers(path)
    return [
        (each.start_ns // US, each.end_ns // US, each.path_class.value, each.name, each.why) for each in path.segments
    ]


def _covers(path):
    """Each segment begins where the one before it ends, from the beginning of the window to its end."""
    edges = [path.window_ns[0], *(segment.end_ns for segment in path.segments)]
    assert [segment.start_ns for segment in path.segments] == edges[:-1]
    assert edges[-1] == path.window_ns[1]
    assert all(segment.start_ns < segment.end_ns for segment in path.segments)
    assert sum(path.by_class().values()) == path.window_ns[1] - path.window_ns[0]


def test_a_busy_stream_is_the_path_back_to_the_launch_that_was_late():
    """Kernels that queue up wait for each other; the first of them waited for its launch, and that for the host."""
    events = [
        _host("aten::mm", 0, 30),
        _launch(1, 20),
        _launch(2, 32),
        _kernel("a", 28, 20, 1),
        _kernel("b", 50, 30, 2),
    ]
    assert _path(events, 0, 80) == [
        (0, 20, "host", "aten::mm", DependencyKind.THREAD),
        (20, 25, "host", "aten::mm", DependencyKind.LAUNCH),
        (25, 28, "gap", "a", DependencyKind.LAUNCH),
        (28, 48, "compute", "a", DependencyKind.STREAM),
        (48, 50, "gap", "b", DependencyKind.STREAM),
        (50, 80, "compute", "b", DependencyKind.END),
    ]


def test_a_stream_that_runs_dry_leads_to_the_host():
    """A kernel launched after the one before it had ended waited for its launch."""
    events = [
        _launch(1, 0),
        _kernel("a", 4, 10, 1),
        _host("slow", 5, 55, PYTHON),
        _launch(2, 60),
        _kernel("b", 63, 9, 2),
    ]
    assert _path(events, 0, 72) == [
        (0, 5, "host", "cudaLaunchKernel", DependencyKind.THREAD),
        (5, 60, "host", "slow", DependencyKind.THREAD),
        (60, 63, "host", "cudaLaunchKernel", DependencyKind.LAUNCH),
        (63, 72, "compute", "b", DependencyKind.END),
    ]


_TWO_STREAMS = [
    _launch(1, 0),
    _launch(2, 10),
    _kernel("a", 5, 5, 1),
    _kernel("nccl", 12, 88, 2, stream=20, work=WorkKind.COMMUNICATION),
    _launch(5, 20),
    _kernel("b", 105, 10, 5),
]


def test_work_that_begins_when_another_stream_ends_waited_for_it_as_far_as_one_can_guess():
    """Launched long ago, its stream idle: what ended 5 us before it began is the reason, and is marked as a guess."""
    path = _path(_TWO_STREAMS, 12, 115)
    assert path == [
        (12, 100, "communication", "nccl", DependencyKind.ALIGNMENT),
        (100, 105, "gap", "b", DependencyKind.ALIGNMENT),
        (105, 115, "compute", "b", DependencyKind.END),
    ]
    assert path[0][-1].is_guess


def _stream_wait(on_correlation, correlation, start_us):
    arguments = SyncArguments(kind="Stream Wait Event", waits_on_stream=20, waits_on_correlation=on_correlation)
    return made("Stream Wait Event", SYNC, 9, start_us * US, 1, None, 7, correlation=correlation, sync=arguments)


def test_recorded_waits_go_before_guesses():
    """Where the trace states what waited for what, it is no guess, however long before it ended."""
    later = _kernel("c", 500, 10, 7)
    events = [*_TWO_STREAMS[:5], _stream_wait(3, 4, 18), _kernel("b", 300, 10, 5), _launch(7, 25), later]
    assert _path(events, 12, 510) == [
        (12, 100, "communication", "nccl", DependencyKind.RECORDED_WAIT),
        (100, 300, "gap", "b", DependencyKind.RECORDED_WAIT),
        (300, 310, "compute", "b", DependencyKind.STREAM),
        (310, 500, "gap", "c", DependencyKind.STREAM),
        (500, 510, "compute", "c", DependencyKind.END),
    ]


def test_of_what_ends_together_a_recorded_wait_goes_first_then_the_stream():
    """An op begins when its stream, the stream it waited for and its launch are all done: the record shows most."""
    other = made("nccl", KERNEL, 9, 20 * US, 80 * US, WorkKind.COMMUNICATION, 20, correlation=3)
    events = [
        _launch(1, 0),
        _launch(3, 6),
        _kernel("a", 40, 60, 1),
        other,
        _launch(5, 95),
        _kernel("b", 100, 10, 5),
    ]
    assert _path(events, 50, 110)[-2:] == [
        (50, 100, "compute", "a", DependencyKind.STREAM),
        (100, 110, "compute", "b", DependencyKind.END),
    ]
    record = made("cudaEventRecord", RUNTIME, 1, 12 * US, 1 * US, correlation=4)
    waited = [*events, record, _stream_wait(4, 4, 18)]
    assert _path(waited, 50, 110)[-2:] == [
        (50, 100, "communication", "nccl", DependencyKind.RECORDED_WAIT),
        (100, 110, "compute", "b", DependencyKind.END),
    ]


def test_nothing_is_guessed_where_waits_are_recorded():
    """A trace that records waits and has none here knows that there was none: the gap stays a gap."""
    recorded = _stream_wait(3, 9, 30)
    assert _path([*_TWO_STREAMS, recorded], 12, 115) == [
        (12, 15, "host", "cudaLaunchKernel", DependencyKind.THREAD),
        (15, 20, "communication", "nccl", DependencyKind.RAN_LAST),
        (20, 25, "host", "cudaLaunchKernel", DependencyKind.LAUNCH),
        (25, 105, "gap", "b", DependencyKind.LAUNCH),
        (105, 115, "compute", "b", DependencyKind.END),
    ]


def test_a_synchronising_call_waited_for_what_ended_last_in_it():
    """Its own time is what it took to return."""
    events = [
        _launch(1, 0),
        _kernel("a", 3, 60, 1),
        _host("cudaStreamSynchronize", 10, 60, RUNTIME),
        _host("f", 70, 10, PYTHON),
    ]
    assert _path(events, 0, 80) == [
        (0, 3, "host", "cudaLaunchKernel", DependencyKind.LAUNCH),
        (3, 63, "compute", "a", DependencyKind.RAN_LAST),
        (63, 70, "host", "cudaStreamSynchronize", DependencyKind.THREAD),
        (70, 80, "host", "f", DependencyKind.END),
    ]


def test_a_recorded_synchronisation_names_its_stream():
    """What ended later on another stream was not waited for."""
    events = [
        _launch(1, 0),
        _kernel("a", 3, 30, 1),
        _kernel("other", 3, 60, stream=20),
        _host("cudaStreamSynchronize", 10, 60, RUNTIME, correlation=8),
        made("Stream Sync", SYNC, 9, 11 * US, 58 * US, None, 7, correlation=8, sync=SyncArguments(kind="Stream Sync")),
    ]
    assert _path(events, 0, 70)[1:] == [
        (3, 33, "compute", "a", DependencyKind.RECORDED_WAIT),
        (33, 70, "host", "cudaStreamSynchronize", DependencyKind.END),
    ]


def test_a_synchronising_call_in_which_nothing_ended_is_work_of_the_host():
    """It found the device idle."""
    events = [_kernel("a", 0, 5), _host("cudaDeviceSynchronize", 10, 5, RUNTIME)]
    assert _path(events, 10, 15) == [(10, 15, "host", "cudaDeviceSynchronize", DependencyKind.END)]


def test_a_copy_that_its_call_waits_for_waited_for_its_stream():
    """item() on the device's result: the call returns after its copy, and that came after the kernel."""
    events = [
        _launch(1, 0),
        _kernel("a", 3, 60, 1),
        _host("cudaMemcpyAsync", 10, 60, RUNTIME, correlation=2),
        _kernel("Memcpy DtoH", 64, 2, 2, work=WorkKind.MEMORY),
    ]
    assert _path(events, 3, 70) == [
        (3, 63, "compute", "a", DependencyKind.STREAM),
        (63, 64, "gap", "Memcpy DtoH", DependencyKind.STREAM),
        (64, 66, "memory", "Memcpy DtoH", DependencyKind.RECORDED_WAIT),
        (66, 70, "host", "cudaMemcpyAsync", DependencyKind.END),
    ]


def test_training_that_stands_in_backward_waited_for_the_engine():
    """The engine's thread ran; before it began, the training thread did."""
    events = [
        _host("Optimizer.step#SGD.step", 900, 1, ANNOTATION),
        _host("forward", 0, 100, PYTHON),
        _host(RUN_BACKWARD, 100, 500, PYTHON),
        _host("autograd::engine::evaluate_function: MmBackward0", 120, 460, thread=2),
        _host("step", 600, 100, PYTHON),
    ]
    assert _path(events, 0, 700) == [
        (0, 100, "host", "forward", DependencyKind.RAN_LAST),
        (100, 120, "idle", "idle", DependencyKind.THREAD),
        (120, 580, "host", "autograd::engine::evaluate_function: MmBackward0", DependencyKind.RAN_LAST),
        (580, 600, "host", RUN_BACKWARD, DependencyKind.THREAD),
        (600, 700, "host", "step", DependencyKind.END),
    ]


@pytest.mark.parametrize("with_stacks", [True, False])
def test_a_host_collective_that_training_waits_for_is_on_the_path(with_stacks):
    """Both that it waited for, the second of which was queued behind the first; then what training did when it began."""
    frames = [_host(RUN_BACKWARD, 50, 950, PYTHON)] if with_stacks else []
    events = [
        *frames,
        _host("aten::mm", 0, 50),
        _host("aten::mm", 50, 150),
        _host("gloo:all_reduce", 150, 400, ANNOTATION, 5, work=WorkKind.COMMUNICATION),
        _host("gloo:all_reduce", 570, 400, ANNOTATION, 5, work=WorkKind.COMMUNICATION),
        _host("aten::add_", 1000, 20),
    ]
    standing = ("host", RUN_BACKWARD) if with_stacks else ("idle", "idle")
    assert _path(events, 0, 1020) == [
        (0, 50, "compute", "aten::mm", DependencyKind.THREAD),
        (50, 150, "compute", "aten::mm", DependencyKind.RAN_LAST),
        (150, 550, "communication", "gloo:all_reduce", DependencyKind.STREAM),
        (550, 570, "gap", "gloo:all_reduce", DependencyKind.STREAM),
        (570, 970, "communication", "gloo:all_reduce", DependencyKind.RAN_LAST),
        (970, 1000, *standing, DependencyKind.THREAD),
        (1000, 1020, "compute", "aten::add_", DependencyKind.END),
    ]


def test_a_host_collective_behind_work_is_not_on_the_path():
    """No one waited for it."""
    events = [
        _host("aten::mm", 0, 1000),
        _host("gloo:all_reduce", 100, 800, ANNOTATION, 5, work=WorkKind.COMMUNICATION),
    ]
    assert _path(events, 0, 1000) == [(0, 1000, "compute", "aten::mm", DependencyKind.END)]


def test_a_trace_of_the_device_alone_is_walked_on_the_device():
    """Nothing states what the first work waited for."""
    events = [_kernel("a", 10, 10), _kernel("b", 25, 10)]
    assert _path(events, 0, 40) == [
        (0, 10, "gap", "a", DependencyKind.STREAM),
        (10, 20, "compute", "a", DependencyKind.STREAM),
        (20, 25, "gap", "b", DependencyKind.STREAM),
        (25, 35, "compute", "b", DependencyKind.RAN_LAST),
        (35, 40, "idle", "idle", DependencyKind.THREAD),
    ]


def test_launches_of_no_length_are_no_host_to_walk_on():
    """Clocks in whole us write them; where they are all there is of the host, the device is walked alone."""
    assert _path([_launch(1, 0, 0), _kernel("a", 10, 10, 1)], 5, 20) == [
        (5, 10, "gap", "a", DependencyKind.STREAM),
        (10, 20, "compute", "a", DependencyKind.END),
    ]


def test_a_window_cuts_what_runs_at_its_ends():
    """Its ends need not be anybody's."""
    assert _path([_host("f", 0, 100, PYTHON)], 20, 60) == [(20, 60, "host", "f", DependencyKind.END)]
    assert _path([_kernel("a", 0, 100)], 20, 60) == [(20, 60, "compute", "a", DependencyKind.END)]
    assert _path([_host("f", 0, 100, PYTHON)], 60, 60) == []


def test_a_host_that_shows_nothing_is_not_idle_while_the_device_works():
    """Without stacks nothing shows what the thread does; the device does, on two streams at once, each moment once."""
    events = [
        _host("aten::mm", 0, 10),
        _launch(1, 5),
        _kernel("a", 20, 50, 1),
        _kernel("nccl", 40, 60, stream=20, work=WorkKind.COMMUNICATION),
        _host("aten::add", 120, 30),
    ]
    assert _path(events, 0, 150) == [
        (0, 5, "host", "aten::mm", DependencyKind.THREAD),
        (5, 10, "host", "aten::mm", DependencyKind.THREAD),
        (10, 20, "idle", "idle", DependencyKind.THREAD),
        (20, 70, "compute", "a", DependencyKind.RAN_LAST),
        (70, 100, "communication", "nccl", DependencyKind.RAN_LAST),
        (100, 120, "idle", "idle", DependencyKind.THREAD),
        (120, 150, "host", "aten::add", DependencyKind.END),
    ]


def test_work_that_is_launched_and_waits_for_other_streams_is_no_gap():
    """No record shows for what it waits: meanwhile the device is busy."""
    events = [_launch(1, 0), _launch(2, 6), _kernel("a", 5, 95, 1), _kernel("b", 200, 20, 2, stream=8)]
    assert _path(events, 0, 220) == [
        (0, 5, "host", "cudaLaunchKernel", DependencyKind.THREAD),
        (5, 6, "compute", "a", DependencyKind.RAN_LAST),
        (6, 11, "host", "cudaLaunchKernel", DependencyKind.LAUNCH),
        (11, 100, "compute", "a", DependencyKind.RAN_LAST),
        (100, 200, "gap", "b", DependencyKind.LAUNCH),
        (200, 220, "compute", "b", DependencyKind.END),
    ]


def test_an_empty_trace_is_idle():
    """Also where the window has nothing in it."""
    assert _path([], 0, 10) == [(0, 10, "idle", "idle", DependencyKind.THREAD)]
    assert _path([_host("f", 50, 10, PYTHON)], 0, 10) == [(0, 10, "idle", "idle", DependencyKind.THREAD)]


def test_calls_count_as_the_operator_that_makes_them_and_the_loaders_work_as_the_loader():
    """What is ranked is what somebody can change."""
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events = [
        _host(loader, 0, 60, ANNOTATION),
        _host("aten::stack", 10, 30),
        _host("aten::mm", 60, 40),
        _launch(1, 70, 20),
        _kernel("a", 100, 5, 1),
    ]
    path = PathFinder(prepare(columns_of(events))).find(0, 100 * US)
    assert [(share.name, share.ns // US) for share in ranked(path)] == [(loader, 60), ("aten::mm", 40)]


_EVENTS = st.lists(
    st.tuples(st.sampled_from("ABKLNSGW"), st.integers(0, 900), st.integers(0, 400), st.integers(1, 9)), max_size=30
)


def _made(kind, start_us, duration_us, number):
    return {
        "A": lambda: _host(f"f{number}", start_us, duration_us, PYTHON),
        "B": lambda: _host("autograd::engine::evaluate_function: B", start_us, duration_us, thread=2),
        "K": lambda: _kernel("k", start_us, duration_us, number, stream=number % 3),
        "L": lambda: _launch(number, start_us, duration_us, number % 4),
        "N": lambda: _kernel("Memcpy DtoH", start_us, duration_us, number, stream=number % 3, work=WorkKind.MEMORY),
        "S": lambda: _host("cudaDeviceSynchronize", start_us, duration_us, RUNTIME, correlation=number),
        "G": lambda: _host("gloo:x", start_us, duration_us, ANNOTATION, 5 + number % 2, work=WorkKind.COMMUNICATION),
        "W": lambda: _stream_wait(number - 1, number, start_us),
    }[kind]()


@settings(max_examples=150)
@given(_EVENTS, st.integers(-50, 900), st.integers(0, 600))
def test_any_trace_is_covered(rows, start_us, length_us):
    """Whatever the trace holds, impossible things included: the walk ends, and every moment is in exactly one segment."""
    columns = columns_of([_made(*row) for row in rows])
    _covers(PathFinder(prepare(columns)).find(start_us * US, (start_us + length_us) * US))


def test_recording_sleeps_and_waits_on_its_path():
    """The rank that sleeps 30 ms in each forward has that first on both steps' paths, and collectives behind it."""
    trace = prepare(load_trace(RECORDING))
    steps, finder = trace.steps, PathFinder(trace)
    for step in range(2):
        path = finder.find(int(steps.start_ns[step]), int(steps.end_ns[step]))
        _covers(path)
        first, second = ranked(path)[:2]
        assert (first.name, first.path_class) == ("<built-in function sleep>", PathClass.HOST)
        assert 30e6 < first.ns < 31e6
        assert (second.name, second.path_class) == ("gloo:all_reduce", PathClass.COMMUNICATION)


def test_carried_recording_uses_the_waits_that_it_records():
    """A convolution on two streams: the operator after it on the first one waited for the second, and nothing is aligned."""
    columns = load_trace(CARRIED)
    path = PathFinder(prepare(columns)).find(int(columns.start_ns.min()), int(columns.end_ns.max()))
    _covers(path)
    waited = [
        each.name
        for each in path.segments
        if each.why is DependencyKind.RECORDED_WAIT and each.path_class != PathClass.HOST
    ]
    assert any(name.startswith("void fft2d_c2r_32x32") for name in waited)
    assert not any(each.why is DependencyKind.ALIGNMENT for each in path.segments)
