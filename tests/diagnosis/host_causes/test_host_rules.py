import pytest

from lockstep.contracts.messages import HostSpan
from lockstep.diagnosis.host_causes import Collection, evaluate_host, thresholds
from lockstep.diagnosis.remedies import CAUSES, advise_finding
from lockstep.diagnosis.threshold import Threshold
from tests.diagnosis.host_causes.scenes import call, kernel, loader, span, steps, view

MS = 1000


def test_all_rules_answer_and_the_costliest_finding_goes_first():
    """Each rule either finds, finds nothing, or states why it cannot evaluate."""
    events = [*steps(2, 50 * MS), loader(0, 20 * MS), span("dynamo", 30 * MS, 30 * MS), span("aten::mm", 70 * MS, 1)]
    answer = evaluate_host(
        view(events, 100 * MS),
        noted=[Collection(80_000_000, 5_000_000)],
        host=HostSpan(span_ns=1000, run_queue_wait_ns=100, cores=2, others_cores=1.0),
    )
    assert [finding.cause for finding in answer.findings] == ["compilation", "data_processing", "cpu_contention", "gc"]
    assert {each.rule for each in answer.not_evaluated} == {"data fetching", "dispatch", "synchronisation"}


def test_a_healthy_window_has_no_findings():
    """A device that works all the time is no one's victim."""
    events = [call("cudaLaunchKernel", 0, 5, correlation=1), kernel("gemm", 0, 100 * MS, correlation=1), loader(0, 90)]
    assert evaluate_host(view(events, 100 * MS), noted=[], host=HostSpan(span_ns=1, run_queue_wait_ns=0)).findings == ()


def test_every_finding_gets_advice():
    """The rules name causes that the table knows."""
    answer = evaluate_host(view([loader(0, 50)], 100), noted=[Collection(60_000, 20_000_000)])
    for finding in answer.findings:
        advised = advise_finding(finding, 100_000)
        assert advised.advice
        assert advised.predicted_gain_ratio == pytest.approx(finding.lost_ns / 100_000)


def test_every_limit_belongs_to_a_cause_that_exists():
    """docs/causes.md shows limits by cause; none is left out."""
    limits = {name for name, value in vars(thresholds).items() if isinstance(value, Threshold)}
    assert {name for names in thresholds.BY_CAUSE.values() for name in names} == limits
    assert set(thresholds.BY_CAUSE) <= set(CAUSES)
    assert all(getattr(thresholds, name).source for name in limits)
