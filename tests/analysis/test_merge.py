"""Findings and refusals of many ranks as one list."""

import pytest

from lockstep.analysis.merge import advise, merge_findings, merge_refusals
from lockstep.contracts.finding import COMPUTE, CPU, IO, PARALLEL, Finding, NotEvaluated
from lockstep.diagnosis.remedies import ASCEND, PYTORCH

WINDOWS_NS = {0: 1000, 1: 1000, 2: 4000}


def finding(rank, lost_ns=None, *, bottleneck=COMPUTE, cause="underutilised", subject="aten::mm", evidence="e"):
    return Finding(
        bottleneck=bottleneck, cause=cause, ranks=(rank,), subject=subject, evidence=(evidence,), lost_ns=lost_ns
    )


def test_equal_findings_become_one():
    """All ranks, the numbers of the one that loses the largest share of its window."""
    (found,) = merge_findings(
        [finding(0, 100, evidence="a"), finding(2, 300, evidence="c"), finding(1, 200, evidence="b")], WINDOWS_NS
    )
    assert (found.ranks, found.lost_ns, found.evidence[0]) == ((0, 1, 2), 200, "b")
    assert found.evidence[1] == "on 3 of 3 ranks (0, 1, 2); the numbers are those of rank 1"


def test_different_subjects_and_causes_stay_apart():
    """Another operator, another cause: other findings; one rank's twice stays two, side by side with other ranks'."""
    found = merge_findings(
        [
            finding(0, 9),
            finding(0, 5),
            finding(1, 8),
            finding(1, 4),
            finding(0, subject="aten::add"),
            finding(0, cause="memory_bound"),
        ],
        WINDOWS_NS,
    )
    assert [(each.cause, each.subject, each.ranks, each.lost_ns) for each in found] == [
        ("underutilised", "aten::mm", (0, 1), 9),
        ("underutilised", "aten::mm", (0, 1), 5),
        ("underutilised", "aten::add", (0,), None),
        ("memory_bound", "aten::mm", (0,), None),
    ]


def test_many_ranks_are_counted_not_listed():
    """A thousand ranks: eight by number."""
    windows = dict.fromkeys(range(1000), 1000)
    (found,) = merge_findings([finding(rank, 1) for rank in windows], windows)
    assert len(found.ranks) == 1000
    assert found.evidence[-1].startswith("on 1000 of 1000 ranks (0, 1, 2, 3, 4, 5, 6, 7, ...)")


def test_advice_with_its_gain_the_best_first():
    """The loss over the rank's own window; what has no gain comes last, parallelism before the other components."""
    advised = advise(
        [
            finding(0, cause="memory_bound"),
            finding(2, 400, bottleneck=IO, cause="data_reading", subject="loader"),
            finding(0, 500, bottleneck=CPU, cause="gc", subject=""),
            finding(1, 500, bottleneck=PARALLEL, cause="poor_overlap", subject=""),
        ],
        WINDOWS_NS,
        PYTORCH,
    )
    assert [(each.cause, each.predicted_gain_ratio) for each in advised] == [
        ("poor_overlap", pytest.approx(0.5)),
        ("gc", pytest.approx(0.5)),
        ("data_reading", pytest.approx(0.1)),
        ("memory_bound", None),
    ]
    assert all(each.advice for each in advised)


def test_advice_is_given_in_the_jobs_framework():
    """The same remedy is applied otherwise on Ascend."""
    (one,), (other,) = (
        advise([finding(0, 500, bottleneck=PARALLEL, cause="poor_overlap")], WINDOWS_NS, each)
        for each in (PYTORCH, ASCEND)
    )
    assert [each.suggestion for each in one.advice] == [each.suggestion for each in other.advice]
    assert [each.how for each in one.advice] != [each.how for each in other.advice]


def test_reasons_that_differ_in_numbers_are_one():
    """9 of 21 here and 10 of 25 there: one refusal, the first rank's numbers."""
    found = merge_refusals(
        [
            (0, [NotEvaluated(rule="unaligned", reason="9 of 21 collectives"), NotEvaluated(rule="gc", reason="none")]),
            (1, [NotEvaluated(rule="unaligned", reason="10 of 25 collectives")]),
            (2, [NotEvaluated(rule="unaligned", reason="no sizes")]),
        ]
    )
    assert [(each.rule, each.reason, each.ranks) for each in found] == [
        ("unaligned", "9 of 21 collectives", (0, 1)),
        ("gc", "none", (0,)),
        ("unaligned", "no sizes", (2,)),
    ]
