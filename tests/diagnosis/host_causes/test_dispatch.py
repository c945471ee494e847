import pytest

from lockstep.contracts.finding import HIGH, MEDIUM, NotEvaluated
from lockstep.diagnosis.host_causes.dispatch import evaluate_dispatch, launch_waits, small_kernels
from tests.diagnosis.host_causes.scenes import call, copy, kernel, span, view


def _launched(count, *, every_us=20, busy_us=2, launch_us=5, ahead_us=6, names="k{at}"):
    """Return kernels that each begin 1 us after their launch has ended."""
    events = []
    for at in range(count):
        start_us = at * every_us + ahead_us
        events.append(call("cudaLaunchKernel", start_us - 1 - launch_us, launch_us, correlation=at + 1))
        events.append(kernel(names.format(at=at), start_us, busy_us, correlation=at + 1))
    return events


def test_small_kernels_are_shares_by_count_and_by_time():
    """Shorter than 10 us, not equal; copies are no kernels."""
    events = [kernel("a", 0, 5), kernel("b", 10, 10), kernel("c", 30, 35), copy("Memcpy", 70, 1)]
    found = small_kernels(view(events, 100))
    assert (found.kernels, found.count_ratio, found.time_ratio) == (3, pytest.approx(1 / 3), 0.1)


def test_the_device_waits_for_a_launch_that_ends_after_it_became_idle():
    """From the end of the work before to the end of the launch; what follows is the device's own latency."""
    waits = launch_waits(view(_launched(2), 40))
    assert list(zip(waits.start_ns.tolist(), waits.end_ns.tolist(), strict=True)) == [(0, 5000), (8000, 25_000)]


def test_a_device_that_was_given_its_work_in_time_waits_for_nothing():
    """Launches far ahead: gaps between kernels are not the host's."""
    events = [call("cudaLaunchKernel", at, 1, correlation=at + 1) for at in range(5)]
    events += [kernel("k", 10 + at * 20, 2, correlation=at + 1) for at in range(5)]
    assert launch_waits(view(events, 100)).measure_ns() == 1000  # the first launch


def test_work_without_a_launch_in_the_trace_waited_for_nothing_known():
    """What was launched before the trace began is not charged to the host."""
    events = _launched(5)
    assert launch_waits(view([event for event in events if event.category == "kernel"], 100)).measure_ns() == 0


def test_gaps_of_more_than_a_millisecond_are_not_dispatch():
    """The host loaded data or slept: other rules look at that."""
    assert launch_waits(view(_launched(2, every_us=1002), 2100)).measure_ns() == 5000 + 999_000
    assert launch_waits(view(_launched(2, every_us=1003), 2100)).measure_ns() == 5000


def test_many_small_kernels_that_the_device_waits_for_are_a_finding():
    """Even where no sequence repeats."""
    (finding,) = evaluate_dispatch(view(_launched(20), 400))
    assert (finding.cause, finding.subject, finding.confidence) == ("dispatch", "small kernels", MEDIUM)
    assert finding.lost_ns == 5000 + 19 * 17_000
    assert "100 % of 20 kernels" in finding.evidence[0]


def test_small_kernels_that_keep_the_device_busy_are_none():
    """Their number is no fault if none waits."""
    assert evaluate_dispatch(view([kernel(f"k{at}", at * 5, 5) for at in range(20)], 100)) == []


def test_long_kernels_that_wait_for_launches_are_none():
    """Then the host is slow for another reason than the number of kernels."""
    assert evaluate_dispatch(view(_launched(10, every_us=60, busy_us=30), 600)) == []


def test_sequences_are_reported_with_what_fusing_would_give_back():
    """The finding names the sequence; the loss is the device's wait for launches."""
    (finding,) = evaluate_dispatch(view(_launched(20, names="k"), 400))
    assert finding.subject.startswith("k + k")
    assert finding.confidence == HIGH
    assert any("times" in each and "idle inside" in each for each in finding.evidence)


def test_a_sequence_is_named_by_the_operators_that_launch_it():
    """What can be fused is operators: a kernel is named itself where the trace does not show who launched it."""
    events = _launched(20, names="void at::native::elementwise_kernel<4>(int)")
    operators = [span(name, 20 * at, 10) for at, name in enumerate(["aten::mul", "aten::add_"] * 10)]
    (finding,) = evaluate_dispatch(view([*operators, *events], 400))
    assert finding.subject == "aten::mul + aten::add_"
    assert finding.evidence[2].endswith("aten::mul + aten::add_, over and over")
    (finding,) = evaluate_dispatch(view(events, 400))
    assert finding.subject == "elementwise_kernel + elementwise_kernel"


@pytest.mark.parametrize("events", [[span("aten::mm", 0, 5)], [span("aten::mm", 0, 5), copy("Memcpy", 0, 1)]])
def test_without_kernels_nothing_is_evaluated(events):
    """A CPU's operators run where they are dispatched."""
    assert isinstance(evaluate_dispatch(view(events, 10)), NotEvaluated)
