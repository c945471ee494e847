import numpy as np
import pytest

from lockstep.trace.columns import ABSENT, ANNOTATION, DEVICE_ANNOTATION, KERNEL, OPERATOR, PYTHON, RUNTIME
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.steps import StepSource, bind_to_steps, find_steps, step_at, training_thread, windows_of
from tests.trace.made import columns_of, made
from tests.trace.traces import RECORDING


def _mark(number, start_ns):
    return made(f"lockstep.step#{number}", ANNOTATION, 1, start_ns, 0)


def _span(number, start_ns, end_ns, category=ANNOTATION):
    return made(f"ProfilerStep#{number}", category, 1, start_ns, end_ns - start_ns)


def _launched(correlation, call_ns, start_ns, duration_ns):
    return [
        made("cudaLaunchKernel", RUNTIME, 1, call_ns, 10, correlation=correlation),
        made("gemm", KERNEL, 9, start_ns, duration_ns, stream=7, correlation=correlation),
    ]


def _times(steps):
    return list(zip(steps.number.tolist(), steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True))


def test_marks_bound_steps_and_go_before_spans():
    """Each step goes from its mark to the next one; the last mark only ends; their thread is the training thread."""
    columns = columns_of(
        [
            made("busier", OPERATOR, 2, 0, 900),
            made("busier", OPERATOR, 2, 900, 900),
            _mark(8, 500),
            _mark(7, 100),
            _mark(9, 700),
            _span(0, 0, 5000),
        ]
    )
    steps = find_steps(columns)
    assert steps.source is StepSource.AGENT
    assert _times(steps) == [(7, 100, 500), (8, 500, 700)]
    assert columns.threads[steps.thread] == (7, 1)


def test_a_span_without_length_is_no_step_and_decides_no_thread():
    """Several threads may carry the profiler's spans; a span that was cut to nothing is no sign of training."""
    columns = columns_of(
        [made("ProfilerStep#5", ANNOTATION, 1, 900, 0), made("ProfilerStep#6", ANNOTATION, 2, 100, 400)]
    )
    steps = find_steps(columns)
    assert _times(steps) == [(6, 100, 500)]
    assert columns.threads[steps.thread] == (7, 2)


def test_a_missing_mark_costs_the_steps_on_both_sides_of_it():
    """Where 8 ended and 9 began no one knows, so neither 7 to 9 nor anything else stands for them."""
    steps = find_steps(columns_of([_mark(6, 0), _mark(7, 100), _mark(9, 300), _mark(10, 400)]))
    assert _times(steps) == [(6, 0, 100), (9, 300, 400)]
    assert step_at(steps, np.array([-1, 0, 99, 100, 299, 300, 400])).tolist() == [
        ABSENT,
        0,
        0,
        ABSENT,
        ABSENT,
        1,
        ABSENT,
    ]


def test_one_mark_bounds_nothing():
    """With a single mark the next best source is asked."""
    assert find_steps(columns_of([_mark(6, 0), _span(3, 0, 100)])).source is StepSource.PROFILER


def test_spans_are_steps_with_their_numbers():
    """Holes stay holes, the device's copy of an annotation is no step, and the old category is known."""
    columns = columns_of(
        [
            _span(18, 250, 400, OPERATOR),
            _span(16, 0, 100, OPERATOR),
            _span(16, 50, 180, DEVICE_ANNOTATION),
            _span(20, 400, 600, OPERATOR),
        ]
    )
    steps = find_steps(columns)
    assert steps.source is StepSource.PROFILER
    assert _times(steps) == [(16, 0, 100), (18, 250, 400), (20, 400, 600)]


def test_spans_that_overlap_by_rounding_are_cut():
    """In whole us a span can end 1 us after the next one began."""
    assert _times(find_steps(columns_of([_span(1, 0, 2000), _span(2, 1000, 3000)]))) == [(1, 0, 1000), (2, 1000, 3000)]


def test_optimizer_ends_bound_steps():
    """Without marks and spans a step ends with its optimizer; the first and what follows the last one are cut."""
    columns = columns_of(
        [
            made("aten::mm", OPERATOR, 1, 0, 700),
            *(made("Optimizer.step#SGD.step", ANNOTATION, 1, end_ns - 20, 20) for end_ns in (100, 300, 600)),
        ]
    )
    steps = find_steps(columns)
    assert steps.source is StepSource.OPTIMIZER
    assert _times(steps) == [(0, 0, 100), (1, 100, 300), (2, 300, 600), (3, 600, 700)]
    assert steps.partial.tolist() == [True, False, False, True]


def test_of_several_optimizers_the_one_that_steps_least_makes_the_loop():
    """A generator that steps after each second step of its critic makes the step; one seen once shows nothing."""
    ends = [("Critic", 100), ("Critic", 200), ("Generator", 250), ("Critic", 350), ("Critic", 450), ("Generator", 500)]
    columns = columns_of(
        [
            made("aten::mm", OPERATOR, 1, 0, 500),
            made("Optimizer.step#Once.step", ANNOTATION, 1, 10, 10),
            *(made(f"Optimizer.step#{name}.step", ANNOTATION, 1, end_ns - 20, 20) for name, end_ns in ends),
        ]
    )
    assert _times(find_steps(columns)) == [(0, 0, 250), (1, 250, 500)]


def test_a_trace_without_marks_is_one_partial_step():
    """It goes from the first work to the last, on host and device; the profiler's own rows may lie far outside."""
    columns = columns_of(
        [
            made("PyTorch Profiler (0)", "Trace", 99, 0, 10_000),
            made("aten::mm", OPERATOR, 1, 100, 200),
            *_launched(1, 150, 400, 50),
        ]
    )
    steps = find_steps(columns)
    assert (steps.source, _times(steps), steps.partial.tolist()) == (StepSource.WHOLE, [(0, 100, 450)], [True])


def test_a_trace_of_the_device_alone_has_no_training_thread():
    """Its one step is the device's."""
    columns = columns_of([made("gemm", KERNEL, 9, 50, 10, stream=7)])
    assert training_thread(columns) == ABSENT
    assert _times(find_steps(columns)) == [(0, 50, 60)]


def test_a_capture_of_the_device_alone_trains_where_it_is_launched():
    """It has the runtime's calls, and no other host event."""
    columns = columns_of([made("annotated", DEVICE_ANNOTATION, 9, 0, 90), *_launched(1, 150, 400, 50)])
    assert columns.threads[training_thread(columns)] == (7, 1)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([made("Optimizer.step#A.step", ANNOTATION, 2, 0, 1), made("run_backward", PYTHON, 1, 0, 900)], 2),
        ([made("run_backward", PYTHON, 2, 0, 900), *[made("run_backward", PYTHON, 1, at, 1) for at in range(5)]], 2),
        ([made("f", PYTHON, 2, 0, 1), *[made("aten::mm", OPERATOR, 1, at, 1) for at in range(5)]], 2),
        ([made("aten::mm", OPERATOR, 2, at, 1) for at in range(2)] + [made("aten::mm", OPERATOR, 1, 0, 99)], 2),
    ],
    ids=["optimizer", "time in backward", "frames", "events"],
)
def test_training_thread(events, expected):
    """Who steps the optimizer trains, else who runs backward for longest, else who has frames, else who does most."""
    columns = columns_of(events)
    assert columns.threads[training_thread(columns)] == (7, expected)


def test_work_belongs_to_the_step_that_launched_it():
    """The device lags: what runs during a step may be of the one before; what has no launch is of none."""
    columns = columns_of(
        [
            _span(1, 0, 100),
            _span(2, 100, 200),
            *_launched(1, 90, 150, 40),
            *_launched(2, 110, 190, 60),
            made("carried", KERNEL, 9, 20, 30, stream=7, correlation=77),
        ]
    )
    steps = find_steps(columns)
    assert bind_to_steps(columns, steps).tolist() == [0, 1, 0, 0, 1, 1, ABSENT]


def test_windows_end_when_the_device_is_done():
    """A step's window begins when the one before it is done on the device, and they leave no time between them."""
    columns = columns_of(
        [
            _span(1, 0, 100),
            _span(2, 100, 200),
            _span(3, 200, 300),
            *_launched(1, 90, 120, 60),
            *_launched(2, 110, 180, 15),
        ]
    )
    windows = windows_of(columns, find_steps(columns))
    assert windows.start_ns.tolist() == [0, 180, 200]
    assert windows.end_ns.tolist() == [180, 200, 300]


def test_windows_on_the_host_alone_are_the_steps():
    """Without a device nothing lags."""
    columns = load_trace(RECORDING)
    steps = find_steps(columns)
    windows = windows_of(columns, steps)
    assert windows.start_ns.tolist() == steps.start_ns.tolist()
    assert windows.end_ns.tolist() == steps.end_ns.tolist()


@pytest.mark.parametrize(("operators", "is_partial"), [(4, True), (6, False)])
def test_a_last_step_with_less_than_half_of_the_events_is_partial(operators, is_partial):
    """It was cut by the end of the trace."""
    counts = [10, 10, operators]
    columns = columns_of(
        [
            *(_span(number, 1000 * number, 1000 * number + 1000) for number in range(3)),
            *(
                made("f", OPERATOR, 1, 1000 * step + 10 * at, 5)
                for step, count in enumerate(counts)
                for at in range(count)
            ),
        ]
    )
    assert find_steps(columns).partial.tolist() == [False, False, is_partial]


@pytest.mark.parametrize(("carried_ns", "is_partial"), [(50, False), (51, True)])
def test_a_first_step_that_the_device_began_late_is_partial(carried_ns, is_partial):
    """It worked off more than a twentieth of a step that was launched before the trace began."""
    columns = columns_of(
        [
            _span(1, 0, 1000),
            _span(2, 1000, 2000),
            made("carried", KERNEL, 9, 0, carried_ns, stream=7, correlation=77),
            *_launched(1, 10, 200, 100),
            made("late", KERNEL, 9, 500, 300, stream=7, correlation=78),
        ]
    )
    assert find_steps(columns).partial.tolist() == [is_partial, False]


def test_recording_has_the_steps_of_its_optimizer():
    """Two steps and 0.1 ms after them."""
    steps = find_steps(load_trace(RECORDING))
    assert steps.source is StepSource.OPTIMIZER
    assert steps.partial.tolist() == [True, False, True]
    assert 90e6 < steps.end_ns[0] - steps.start_ns[0] < 100e6
    assert steps.end_ns[2] - steps.start_ns[2] < 0.2e6
