from hypothesis import given
from hypothesis import strategies as st

from lockstep.trace.columns import ABSENT, ANNOTATION, COPY, KERNEL, OPERATOR, PYTHON, RUNTIME
from lockstep.trace.host_timeline import Activity, host_threads, when
from lockstep.trace.launches import launches_of
from tests.trace.made import columns_of, made

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def _threads(events):
    columns = columns_of(events)
    return columns, host_threads(columns, 0 if len(columns) else ABSENT, launches_of(columns))


def _pieces(columns, thread):
    rows = zip(
        thread.start_ns.tolist(),
        thread.end_ns.tolist(),
        (columns.names[columns.name[event]] for event in thread.event.tolist()),
        strict=True,
    )
    return list(rows)


def test_the_innermost_event_has_the_time():
    """A caller has what its callees leave; time in no event is in no piece."""
    columns, (thread,) = _threads(
        [
            made("f", PYTHON, 1, 0, 100),
            made("aten::linear", OPERATOR, 1, 20, 50),
            made("aten::mm", OPERATOR, 1, 30, 20),
            made("g", PYTHON, 1, 150, 10),
        ]
    )
    assert _pieces(columns, thread) == [
        (0, 20, "f"),
        (20, 30, "aten::linear"),
        (30, 50, "aten::mm"),
        (50, 70, "aten::linear"),
        (70, 100, "f"),
        (150, 160, "g"),
    ]


def test_what_ends_after_its_caller_is_cut_and_what_lasts_no_time_is_left_out():
    """Clocks that round make both."""
    columns, (thread,) = _threads(
        [
            made("f", PYTHON, 1, 0, 100),
            made("late", PYTHON, 1, 90, 20),
            made("point", PYTHON, 1, 95, 0),
        ]
    )
    assert _pieces(columns, thread) == [(0, 90, "f"), (90, 100, "late")]


def test_of_equal_spans_the_frame_calls_the_operator_calls_the_runtime():
    """The file's order shows nothing."""
    columns, (thread,) = _threads(
        [
            made("cudaLaunchKernel", RUNTIME, 1, 0, 10),
            made("aten::mm", OPERATOR, 1, 0, 10),
            made("f", PYTHON, 1, 0, 10),
        ]
    )
    assert _pieces(columns, thread) == [(0, 10, "cudaLaunchKernel")]
    assert columns.names[columns.name[thread.owner[0]]] == "aten::mm"


def test_annotations_stay_out_but_the_loaders():
    """They cross frames; the loader's is all that shows it without stacks, and what runs inside counts as loader."""
    columns, (thread,) = _threads(
        [
            made(LOADER, ANNOTATION, 1, 0, 100),
            made("aten::stack", OPERATOR, 1, 10, 50),
            made("forward", ANNOTATION, 1, 100, 100),
        ]
    )
    assert _pieces(columns, thread) == [(0, 10, LOADER), (10, 60, "aten::stack"), (60, 100, LOADER)]
    assert thread.owner.tolist() == [0, 0, 0]
    assert thread.activity.tolist() == [Activity.HOST] * 3


def test_the_threads_are_those_that_drive():
    """Backward's and any that launches, after the training thread, without their frames; a helper's does not count."""
    columns, threads = _threads(
        [
            made("f", PYTHON, 1, 0, 100),
            made("autograd::engine::evaluate_function: MmBackward0", OPERATOR, 2, 10, 20),
            made("cudaLaunchKernel", RUNTIME, 3, 40, 5, correlation=1),
            made("poll", PYTHON, 3, 0, 100),
            made("gemm", KERNEL, 9, 60, 10, stream=7, correlation=1),
            made("aten::pin_memory", OPERATOR, 4, 0, 100),
        ]
    )
    assert [columns.threads[thread.thread][1] for thread in threads] == [1, 2, 3]
    assert _pieces(columns, threads[2]) == [(40, 45, "cudaLaunchKernel")]
    assert when(threads, Activity.HOST).measure_ns() == 100


def test_calls_that_wait_for_the_device():
    """A synchronising call does, and a copy that returns when it is done; one that returns before it does not."""
    _, (thread,) = _threads(
        [
            made("cudaStreamSynchronize", RUNTIME, 1, 0, 10),
            made("cudaMemcpyAsync", RUNTIME, 1, 20, 10, correlation=1),
            made("cudaMemcpyAsync", RUNTIME, 1, 40, 10, correlation=2),
            made("hipDeviceSynchronize", RUNTIME, 1, 60, 10),
            made("Memcpy DtoH", COPY, 9, 25, 4, stream=7, correlation=1),
            made("Memcpy HtoD", COPY, 9, 45, 6, stream=7, correlation=2),
        ]
    )
    waits = Activity.WAITS_FOR_DEVICE
    assert thread.activity.tolist() == [waits, waits, Activity.HOST, waits]


def test_item_waits_for_the_device_even_where_the_trace_has_no_calls():
    """0.1 ms or more in the operator itself; less is its own work, and without a device it computes."""
    events = [
        made("aten::_local_scalar_dense", OPERATOR, 1, 0, 100_000),
        made("aten::_local_scalar_dense", OPERATOR, 1, 200_000, 99_999),
    ]
    _, (thread,) = _threads([*events, made("gemm", KERNEL, 9, 0, 10, stream=7)])
    assert thread.activity.tolist() == [Activity.WAITS_FOR_DEVICE, Activity.HOST]
    assert _threads(events)[1][0].activity.tolist() == [Activity.COMPUTE] * 2


def test_standing_in_backward_is_waiting_if_it_lasts():
    """Below 0.1 ms it is the engine's own time between two operators."""
    run_backward = "<built-in method run_backward of torch._C._EngineBase object>"
    _, (thread,) = _threads(
        [
            made(run_backward, PYTHON, 1, 0, 400_000),
            made("aten::mm", OPERATOR, 1, 99_999, 100_000),
            made("wait", PYTHON, 1, 500_000, 400_000),
        ]
    )
    waits = Activity.WAITS_FOR_THREAD
    assert thread.activity.tolist() == [Activity.HOST, Activity.COMPUTE, waits, Activity.HOST]


def test_without_a_device_operators_of_libraries_compute():
    """Also those that call a trifle; scopes, the engine and the calls of collectives do not, nor with a device anything."""
    events = [
        made("DistributedDataParallel.forward", OPERATOR, 1, 0, 10),
        made("aten::mm", OPERATOR, 1, 10, 10),
        made("aten::resolve_conj", OPERATOR, 1, 12, 1),
        made("autograd::engine::evaluate_function: MmBackward0", OPERATOR, 1, 20, 10),
        made("c10d::allreduce_", OPERATOR, 1, 30, 10),
        made("Torch-Compiled Region: 0/0", OPERATOR, 1, 40, 10),
        made("f", PYTHON, 1, 50, 10),
    ]
    host, computes = Activity.HOST, Activity.COMPUTE
    assert _threads(events)[1][0].activity.tolist() == [host, computes, computes, computes, host, host, computes, host]
    _, threads = _threads([*events, made("gemm", KERNEL, 9, 60, 10, stream=7)])
    assert set(threads[0].activity.tolist()) == {host}


def test_no_thread_no_timeline():
    """A trace of the device alone has no host."""
    columns = columns_of([made("gemm", KERNEL, 9, 50, 10, stream=7)])
    assert host_threads(columns, ABSENT, launches_of(columns)) == []
    assert when([], Activity.HOST).measure_ns() == 0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=25))
def test_every_moment_belongs_to_the_innermost_event(spans):
    """Whatever crosses what: an event is cut where its caller ends, and of those at a moment the last begun has it."""
    spans = [(0, 1), *spans]
    _, (thread,) = _threads([made("f", PYTHON, 1, start, length) for start, length in spans])
    expected = {}
    callers = []
    for event, (start, length) in sorted(enumerate(spans), key=lambda item: (item[1][0], -item[1][1])):
        if not length:
            continue
        callers = [end for end in callers if end > start]
        callers.append(min(start + length, *callers) if callers else start + length)
        expected |= dict.fromkeys(range(start, callers[-1]), event)
    pieces = zip(thread.start_ns.tolist(), thread.end_ns.tolist(), thread.event.tolist(), strict=True)
    found = [(moment, event) for start, end, event in pieces for moment in range(start, end)]
    assert found == sorted(expected.items())
