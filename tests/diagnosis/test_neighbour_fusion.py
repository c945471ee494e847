"""What fusing collectives with their neighbours saves, from sizes and bandwidths of a trace."""

import numpy as np
import pytest

from lockstep.contracts.finding import Finding, NotEvaluated
from lockstep.diagnosis.communication_causes.collectives import RankCollectives
from lockstep.diagnosis.neighbour_fusion import fusion_saving, with_fusion_gain
from lockstep.diagnosis.parallelism import POOR_OVERLAP
from lockstep.diagnosis.remedies import advise_finding, table
from lockstep.simulator.hardware.collectives import ALL_GATHER, ALL_REDUCE, SEND
from lockstep.simulator.hardware.intracard import fusion_gain_ratio

A100 = "NVIDIA A100-SXM4-80GB"
GROUP = ("tp", (0, 1, 2, 3))
WINDOW_NS = (0, 100_000_000)
MS = 1_000_000


def collectives(*rows, rank=0, size=4):
    """Return collectives of (kind, start ms, duration ms, bytes)."""
    return RankCollectives(
        rank=rank,
        kinds=[kind for kind, *_ in rows],
        groups=[GROUP] * len(rows),
        start_ns=np.array([row[1] * MS for row in rows], np.int64),
        duration_ns=np.array([row[2] * MS for row in rows], np.int64),
        bytes=np.array([row[3] for row in rows], np.int64),
        sequence=np.full(len(rows), -1, np.int64),
        group_sizes={GROUP: size},
    )


def overlap(lost_ns=30 * MS):
    return Finding(bottleneck="parallel", cause=POOR_OVERLAP, ranks=(0,), evidence=("e",), lost_ns=lost_ns)


def test_the_saving_is_the_papers():
    """Saved over unfused is equation 11 for the ranks of the group, whatever the sizes."""
    saving = fusion_saving(
        collectives((ALL_GATHER, 0, 2, 400_000_000), (ALL_GATHER, 10, 9, 100_000_000)), WINDOW_NS, A100
    )
    assert saving.link_bytes_per_second == pytest.approx(0.75 * 400e6 / 2e-3)
    ratio = fusion_gain_ratio(saving.memory_bytes_per_second, saving.link_bytes_per_second)
    assert 1 - saving.fused_s / saving.unfused_s == pytest.approx(ratio)
    assert saving.saved_ns == pytest.approx(500e6 / saving.memory_bytes_per_second * 1e9, rel=1e-6)


@pytest.mark.parametrize(("size", "expected"), [(2, 2 / (3 + 2 * 0.75)), (4, 0.5), (8, 8 / (9 + 8 * 0.75))])
def test_equation_11_for_other_groups(size, expected):
    """With four entities and three quarters of the bandwidth it is the paper's half."""
    assert fusion_gain_ratio(75e9, 100e9, entities=size) == pytest.approx(expected)


def test_an_all_reduce_is_two_halves():
    """It saves twice what its gather alone does, and its size counts once for the link."""
    half = fusion_saving(collectives((ALL_GATHER, 0, 2, 400_000_000)), WINDOW_NS, A100)
    whole = fusion_saving(collectives((ALL_REDUCE, 0, 4, 400_000_000)), WINDOW_NS, A100)
    assert whole.saved_ns == pytest.approx(2 * half.saved_ns, abs=1)
    assert whole.link_bytes_per_second == pytest.approx(half.link_bytes_per_second)


@pytest.mark.parametrize(
    ("made", "device"),
    [
        (collectives((ALL_GATHER, 0, 2, 400)), "Some device"),
        (collectives((ALL_GATHER, 0, 2, -1)), A100),
        (collectives((SEND, 0, 2, 400)), A100),
        (collectives((ALL_GATHER, 200, 2, 400)), A100),
        (collectives((ALL_GATHER, 0, 2, 400), size=1), A100),
    ],
    ids=["memory unknown", "bytes unknown", "nothing to fuse", "outside the window", "alone"],
)
def test_nothing_is_invented(made, device):
    """Where sizes, group or memory are not known, there is no saving and the finding stays as it is."""
    assert fusion_saving(made, WINDOW_NS, device) is None
    assert with_fusion_gain([overlap()], [(made, WINDOW_NS, device)]) == [overlap()]


def test_the_advice_states_its_gain():
    """The remedy that fuses has the saving as its share of the window, on the rank that saves least."""
    ranks = [
        (collectives((ALL_REDUCE, 0, 4, 10_000_000_000), rank=0), WINDOW_NS, A100),
        (collectives((ALL_REDUCE, 0, 4, 4_000_000_000), rank=1), WINDOW_NS, A100),
    ]
    (found,) = with_fusion_gain([overlap()], ranks)
    assert found.fused_ns == fusion_saving(*ranks[1]).saved_ns
    assert "fusing 1 collective of rank 1" in found.evidence[-1]
    advised = advise_finding(found, WINDOW_NS[1])
    gains = {each.suggestion.split()[0]: each.predicted_gain_ratio for each in advised.advice}
    assert gains["Fuse"] == pytest.approx(found.fused_ns / WINDOW_NS[1])
    assert gains["Split"] == pytest.approx(0.3)
    assert gains["Let"] is None


def test_fusing_never_gives_more_than_is_lost():
    """What can be hidden bounds what fusing may give back; without a saving the advice has no gain."""
    (found,) = with_fusion_gain(
        [overlap(lost_ns=MS)], [(collectives((ALL_REDUCE, 0, 4, 10_000_000_000)), WINDOW_NS, A100)]
    )
    gains = {each.suggestion: each.predicted_gain_ratio for each in advise_finding(found, WINDOW_NS[1]).advice}
    assert set(gains.values()) == {0.01, None}
    plain = {each.suggestion: each.predicted_gain_ratio for each in advise_finding(overlap(), WINDOW_NS[1]).advice}
    assert not any(suggestion.startswith("Fuse") for suggestion in plain)


def test_other_answers_pass():
    """A refusal stays a refusal, and no finding stays none."""
    refused = NotEvaluated(rule=POOR_OVERLAP, reason="r")
    assert with_fusion_gain(refused, []) is refused
    assert with_fusion_gain([], [(collectives((ALL_GATHER, 0, 2, 400)), WINDOW_NS, A100)]) == []


def test_the_remedy_is_of_poor_overlap_only():
    """One row of the table fuses."""
    assert [row.causes for row in table().remedies if row.removes == "fused"] == [(POOR_OVERLAP,)]
