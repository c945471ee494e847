import pytest

from lockstep.contracts.finding import HIGH, LOW, MEDIUM, NotEvaluated
from lockstep.contracts.messages import HostSpan
from lockstep.diagnosis.host_causes.contention import evaluate_contention, find_contention

SECOND = 1_000_000_000


def _evaluate(**counted):
    return evaluate_contention(HostSpan(span_ns=10 * SECOND, **counted), window_ns=(0, SECOND), ranks=(2,))


def _find(**counted):
    return find_contention(HostSpan(span_ns=10 * SECOND, **counted), window_ns=(0, SECOND), ranks=(2,))


def test_a_thread_that_waits_for_a_cpu_names_who_has_it():
    """As in Hermes' case: a monitoring program on 40 cores."""
    (finding,) = _evaluate(
        run_queue_wait_ns=2 * SECOND, cores=8, others_cores=6.0, busiest=[("prometheus", 5.5), ("cron", 0.2)]
    )
    assert (finding.cause, finding.subject, finding.confidence) == ("cpu_contention", "prometheus", HIGH)
    assert (finding.lost_ns, finding.ranks) == (SECOND // 5, (2,))
    assert "the training thread waited 20.0 % of the time for a CPU" in finding.evidence
    assert "prometheus uses 5.5 cores" in finding.evidence


@pytest.mark.parametrize(("wait", "named"), [(500_000_000, True), (499_000_000, False)])
def test_limit_of_waiting(wait, named):
    """A twentieth of the time."""
    assert (_find(run_queue_wait_ns=wait, throttled_ns=0) is not None) is named
    assert bool(_evaluate(run_queue_wait_ns=wait, cores=2, others_cores=1.0)) is named


def test_ranks_of_a_job_that_wait_for_each_other_are_no_fault_of_one():
    """Without strangers on its cores and without a limit, what a rank waits is compared with its peers' only."""
    assert _evaluate(run_queue_wait_ns=4 * SECOND, throttled_ns=0, cores=2, others_cores=0.9) == []


def test_a_throttled_group_is_reported_as_such():
    """No one else is to blame: the container's limit is."""
    (finding,) = _evaluate(run_queue_wait_ns=0, throttled_ns=SECOND)
    assert finding.confidence == HIGH
    assert "throttled 10.0 %" in finding.evidence[0]
    assert finding.lost_ns == SECOND // 10


def test_throttling_and_waiting_are_not_added_up():
    """A throttled thread stands in the run queue."""
    (finding,) = _evaluate(run_queue_wait_ns=3 * SECOND, throttled_ns=2 * SECOND)
    assert finding.lost_ns == 3 * SECOND // 10


def test_busy_neighbours_alone_are_no_fault_where_waiting_was_measured():
    """There are cores enough for both."""
    assert _evaluate(run_queue_wait_ns=0, cores=8, others_cores=7.0) == []


def test_busy_neighbours_without_a_measured_wait_are_of_low_confidence():
    """They may hold the trainer up; by how much is not known."""
    (finding,) = _evaluate(cores=8, others_cores=4.0)
    assert (finding.confidence, finding.lost_ns) == (LOW, None)
    assert _evaluate(cores=8, others_cores=3.9) == []


def test_waiting_for_unknown_neighbours_is_of_medium_confidence():
    """That the thread waited is certain; for whom is not."""
    assert _find(run_queue_wait_ns=2 * SECOND).confidence == MEDIUM


@pytest.mark.parametrize("host", [None, HostSpan(span_ns=0), HostSpan(span_ns=SECOND)])
def test_without_samples_nothing_is_evaluated(host):
    """A trace does not show contention."""
    assert isinstance(evaluate_contention(host, window_ns=(0, SECOND), ranks=(0,)), NotEvaluated)
