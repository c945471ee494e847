"""All ranks together: who is waited for, which function, what to do; and nothing on a healthy job."""

from dataclasses import replace

import pytest

from lockstep.analysis.cluster import analyse_cluster, families
from lockstep.analysis.evidence import Evidence
from lockstep.analysis.rank import analyse_rank
from lockstep.contracts.messages import HostSpan
from lockstep.diagnosis.communication_causes.waiting import SLOW_RANK
from lockstep.diagnosis.localisation import NO_GROUP
from lockstep.trace.columns import TraceMetadata
from tests.analysis.job import FORWARD, RANKS, SLEEP, STEP_NS, STEPS, rank_columns


def analyses(**options):
    return [analyse_rank(rank_columns(rank, **options), rank=rank) for rank in RANKS]


def of_some(cluster):
    """Return the findings that not all ranks have."""
    return [(each.cause, each.ranks, each.subject) for each in cluster.findings if len(each.ranks) < len(RANKS)]


def test_a_sleeping_rank_is_named_with_its_function():
    """Rank 2 sleeps in forward: it is the one that all wait for, forward is the function, and the loss is given once."""
    cluster = analyse_cluster(analyses(slept_ms={2: 40}))
    assert of_some(cluster) == [("slow_function", (2,), FORWARD)]
    straggler = next(each for each in cluster.findings if each.ranks == (2,))
    assert straggler.lost_ns == pytest.approx(STEPS * 40e6, rel=0.01)
    assert straggler.predicted_gain_ratio == pytest.approx(0.4, abs=0.01)
    assert straggler.advice[0].predicted_gain_ratio == straggler.predicted_gain_ratio
    assert f"most of it in {SLEEP}" in straggler.evidence
    assert any("the others wait for it" in sentence for sentence in straggler.evidence)


def test_the_best_gain_comes_first():
    """Findings are ordered by what their best remedy gives back."""
    cluster = analyse_cluster(analyses(slept_ms={2: 40}))
    gains = [each.predicted_gain_ratio or 0 for each in cluster.findings]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 0


def test_every_ranks_own_findings_are_advised():
    """What a rank has by itself comes with its remedies and their gain, over that rank's window."""
    throttled = Evidence(host=HostSpan(span_ns=100, throttled_ns=40, run_queue_wait_ns=0))
    cluster = analyse_cluster([analyse_rank(rank_columns(rank), rank=rank, evidence=throttled) for rank in RANKS])
    for rank in cluster.ranks:
        kept_out = next(each for each in rank.findings if each.cause == "cpu_contention")
        assert kept_out.ranks == (rank.rank,)
        assert kept_out.advice
        assert kept_out.predicted_gain_ratio == pytest.approx(kept_out.lost_ns / rank.length_ns)


def test_a_rank_recorded_longer_loses_a_share_of_the_others_window():
    """Rank 2's last step reaches beyond the others': what it loses is a share of the step that all have."""
    ranks = analyses(slept_ms={2: 40})
    longer = replace(ranks[2], window_ns=(ranks[2].window_ns[0], ranks[2].window_ns[1] + 10 * STEP_NS))
    found = next(each for each in analyse_cluster([*ranks[:2], longer, ranks[3]]).findings if each.ranks == (2,))
    assert found.predicted_gain_ratio == pytest.approx(0.4, abs=0.01)


def test_a_healthy_job_has_no_slow_rank():
    """Ranks alike: no one is named, by any rule."""
    cluster = analyse_cluster(analyses())
    assert of_some(cluster) == []
    assert SLOW_RANK not in {each.cause for each in cluster.findings}


def test_the_order_of_the_ranks_does_not_matter():
    """Whichever worker answers first: the same findings, the ranks in order."""
    found = analyses(slept_ms={1: 40})
    one, other = analyse_cluster(found), analyse_cluster(found[::-1])
    assert one.findings == other.findings
    assert [each.rank for each in other.ranks] == list(RANKS)


def test_what_all_ranks_have_is_reported_once():
    """Four ranks without garbage collections recorded: one refusal with all of them."""
    cluster = analyse_cluster(analyses())
    assert [each.ranks for each in cluster.not_evaluated if each.rule == "gc"] == [RANKS]


def test_one_rank_is_a_cluster_as_well():
    """Nothing to compare with: no waiting is evaluated, and the summary states that."""
    cluster = analyse_cluster(analyses()[:1])
    assert cluster.groups == ()
    assert "waiting in collectives" in {each.rule for each in cluster.not_evaluated}


def test_collectives_have_their_bandwidth():
    """An all-reduce of 4 MB in 20 ms among four: 1.5 times 209 MB/s on each link."""
    (total,) = analyse_cluster(analyses()).collectives
    assert (total.kind, total.count, total.bytes) == ("all_reduce", STEPS, STEPS * 4 << 20)
    assert total.bus_bandwidth == pytest.approx(1.5 * (4 << 20) / 0.02, rel=0.01)


def test_groups_of_one_size_that_share_no_rank_are_a_family():
    """Of 8 ranks in 2 x 4: rows are one kind, columns of two are too small, all ranks are no group at all."""

    class AnalysisWithGroups:
        metadata = TraceMetadata(
            groups={"a": (0, 1, 2, 3), "b": (4, 5, 6, 7), "c": (0, 4), "all": tuple(range(8)), "d": (2, 3, 4, 5)}
        )

    found = families([AnalysisWithGroups], list(range(8)))
    assert {name: codes.tolist() for name, codes in found.items()} == {
        "size 4, 1": [0, 0, 0, 0, 1, 1, 1, 1],
        "size 4, 2": [NO_GROUP, NO_GROUP, 0, 0, 0, 0, NO_GROUP, NO_GROUP],
    }
