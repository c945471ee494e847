"""Waiting for a CPU is a cause only as far as it prolongs work that the peers do as well."""

from dataclasses import replace

import pytest

from lockstep.contracts.messages import HostSpan
from lockstep.diagnosis.cpu_share import captured_excess_ns, contention_beyond_peers
from lockstep.diagnosis.root_cause import causes_beyond_peers
from tests.diagnosis.summaries import STEPS, summary

STEP_MS = 100
STEP_NS = STEP_MS * 1e6


def rank(number, *, standing_ms, waiting_ms, **host):
    """Return a rank of a step of 100 ms that stands in collectives and waits for a CPU so long of it."""
    made = summary(number, ("train", STEP_MS - standing_ms, ("wait for collectives", standing_ms)))
    span_ns = 20 * STEP_MS * 10**6
    counted = {"cores": 2, "others_cores": 0.0, "throttled_ns": 0} | host
    host_span = HostSpan(span_ns=span_ns, run_queue_wait_ns=round(waiting_ms / STEP_MS * span_ns), **counted)
    return replace(made, host=host_span)


def cost_ms(suspect, *peers):
    """Return what contention costs the suspect a step, None where it is not reported."""
    found = contention_beyond_peers(suspect, peers)
    return found[0].lost_ns / STEPS / 1e6 if found else None


def test_a_rank_with_strangers_on_its_core_has_their_cost():
    """10 ms of work take 90 ms on a crowded core, and 12 ms elsewhere: the difference is contention, by name."""
    suspect = rank(2, standing_ms=10, waiting_ms=80, cores=1, others_cores=0.9, busiest=[("burner", 0.9)])
    peers = [rank(each, standing_ms=88, waiting_ms=2) for each in (0, 1)]
    assert cost_ms(suspect, *peers) == pytest.approx(78, abs=0.1)
    (found,) = causes_beyond_peers("compute", [suspect], peers, excess_ns=0.78 * STEP_NS)
    assert (found.cause, found.bottleneck, found.subject) == ("cpu_contention", "cpu", "burner")
    assert any("burner uses 0.9 cores" in sentence for sentence in found.evidence)


def test_a_rank_that_works_more_waits_more_and_has_another_cause():
    """On a crowded node every ms of work costs 2 ms of waiting: ten times the work is ten times the waiting."""
    suspect = rank(2, standing_ms=10, waiting_ms=60)
    peers = [rank(each, standing_ms=91, waiting_ms=6) for each in (0, 1)]
    assert cost_ms(suspect, *peers) is None


def test_time_on_a_cpu_is_counted_where_the_node_can():
    """On a busy node peers wait for a CPU while they stand in collectives: what they work is what was counted."""
    span_ns = 20 * STEP_MS * 10**6
    suspect = rank(2, standing_ms=0, waiting_ms=88, on_cpu_ns=span_ns // 10)
    peers = [rank(each, standing_ms=80, waiting_ms=27, on_cpu_ns=span_ns // 10) for each in (0, 1)]
    assert cost_ms(suspect, *peers) == pytest.approx(88 - 27, abs=0.1)
    assert cost_ms(*(replace(each, host=replace(each.host, on_cpu_ns=None)) for each in (suspect, *peers))) is None


def test_waiting_of_the_work_that_is_more_does_not_count():
    """Of a rank that works three times as much only the third is compared that its peers work as well."""
    suspect = rank(2, standing_ms=10, waiting_ms=60)
    peer = rank(0, standing_ms=85, waiting_ms=5)
    assert cost_ms(suspect, peer) == pytest.approx(60 / 3 - 5, abs=0.1)


def test_a_limit_of_the_control_group_counts_beyond_that_of_the_peers():
    """A throttled rank waits for no CPU that others hold; what counts is how much more it is throttled."""
    suspect = rank(2, standing_ms=10, waiting_ms=0, throttled_ns=600 * 10**6)
    peer = rank(0, standing_ms=50, waiting_ms=0, throttled_ns=100 * 10**6)
    assert cost_ms(suspect, peer) == pytest.approx(25, abs=0.1)


def test_the_captured_excess_is_what_the_peers_stand_longer():
    """Steps are alike on all ranks: who stands 60 ms shorter in collectives worked 60 ms longer; no one, without peers."""
    suspect = rank(2, standing_ms=5, waiting_ms=0)
    peers = [rank(each, standing_ms=standing_ms, waiting_ms=0) for each, standing_ms in ((0, 60), (1, 65), (3, 80))]
    assert captured_excess_ns(suspect, peers) == pytest.approx(60e6)
    assert captured_excess_ns(peers[0], [suspect]) == pytest.approx(-55e6)
    unread = replace(peers[0], window_ns=0, steps=0, tree=[])
    assert captured_excess_ns(suspect, []) == captured_excess_ns(suspect, [unread]) == 0


def test_without_counts_there_is_no_answer():
    """A suspect or peers of a node that does not count, and spans of no length, show nothing."""
    crowded = rank(2, standing_ms=10, waiting_ms=80)
    idle = rank(0, standing_ms=90, waiting_ms=0)
    assert cost_ms(crowded) is None
    assert cost_ms(crowded, replace(idle, host=None)) is None
    assert cost_ms(replace(crowded, host=None), idle) is None
    assert cost_ms(replace(crowded, host=HostSpan(span_ns=0, run_queue_wait_ns=5)), idle) is None
    assert cost_ms(replace(crowded, host=HostSpan(span_ns=5)), idle) is None


@pytest.mark.parametrize("wrong_ns", [-(1 << 62), 1 << 62])
def test_counts_that_cannot_be_are_cut(wrong_ns):
    """A node that reports more waiting than time, or less than none, gives a cost between nothing and the window."""
    suspect = rank(2, standing_ms=10, waiting_ms=80)
    wrong = replace(suspect, host=replace(suspect.host, run_queue_wait_ns=wrong_ns, throttled_ns=wrong_ns))
    assert 0 <= (cost_ms(wrong, rank(0, standing_ms=90, waiting_ms=0)) or 0) <= STEP_MS


def test_what_ranks_report_by_themselves_is_compared_and_not_added():
    """Suspect and peers report strangers on their cores: the cause costs what it prolongs, once."""
    crowded = {"cores": 1, "others_cores": 0.9, "busiest": [("burner", 0.9)]}
    suspect = rank(2, standing_ms=10, waiting_ms=80, **crowded)
    peers = [rank(each, standing_ms=60, waiting_ms=30, **crowded) for each in (0, 1)]
    reported = [
        replace(each, findings=contention_beyond_peers(each, [rank(9, standing_ms=99, waiting_ms=0)]))
        for each in (suspect, *peers)
    ]
    assert [each.cause for rank_ in reported for each in rank_.findings] == ["cpu_contention"] * 3
    (found,) = causes_beyond_peers("compute", reported[:1], reported[1:], excess_ns=0.5 * STEP_NS)
    assert (found.cause, found.lost_ns / 1e6) == ("cpu_contention", pytest.approx(cost_ms(suspect, *peers), abs=0.1))
