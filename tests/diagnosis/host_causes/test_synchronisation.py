import pytest

from lockstep.contracts.finding import HIGH, MEDIUM, NotEvaluated
from lockstep.diagnosis.frames import readable
from lockstep.diagnosis.host_causes.synchronisation import SYNCHRONISATION, evaluate_synchronisation
from lockstep.trace.columns import TraceMetadata
from tests.diagnosis.host_causes.scenes import call, copy, frame, kernel, span, view

TRAIN = "train.py(12): step"


def _item(start_us, *, gap_us=30, correlation=1):
    """Return a kernel, `loss.item()` that waits for it, and the next kernel `gap_us` after the wait."""
    return [
        frame(TRAIN, start_us, 100),
        span("aten::item", start_us + 10, 60),
        call("cudaMemcpyAsync", start_us + 12, 5, correlation=correlation),
        call("cudaStreamSynchronize", start_us + 20, 45),
        kernel("gemm", start_us, 60),
        copy("Memcpy DtoH (Device -> Pageable)", start_us + 61, 2, correlation=correlation),
        kernel("next", start_us + 65 + gap_us, 5),
    ]


def test_a_call_is_charged_with_the_idle_time_that_follows_from_it():
    """65 us of waiting cost nothing until the copy is done; the 30 us without work after the call, and 2 us inside, do."""
    (finding,) = evaluate_synchronisation(view(_item(0), 200))
    assert (finding.cause, finding.confidence) == (SYNCHRONISATION, HIGH)
    assert finding.lost_ns == 30_000 + 2000
    assert finding.subject == f"aten::item in {readable(TRAIN)}"
    assert any(each.startswith("1 call holds the host in cudaStreamSynchronize for ") for each in finding.evidence)


@pytest.mark.parametrize(
    ("vendor", "wait_us", "found"), [("ascend", 120, True), ("ascend", 90, False), ("", 120, False)]
)
def test_operators_wait_where_no_calls_are_recorded(vendor, wait_us, found):
    """Ascend's level 0 has operators and kernels alone: reading back that lasts waits for the device."""
    events = [
        frame(TRAIN, 0, wait_us + 20),
        span("aten::item", 5, wait_us + 10),
        span("aten::_local_scalar_dense", 10, wait_us),
        kernel("gemm", 0, wait_us),
        kernel("next", wait_us + 40, 500),
    ]
    answer = evaluate_synchronisation(view(events, wait_us + 540, metadata=TraceMetadata(vendor=vendor)))
    if found:
        (finding,) = answer
        assert finding.subject == f"aten::item in {readable(TRAIN)}"
        assert finding.lost_ns == 40_000
    else:
        assert isinstance(answer, NotEvaluated)


def test_calls_from_one_place_are_one_finding():
    """Count, total and loss are sums."""
    (finding,) = evaluate_synchronisation(view([*_item(0), *_item(200, correlation=2)], 400))
    assert finding.lost_ns == 64_000
    assert finding.evidence[0].startswith("2 calls")


def test_waiting_for_a_busy_device_is_no_finding():
    """The next work follows at once: nothing was lost."""
    events = [call("cudaDeviceSynchronize", 0, 90), kernel("gemm", 0, 90), kernel("next", 91, 100)]
    assert evaluate_synchronisation(view(events, 200)) == []


def test_a_call_that_finds_an_idle_device_is_charged_with_its_own_time_only():
    """The device had run dry before: the call changed nothing about that."""
    events = [kernel("gemm", 0, 10), call("cudaStreamSynchronize", 50, 14), kernel("next", 500, 10)]
    (finding,) = evaluate_synchronisation(view(events, 600))
    assert finding.lost_ns == 14_000


def test_a_wait_for_the_whole_device_that_nothing_follows_delays_nothing():
    """The harness waits for the device before it reads the clock; the training has ended."""
    events = [kernel("gemm", 0, 50), call("cudaDeviceSynchronize", 10, 60)]
    assert evaluate_synchronisation(view(events, 100)) == []
    (finding,) = evaluate_synchronisation(view([*events, kernel("next", 90, 10)], 100))
    assert finding.lost_ns == 40_000


def test_gaps_between_work_that_was_launched_before_are_not_the_waits():
    """The device is idle twice in the call; the host could have launched only after the last work."""
    events = [
        kernel("a", 0, 50),
        kernel("b", 60, 30),
        call("cudaStreamSynchronize", 10, 85),
        kernel("next", 100, 10),
    ]
    (finding,) = evaluate_synchronisation(view(events, 200))
    assert finding.lost_ns == 10_000


def test_one_call_that_holds_a_window_without_steps_is_no_steps():
    """Nothing shows that a step does so again; with marked steps it counts."""
    events = [kernel("a", 0, 10), call("cudaStreamSynchronize", 0, 80), kernel("next", 90, 10)]
    answer = evaluate_synchronisation(view(events, 100))
    assert isinstance(answer, NotEvaluated)
    assert answer.reason.startswith("one call of cudaStreamSynchronize holds 80% of a window without marked steps")


def test_a_copy_and_the_wait_for_it_are_one_loss():
    """Both stand in one operator: fixing it ends both."""
    events = [
        span("aten::to", 0, 60),
        call("cudaMemcpyAsync", 5, 10, correlation=5),
        copy("Memcpy DtoH", 6, 5, correlation=5),
        call("cudaStreamSynchronize", 20, 30),
        kernel("next", 70, 10),
    ]
    (finding,) = evaluate_synchronisation(view(events, 200))
    assert finding.subject == "aten::to"
    assert finding.evidence[0].startswith("2 calls")


def test_no_more_than_a_millisecond_after_a_call_is_charged_to_it():
    """Later the host does something else than to launch again."""
    events = [call("cudaDeviceSynchronize", 0, 10), kernel("gemm", 0, 10), kernel("next", 5010, 10)]
    (finding,) = evaluate_synchronisation(view(events, 10_000))
    assert finding.lost_ns == 1_000_000


def test_copies_that_return_after_the_device_has_done_them_wait():
    """A copy to pageable memory blocks without a call that is a wait; an asynchronous one does not."""
    blocking = [
        call("cudaMemcpyAsync", 0, 50, correlation=5),
        copy("Memcpy DtoH", 10, 5, correlation=5),
        kernel("next", 60, 100),
    ]
    (finding,) = evaluate_synchronisation(view(blocking, 200))
    assert finding.subject == "cudaMemcpyAsync"
    assert finding.confidence == MEDIUM
    free = [call("cudaMemcpyAsync", 0, 5, correlation=5), copy("Memcpy DtoH", 10, 5, correlation=5)]
    assert evaluate_synchronisation(view(free, 100)) == []


def test_idle_time_is_charged_to_one_call_only():
    """Two threads that wait at once, and a driver's call inside a runtime's, lose it once."""
    events = [
        kernel("gemm", 0, 30),
        call("cudaStreamSynchronize", 0, 50),
        call("cuStreamSynchronize", 10, 30),
        call("cudaStreamSynchronize", 20, 50, thread=2),
        kernel("next", 80, 10),
    ]
    findings = evaluate_synchronisation(view(events, 100))
    assert sum(finding.lost_ns for finding in findings) == 50_000


def test_the_profilers_own_waits_are_not_the_trainings():
    """It synchronises when it stops."""
    events = [
        frame("torch/autograd/profiler.py(363): __exit__", 0, 60),
        kernel("gemm", 0, 40),
        call("cudaDeviceSynchronize", 0, 50),
        kernel("next", 80, 10),
    ]
    assert evaluate_synchronisation(view(events, 100)) == []


def test_blocking_launches_are_one_finding():
    """A wait for every launch: an environment variable, not a line of code."""
    events = []
    for at in range(10):
        events += [
            call("cudaLaunchKernel", at * 20, 5, correlation=at + 1),
            kernel("k", at * 20 + 5, 5, correlation=at + 1),
            call("cudaStreamSynchronize", at * 20 + 5, 8),
        ]
    (finding,) = evaluate_synchronisation(view(events, 200))
    assert finding.subject == "blocking launches"
    assert finding.lost_ns == 9 * 15_000 + 10_000


@pytest.mark.parametrize(
    ("kernel_us", "returned_us", "found"), [(30, 40, True), (30, 5, False), (3, 12, False), (10, 18, True)]
)
def test_launches_that_return_after_their_kernel_block(kernel_us, returned_us, found):
    """CUDA_LAUNCH_BLOCKING has no call of its own: each launch lasts as long as its kernel, if that lasts at all."""
    events = []
    for at in range(10):
        begin = at * 50
        events += [
            call("cudaLaunchKernel", begin, returned_us, correlation=at + 1),
            kernel("k", begin + 6, kernel_us, correlation=at + 1),
        ]
    findings = evaluate_synchronisation(view(events, 500))
    assert [finding.subject for finding in findings] == ["blocking launches"] * found
    if found:
        assert findings[0].evidence[0].startswith("10 of 10 launches")
        assert findings[0].lost_ns == (10 * (50 - kernel_us) - 6) * 1000


def test_a_graphs_launch_stands_for_all_its_kernels():
    """One wait a step next to one launch of a graph of 20 kernels: no launch blocks."""
    events = []
    for at in range(5):
        begin = at * 300
        events.append(call("cudaGraphLaunch", begin, 5, correlation=at + 1))
        events += [kernel("k", begin + 10 + each * 11, 10, correlation=at + 1) for each in range(20)]
        events.append(call("cudaStreamSynchronize", begin + 5, 226))
    (finding,) = evaluate_synchronisation(view(events, 1500))
    assert finding.subject == "cudaStreamSynchronize"


@pytest.mark.parametrize(("count", "named"), [(20, False), (21, True)])
def test_many_synchronised_batch_norms_are_reported(count, named):
    """More than 20 a step, as the vendor has it."""
    events = [span("SyncBatchNorm", at, 0.5) for at in range(count)]
    events += [span("SyncBatchNormBackward", at + 50, 0.5) for at in range(count)]
    events += [call("cudaLaunchKernel", 0, 1, correlation=1), kernel("k", 0, 100, correlation=1)]
    found = evaluate_synchronisation(view(events, 100))
    assert [finding.subject for finding in found] == (["SyncBatchNorm"] if named else [])


def test_reading_values_back_on_a_cpu_costs_what_it_takes():
    """There is no one to wait for: below a twentieth of the window it cannot be evaluated, above it is a finding."""
    events = [frame(TRAIN, 0, 100)]
    for at in range(5):
        events += [span("aten::item", at * 10, 1), span("aten::_local_scalar_dense", at * 10 + 0.2, 0.5)]
    (finding,) = evaluate_synchronisation(view(events, 100))
    assert (finding.lost_ns, finding.confidence) == (5000, MEDIUM)
    assert finding.subject == f"aten::item in {readable(TRAIN)}"
    assert any("no device to wait for" in each for each in finding.evidence)
    answer = evaluate_synchronisation(view(events, 101))
    assert isinstance(answer, NotEvaluated)
    assert "no device" in answer.reason


def test_without_calls_into_the_runtime_nothing_is_evaluated():
    """A capture of the device alone shows no waits."""
    assert isinstance(evaluate_synchronisation(view([kernel("k", 0, 5)], 10)), NotEvaluated)
