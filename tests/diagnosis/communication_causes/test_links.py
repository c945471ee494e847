"""Transfers over links as the vendor reports them."""

import json

import numpy as np
import pytest

from lockstep.contracts.finding import NotEvaluated
from lockstep.diagnosis.communication_causes.links import (
    LinkTransfers,
    evaluate_links,
    find_link_contention,
    find_misaligned_packets,
    find_retransmission,
    find_small_packets,
    link_transfers_of,
)
from lockstep.diagnosis.communication_causes.matching import match_collectives
from lockstep.diagnosis.communication_causes.vendor_collectives import collectives_of_communication
from lockstep.diagnosis.communication_causes.waiting import group_waiting, transmission_ns
from lockstep.trace.ascend.communication import load_communication
from lockstep.trace.intervals import Intervals

MS = 1_000_000
WINDOW_NS = 100 * MS


def transfers(*rows, packets=(), during=None) -> LinkTransfers:
    """Return transfers of (link, bytes, ns) and packets of (transfer, bytes, count)."""
    return LinkTransfers(
        rank=4,
        operators=[f"op{at}" for at in range(len(rows))],
        links=[row[0] for row in rows],
        bytes=np.array([row[1] for row in rows], np.int64),
        transit_ns=np.array([row[2] for row in rows], np.int64),
        packet_transfer=np.array([row[0] for row in packets], np.int64),
        packet_bytes=np.array([row[1] for row in packets], np.int64),
        packet_count=np.array([row[2] for row in packets], np.int64),
        during_compute=None if during is None else np.array(during, np.bool_),
    )


def test_a_link_that_waits_is_not_slow():
    """622 MB at 19.06 GB/s over HCCS: the elapsed time of that all-reduce (121 ms) was waiting, not the link."""
    moved = transfers(("HCCS", 622 * MS, round(622 / 19.06 * MS)), packets=[(0, 20_971_520, 29)])
    assert evaluate_links(moved, 121 * MS) == []
    assert find_small_packets(moved, 121 * MS) == []


@pytest.mark.parametrize(("rate", "found"), [(14.41, 0), (14.39, 1)])
def test_links_against_the_vendors_figure(rate, found):
    """80 % of 18 GB/s are 14.4."""
    answer = evaluate_links(transfers(("HCCS", round(rate * 50 * MS), 50 * MS)), WINDOW_NS)
    assert len(answer) == found
    if found:
        assert (answer[0].cause, answer[0].ranks, answer[0].subject) == ("slow_link", (4,), "HCCS")


def test_the_sum_of_links_is_evaluated_alone_only():
    """SDMA repeats HCCS: one finding, not two; alone it is evaluated itself."""
    slow = 100 * MS, 50 * MS
    both = evaluate_links(transfers(("HCCS", *slow), ("SDMA", *slow)), WINDOW_NS)
    assert [each.subject for each in both] == ["HCCS"]
    assert [each.subject for each in evaluate_links(transfers(("SDMA", *slow)), WINDOW_NS)] == ["SDMA"]
    assert evaluate_links(transfers(("HCCS", *slow)), 10**4 * MS) == []
    assert isinstance(evaluate_links(transfers(("UB", *slow)), WINDOW_NS), NotEvaluated)


def test_small_packets_on_a_slow_link():
    """Hermes' VGG16: 12.81 MB packets on average, 53 % of the link. The same packets at full speed are well."""
    packets = [(0, 12_810_000, 20)]
    slow = transfers(("HCCS", 256_200_000, round(256_200_000 / (0.53 * 18))), packets=packets)
    (finding,) = find_small_packets(slow, WINDOW_NS)
    assert (finding.cause, finding.subject) == ("small_packets", "HCCS")
    assert "12.81 MB on average" in finding.evidence[0]
    assert find_small_packets(transfers(("HCCS", 256_200_000, 14_233_333), packets=packets), WINDOW_NS) == []


@pytest.mark.parametrize(("small", "found"), [(20, 0), (21, 1)])
def test_small_packets_by_count(small, found):
    """More than 20 % below 1 MB over RDMA."""
    packets = [(0, 999_999, small), (0, 1_000_000, 100 - small)]
    assert len(find_small_packets(transfers(("RDMA", 100 * MS, 50 * MS), packets=packets), WINDOW_NS)) == found
    assert isinstance(find_small_packets(transfers(("RDMA", 100 * MS, 50 * MS)), WINDOW_NS), NotEvaluated)


@pytest.mark.parametrize(("taken_ns", "found"), [(3_999_999_999, 0), (4_000_000_000, 1)])
def test_retransmission_takes_four_seconds(taken_ns, found):
    """One RDMA transfer of 4 s and more; other links do not retransmit."""
    answer = find_retransmission(transfers(("RDMA", MS, taken_ns), ("RDMA", MS, 9), ("HCCS", MS, 5 * 10**9)))
    assert len(answer) == found
    if found:
        assert (answer[0].cause, answer[0].subject, answer[0].lost_ns) == ("retransmission", "op0", taken_ns)
    assert isinstance(find_retransmission(transfers(("HCCS", MS, 9))), NotEvaluated)


def test_contention_of_sdma_with_computation():
    """Below 14.4 GB/s during computation; the same alone, or unknown, is none."""
    rows = [("SDMA", 100 * MS, 10 * MS), ("SDMA", 180 * MS, 10 * MS), ("SDMA", 50 * MS, 10 * MS)]
    (finding,) = find_link_contention(transfers(*rows, during=[True, True, False]), WINDOW_NS)
    assert finding.cause == "communication_contention"
    assert "1 of 2 SDMA transfers" in finding.evidence[0]
    assert find_link_contention(transfers(*rows, during=[False, True, False]), WINDOW_NS) == []
    assert find_link_contention(transfers(*rows, during=[True, True, False]), 1000 * WINDOW_NS) == []
    assert isinstance(find_link_contention(transfers(*rows), WINDOW_NS), NotEvaluated)


@pytest.mark.parametrize(("alone_gb_per_s", "causes"), [(18, ["communication_contention"]), (9, ["slow_link"])])
def test_a_link_that_is_slow_alone_as_well_is_no_contention(alone_gb_per_s, causes):
    """9 GB/s during computation: contention where transfers alone have 18 GB/s, the link where they have 9 as well."""
    rows = [("SDMA", 90 * MS, 10 * MS)] * 3 + [("SDMA", alone_gb_per_s * 10 * MS, 10 * MS)] * 3
    moved = transfers(*rows, packets=[(0, 1000, 90)], during=[True] * 3 + [False] * 3)
    found = [*evaluate_links(moved, WINDOW_NS), *find_link_contention(moved, WINDOW_NS)]
    assert [each.cause for each in found] == causes
    assert bool(find_small_packets(moved, WINDOW_NS)) == (causes == ["slow_link"])


def test_a_transfer_that_was_tried_again_does_not_make_the_link_slow():
    """One of 4 s among transfers at full speed is retransmission; where all take as long the link is slow as well."""
    long, usual = ("RDMA", 64 * MS, 4_500 * MS), ("RDMA", 64 * MS, 5 * MS)
    assert evaluate_links(transfers(long, *[usual] * 8), 5_000 * MS) == []
    assert [each.cause for each in evaluate_links(transfers(long), 5_000 * MS)] == ["slow_link"]


def test_misaligned_packets_on_a_slow_link():
    """15,504 bytes are no multiple of 512; RDMA does not care."""
    packets = [(0, 15_504, 3), (0, 1024, 5)]
    (finding,) = find_misaligned_packets(transfers(("HCCS", 10 * MS, 50 * MS), packets=packets), WINDOW_NS)
    assert "3 of 8 packets" in finding.evidence[0]
    assert find_misaligned_packets(transfers(("RDMA", 10 * MS, 50 * MS), packets=packets), WINDOW_NS) == []
    assert find_misaligned_packets(transfers(("HCCS", 900 * MS, 50 * MS), packets=packets), WINDOW_NS) == []


def operator(elapse_ms, transit_ms, size_mb) -> dict:
    link = {
        "Transit Size(MB)": size_mb,
        "Transit Time(ms)": transit_ms,
        "Size Distribution": {str(size_mb): [1, transit_ms]},
    }
    times = {"Start Timestamp(us)": 1695115378810042.5, "Elapse Time(ms)": elapse_ms, "Transit Time(ms)": 0}
    return {"Communication Time Info": times, "Communication Bandwidth Info": {"HCCS": link}}


@pytest.mark.parametrize(("computed_ms", "during"), [((0, 80), False), ((0, 105), True), ((90, 200), True)])
def test_transfers_end_with_their_collectives(tmp_path, computed_ms, during):
    """121 ms of which the last 32.6 move data: what computes while the collective waits does not overlap the transfer."""
    path = tmp_path / "communication.json"
    path.write_text(json.dumps({"step1": {"collective": {"hcom_allReduce__170_1_1@42": operator(121.0, 32.6, 622)}}}))
    communication = load_communication(path)
    begin_ns, end_ns = (int(communication.start_ns[0]) + ms * MS for ms in computed_ms)
    computing = Intervals(np.array([begin_ns]), np.array([end_ns]))
    assert link_transfers_of(communication, 0, computing).during_compute.tolist() == [during]
    assert link_transfers_of(communication, 0).during_compute is None


def test_a_vendors_file_as_transfers_and_collectives(tmp_path):
    """The all-reduce that elapsed 34.6 and 121.0 ms: R on elapsed 0.357, the same transmission on both ranks."""
    transit_ms = 622 / 19.06
    ranks = {"0": operator(34.6, transit_ms, 622), "1": operator(121.0, transit_ms, 622)}
    path = tmp_path / "cluster_communication.json"
    path.write_text(json.dumps({"(0, 1)": {"step1": {"hcom_allReduce__170_1_1@42": ranks}}}))
    communication = load_communication(path)
    table = match_collectives([collectives_of_communication(communication, rank) for rank in (0, 1)])
    (waiting,) = group_waiting(table)
    assert (waiting.group, waiting.ranks) == (("42", (0, 1)), (0, 1))
    assert waiting.elapsed_ratio == pytest.approx(0.357, abs=1e-3)
    assert waiting.transit_ratio == pytest.approx(0)
    assert waiting.awaited.tolist() == [1, 0]
    assert transmission_ns(table) / MS == pytest.approx(transit_ms)
    moved = link_transfers_of(communication, 1)
    assert (moved.links, moved.bytes.tolist(), moved.packet_count.tolist()) == (["HCCS"], [622 * MS], [1])
    assert evaluate_links(moved, 200 * MS) == []
