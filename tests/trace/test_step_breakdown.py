import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.trace.columns import ANNOTATION, COPY, FILL, KERNEL, OPERATOR, PYTHON, RUNTIME, WorkKind
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.prepared import prepare
from lockstep.trace.step_breakdown import Breakdown, StepAccount, break_down_steps
from tests.trace.made import columns_of, made
from tests.trace.traces import RECORDING

FIVE = ("compute_ns", "communication_ns", "host_ns", "overlap_ns", "free_ns")


def _five(breakdown):
    return {key: breakdown.as_json()[key] for key in FIVE}


def _whole(*events):
    return break_down_steps(prepare(columns_of(events))).whole


def _breakdown(**given_ns):
    names = [name for name in Breakdown.__dataclass_fields__ if name not in given_ns]
    return Breakdown(**dict.fromkeys(names, 0), **given_ns)


def test_classes_are_distinguished_and_sum_to_the_window():
    """Alone each has its own time, two or more at once are overlap whichever they are, none is free."""
    whole = _whole(
        made("aten::mm", OPERATOR, 1, 0, 30),
        made("gemm", KERNEL, 9, 20, 30, stream=7),
        made("ncclAllReduce", KERNEL, 9, 40, 30, WorkKind.COMMUNICATION, 20),
        made("aten::mm", OPERATOR, 1, 65, 5),
        made("Memcpy DtoD", COPY, 9, 80, 10, stream=7),
        made("aten::mm", OPERATOR, 1, 90, 10),
    )
    assert _five(whole) == dict(zip(FIVE, (10 + 10, 15, 20 + 10, 10 + 10 + 5, 10), strict=True))
    assert whole.window_ns == 100
    assert (whole.memory_ns, whole.compute_communication_overlap_ns) == (10, 10)
    assert (whole.compute_active_ns, whole.communication_active_ns, whole.host_active_ns) == (40, 30, 45)
    assert whole.as_json()["compute_communication_overlap_ratio"] == 0.1
    assert whole.overlap_ratio == 0.25


def test_copies_during_a_collective_are_overlap_but_not_of_kernels():
    """The ratio for the test of parallelism is of kernels during collectives."""
    whole = _whole(
        made("Memset", FILL, 9, 0, 10, stream=7), made("ncclAllReduce", KERNEL, 9, 0, 10, WorkKind.COMMUNICATION, 20)
    )
    assert (whole.overlap_ns, whole.compute_communication_overlap_ns, whole.memory_ns) == (10, 0, 0)


def test_a_host_that_waits_for_the_device_does_nothing_else():
    """In a synchronising call the device alone is active."""
    whole = _whole(
        made("item", PYTHON, 1, 0, 100),
        made("cudaStreamSynchronize", RUNTIME, 1, 10, 80),
        made("gemm", KERNEL, 9, 20, 60, stream=7),
    )
    assert _five(whole) == dict(zip(FIVE, (60, 0, 20, 0, 20), strict=True))


def test_an_empty_window_has_ratios_of_zero():
    """Nothing to divide by."""
    empty = _breakdown()
    assert (empty.window_ns, empty.overlap_ratio, empty.compute_communication_overlap_ratio) == (0, 0.0, 0.0)


def test_steps_are_accounted_in_the_windows_of_the_device():
    """What the device does late for the first step counts in the first window, and the windows sum to the whole."""
    columns = columns_of(
        [
            made("ProfilerStep#1", ANNOTATION, 1, 0, 100),
            made("ProfilerStep#2", ANNOTATION, 1, 100, 100),
            made("cudaLaunchKernel", RUNTIME, 1, 90, 10, correlation=1),
            made("gemm", KERNEL, 9, 95, 55, stream=7, correlation=1),
            made("cudaLaunchKernel", RUNTIME, 1, 190, 10, correlation=2),
            made("gemm", KERNEL, 9, 200, 40, stream=7, correlation=2),
        ]
    )
    found = break_down_steps(prepare(columns))
    assert [_five(step)["compute_ns"] for step in found.per_step] == [50, 40]
    assert [step.window_ns for step in found.per_step] == [150, 90]
    assert found.whole.window_ns == 240
    assert found.host_unseen_ns == [0, 40]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15), st.sampled_from("KMNH")), max_size=12),
    st.integers(0, 40),
    st.integers(0, 60),
)
def test_equal_to_counting_every_ns(spans, start_ns, length_ns):
    """Any events and any window, also one that reaches beyond them."""
    kinds = {
        "K": ("gemm", KERNEL, 9, WorkKind.COMPUTE, 7),
        "M": ("copy", COPY, 9, WorkKind.MEMORY, 8),
        "N": ("nccl", KERNEL, 9, WorkKind.COMMUNICATION, 20),
        "H": ("f", PYTHON, 1, WorkKind.HOST, None),
    }
    events = [made("gemm", KERNEL, 9, 100, 1, stream=7), made("f", PYTHON, 1, 100, 1)]
    for start, length, kind in spans:
        name, category, thread, work, stream = kinds[kind]
        events.append(made(name, category, thread, start, length, work, stream))
    counted = dict.fromkeys((*FIVE, "memory_ns", "both"), 0)
    reached = 0
    host = set()
    for start, length, kind in sorted(spans, key=lambda span: (span[0], -span[1])):
        if kind == "H" and start >= reached:  # frames that cross their caller's end are cut to it
            reached = start + length
            host |= set(range(start, reached))
    for moment in range(start_ns, start_ns + length_ns):
        active = {kind for start, length, kind in spans if kind != "H" and start <= moment < start + length}
        active |= {"H"} if moment in host else set()
        if moment == 100:
            active |= {"K", "H"}
        classes = {"C" if kind in "KM" else kind for kind in active}
        alone = {"C": "compute_ns", "N": "communication_ns", "H": "host_ns"}
        key = "overlap_ns" if len(classes) > 1 else alone[classes.pop()] if classes else "free_ns"
        counted[key] += 1
        counted["memory_ns"] += active == {"M"}
        counted["both"] += {"K", "N"} <= active
    found = StepAccount(prepare(columns_of(events))).within(start_ns, start_ns + length_ns)
    assert _five(found) == {key: counted[key] for key in FIVE}
    assert (found.memory_ns, found.compute_communication_overlap_ns) == (counted["memory_ns"], counted["both"])


def test_without_a_device_the_host_computes():
    """Operators of libraries are compute, Python, scopes and the loader are host, the backend's thread communicates."""
    whole = _whole(
        made("train", PYTHON, 1, 0, 100),
        made("aten::mm", OPERATOR, 1, 10, 20),
        made("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", ANNOTATION, 1, 40, 20),
        made("aten::stack", OPERATOR, 1, 45, 5),
        made("gloo:all_reduce", ANNOTATION, 2, 25, 10, WorkKind.COMMUNICATION),
    )
    assert _five(whole) == dict(zip(FIVE, (15, 0, 75, 10, 0), strict=True))


@pytest.fixture(scope="module")
def recorded():
    return break_down_steps(prepare(load_trace(RECORDING)))


def test_recording_sums_to_the_ns(recorded):
    """Each step's five parts sum to its window, and the steps' windows to the whole."""
    lengths = (recorded.windows.end_ns - recorded.windows.start_ns).tolist()
    assert [step.window_ns for step in recorded.per_step] == lengths
    assert sum(lengths) == recorded.whole.window_ns


def test_recording_of_a_rank_that_sleeps_is_bound_by_its_host(recorded):
    """It sleeps 60 ms in forward and waits 54 ms for the others; operators take 5 to 10 %, and with stacks nothing is free."""
    whole = recorded.whole
    assert whole.host_ns > 60e6
    assert 50e6 < whole.communication_ns < 60e6
    assert 0.04 * whole.window_ns < whole.compute_ns < 0.15 * whole.window_ns
    assert whole.free_ns < 0.01 * whole.window_ns
    assert whole.overlap_ratio < 0.2
