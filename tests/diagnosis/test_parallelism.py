import pytest

from lockstep.contracts.finding import PARALLEL, NotEvaluated
from lockstep.diagnosis.parallelism import OVERLAP_RATIO, POOR_OVERLAP, find_poor_overlap
from lockstep.trace.step_breakdown import Breakdown


def _breakdown(compute, communication, both, free=0):
    """Return a breakdown from times in us, all of them alone but `both`."""
    times = {
        "compute_ns": compute,
        "communication_ns": communication,
        "overlap_ns": both,
        "free_ns": free,
        "host_ns": 0,
    }
    active = {
        "compute_active_ns": compute + both,
        "communication_active_ns": communication + both,
        "host_active_ns": 0,
        "memory_ns": 0,
        "compute_communication_overlap_ns": both,
    }
    return Breakdown(**{name: us * 1000 for name, us in (times | active).items()})


@pytest.mark.parametrize(
    ("overlap_us", "found"),
    [(266, True), (428, True), (499, True), (500, False), (876, False), (1119, False)],
)
def test_hermes_verdicts_on_its_own_overlaps(overlap_us, found):
    """2.66 and 4.28 % of a step are a bottleneck in its appendices, 8.76 and 11.19 % suffice; the limit is between."""
    findings = find_poor_overlap({0: _breakdown(5000, 5000 - overlap_us, overlap_us)})
    assert bool(findings) is found


def test_a_finding_states_what_could_be_hidden():
    """The shorter of the two alone, on the rank that waits least for others."""
    by_rank = {0: _breakdown(6000, 3900, 100), 3: _breakdown(6000, 2000, 100, 1900), 1: _breakdown(6000, 3900, 100)}
    (finding,) = find_poor_overlap(by_rank)
    assert (finding.bottleneck, finding.cause, finding.ranks) == (PARALLEL, POOR_OVERLAP, (0, 1, 3))
    assert finding.lost_ns == 2_000_000
    assert finding.predicted_gain_ratio == 0.2
    assert "rank 3" in finding.evidence[1]


def test_little_to_hide_is_no_bottleneck():
    """Below 5 % of the step, on one rank that hardly communicates alone: the others wait for it."""
    assert find_poor_overlap({0: _breakdown(6000, 3900, 100), 1: _breakdown(9400, 490, 110)}) == []


def test_waiting_for_other_ranks_is_not_what_overlap_hides():
    """Of 3.9 ms alone in collectives 3.6 are waiting: 0.3 ms are less than 5 % of the step; of 0.6 they are all."""
    by_rank = {0: _breakdown(6000, 3900, 100), 1: _breakdown(6000, 3900, 100)}
    assert find_poor_overlap(by_rank, {0: 300_000, 1: 300_000}) == []
    (finding,) = find_poor_overlap(by_rank, {0: 600_000, 1: 700_000})
    assert (finding.lost_ns, finding.predicted_gain_ratio) == (600_000, 0.06)
    assert finding.evidence[1].endswith("its collectives take 0.6 ms without waiting for other ranks")


def test_a_finding_states_in_how_many_steps_it_occurs():
    """By the same limit, of the steps of the rank whose loss it states; unmarked steps show nothing."""
    poor, fine = _breakdown(3000, 1950, 50), _breakdown(3000, 1500, 500)
    (finding,) = find_poor_overlap({0: _breakdown(6000, 3900, 100)}, steps={0: [poor, fine, poor]})
    assert finding.steps == (2, 3)
    assert finding.evidence[-1] == "it occurs in 2 of 3 steps"
    (finding,) = find_poor_overlap({0: _breakdown(6000, 3900, 100)}, steps={0: [poor]})
    assert finding.steps is None


def test_without_communication_nothing_is_evaluated():
    """One rank alone has nothing to overlap; nor has an empty window."""
    for by_rank in ({0: _breakdown(9000, 0, 0, 1000)}, {0: _breakdown(0, 0, 0)}, {}):
        answer = find_poor_overlap(by_rank)
        assert isinstance(answer, NotEvaluated)
        assert answer.rule == POOR_OVERLAP


def test_the_limit_names_its_origin():
    """No one has to guess."""
    assert "Hermes" in OVERLAP_RATIO.source
