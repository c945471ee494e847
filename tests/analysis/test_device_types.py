"""Ranks with devices of different types are not compared: each type by itself, and the analysis states that."""

from dataclasses import replace

import pytest

from lockstep.analysis.cluster import analyse_cluster
from lockstep.analysis.device_types import device_types
from lockstep.analysis.rank import analyse_rank
from lockstep.analysis.summary import summary_of
from tests.analysis.job import FORWARD, RANKS, SLEEP, rank_columns


def analyses(devices, **options):
    """Return a rank for each (vendor, device)."""
    found = []
    for rank, (vendor, device) in enumerate(devices):
        analysis = analyse_rank(rank_columns(rank, **options), rank=rank)
        metadata = replace(analysis.metadata, vendor=vendor, devices=(device,) if device else ())
        found.append(replace(analysis, metadata=metadata))
    return found


def notes(cluster):
    return [
        (each.ranks, each.reason) for each in cluster.not_evaluated if "compared with each other only" in each.reason
    ]


@pytest.mark.parametrize(
    ("devices", "types"),
    [
        ([("nvidia", "H100")] * 4, [("H100", (0, 1, 2, 3))]),
        ([("nvidia", "H100"), ("nvidia", "A100")], [("A100", (1,)), ("H100", (0,))]),
        ([("nvidia", "H100"), ("nvidia", ""), ("nvidia", "")], [("H100", (0, 1, 2))]),
        ([("nvidia", "H100"), ("nvidia", "A100"), ("nvidia", "")], [("A100", (1,)), ("H100", (0,)), ("nvidia", (2,))]),
        ([("ascend", ""), ("cpu", ""), ("ascend", "")], [("ascend", (0, 2)), ("cpu", (1,))]),
        ([("", ""), ("", "")], [("unknown device", (0, 1))]),
    ],
)
def test_types(devices, types):
    """By vendor and name; who names none belongs to its vendor's only type."""
    assert [(each.name, each.numbers) for each in device_types(analyses(devices))] == types


def test_equal_devices_are_compared_as_ever():
    """No note, one localisation."""
    cluster = analyse_cluster(analyses([("nvidia", "H100")] * 4, slept_ms={2: 40}))
    assert notes(cluster) == []
    assert list(cluster.localisations) == ["H100"]
    assert (FORWARD, (2,)) in {(each.subject, each.ranks) for each in cluster.findings}


def test_a_type_of_its_own_is_no_outlier():
    """The CPU's rank among three Ascend ones is held against expected ranges alone, and the note states that."""
    found = analyses([("ascend", "")] * 3 + [("cpu", "")], slept_ms={3: 40})
    cluster = analyse_cluster(found)
    assert notes(cluster) == [
        ((0, 1, 2), "ranks with ascend were compared with each other only: rank 3 has cpu"),
        ((3,), "ranks with cpu were compared with each other only: ranks 0, 1, 2 have ascend"),
    ]
    assert list(cluster.localisations) == ["ascend", "cpu"]
    alone = cluster.localisations["cpu"]
    assert (alone.workers, alone.has_peers) == (1, False)
    assert not any(len(each.unlike) or len(each.outliers) for each in alone.abnormal)
    assert not any(3 in each.ranks for each in cluster.localisations["ascend"].abnormal)
    mixed = analyse_cluster(analyses([("ascend", "")] * 4, slept_ms={3: 40}))
    assert any(3 in each.unlike or 3 in each.outliers for each in mixed.localisations["ascend"].abnormal)


def test_each_type_is_localised_by_itself():
    """Inside its own type a sleeping rank is found, and the summary names that type."""
    devices = [("nvidia", "H100"), ("nvidia", "A100")] * 4
    found = []
    for number in range(8):
        analysis = analyse_rank(rank_columns(number % len(RANKS), slept_ms={2: 40}), rank=number)
        vendor, device = devices[number // 4]
        found.append(replace(analysis, metadata=replace(analysis.metadata, vendor=vendor, devices=(device,))))
    cluster = analyse_cluster(found)
    localisation = summary_of(cluster, {}, [])["localisation"]
    assert {
        (each["device_type"], tuple(each["outliers"] or each["ranks"]))
        for each in localisation
        if each["function"] == SLEEP
    } == {
        ("H100", (2,)),
        ("A100", (6,)),
    }
