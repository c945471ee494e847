"""When a value is evidence: beyond the peers, beyond itself before, by the thresholds; all else is none."""

from dataclasses import replace

import pytest

from coordinator.evidence.catalogue import EvidenceCatalogue, EvidenceCause, EvidenceCode, EvidenceQuery, EvidenceSource
from coordinator.evidence.compare import QueryValues, find_evidence
from coordinator.evidence.machines import Machine, hosts_of_devices

SUSPECT = Machine(ranks=(0,), is_suspect=True, hosts=frozenset({"n0"}))
PEERS = tuple(Machine(ranks=(rank,), is_suspect=False, hosts=frozenset({f"n{rank}"})) for rank in range(1, 6))
CAUSES = {
    "heat": EvidenceCause(title="Heat", advice="cool it"),
    "clock": EvidenceCause(title="Clock", advice="look at it", explained_by=("heat",)),
}
CATALOGUE = EvidenceCatalogue(
    sources={"dcgm": EvidenceSource(title="DCGM", scope="device", host="Hostname")}, causes=CAUSES, queries=()
)


def query(**more):
    values = {"name": "q", "source": "dcgm", "cause": "clock", "meaning": "Clock", "unit": "MHz", "query": "x"}
    return EvidenceQuery(**{**values, "compare": "below", "min_ratio": 0.05, **more})


def read(own, peers, asked=None):
    """Return what a query gave: (before, after) of the suspect, and of each peer."""
    both = {SUSPECT: own, **dict(zip(PEERS, peers, strict=False))}
    return QueryValues(
        query=asked or query(),
        before={machine: before for machine, (before, _) in both.items() if before is not None},
        after={machine: after for machine, (_, after) in both.items() if after is not None},
    )


def found(*values):
    return find_evidence(CATALOGUE, values, {"q": "https://graph"})


STEADY = [(1980.0, 1980.0)] * 5


def test_a_deviation_has_figures_ranks_advice_and_graph():
    """All that an operator reads of it."""
    (one,) = found(read((1980.0, 1410.0), STEADY))
    assert (one.cause, one.ranks, one.advice, one.link) == ("clock", (0,), "look at it", "https://graph")
    assert (one.suspects_before, one.suspects_after, one.peers_before, one.peers_after) == (1980, 1410, 1980, 1980)
    assert (
        one.text == "Clock: rank 0 on n0: 1,980 MHz before the onset, 1,410 MHz since; 5 peers: 1,980 MHz and 1,980 MHz"
    )


@pytest.mark.parametrize(
    ("own", "peers"),
    [
        ((1980.0, 1410.0), [(1980.0, 1410.0)] * 5),
        ((1410.0, 1410.0), STEADY),
        ((1980.0, 1900.0), STEADY),
        ((1980.0, 2300.0), STEADY),
        ((1980.0, 1800.0), [(1980.0, clock) for clock in (1500.0, 1700.0, 1980.0, 2200.0, 2400.0)]),
        ((1980.0, 1410.0), []),
        ((1980.0, None), STEADY),
    ],
    ids=["all", "from before", "too little", "other side", "peers scatter as much", "no peers", "no value"],
)
def test_what_is_no_evidence(own, peers):
    """What all show, what was so before, what noise explains, and what nothing can be compared with."""
    assert found(read(own, peers)) == ()


def test_without_a_value_from_before_the_peers_decide():
    """A run that is slow from its first step."""
    (one,) = found(read((None, 1410.0), STEADY))
    assert one.suspects_before is None
    assert "no value before the onset" in one.text


def test_a_limit_must_be_passed_too():
    """A host that is busier than others and not full waits for nothing."""
    busy = query(compare="above", min_difference=0.3, min_ratio=0.0, limit=0.7, unit="ratio")
    assert found(read((0.1, 0.5), [(0.1, 0.1)] * 5, busy)) == ()
    assert len(found(read((0.1, 0.8), [(0.1, 0.1)] * 5, busy))) == 1


def test_a_query_that_requires_a_cause_counts_with_it_alone_and_explains_it():
    """A warm device is no evidence; a warm device with a lower clock is, and then the clock is not named besides."""
    heat = query(name="t", cause="heat", meaning="Heat", unit="°C", compare="above", min_difference=5.0, min_ratio=0.0)
    warm = read((60.0, 88.0), [(60.0, 60.0)] * 5, EvidenceQuery(**_with(heat, requires="clock")))
    slow = read((1980.0, 1410.0), STEADY)
    assert found(warm) == ()
    assert [one.cause for one in found(warm, slow)] == ["heat"]


def _with(query, **more):
    return {name: getattr(query, name) for name in query.__dataclass_fields__} | more


def test_codes_are_new_numbers_and_named_by_the_table():
    """An old number is no news, and neither is one that half of the peers show since."""
    codes = {79: EvidenceCode(cause="heat", meaning="it is gone")}
    xid = query(compare="code", min_ratio=0.0, codes=codes, unit="XID")
    (known,) = found(read((0.0, 79.0), [(0.0, 0.0)] * 5, xid))
    assert (known.cause, known.meaning) == ("heat", "it is gone")
    (other,) = found(read((0.0, 13.0), [(0.0, 0.0)] * 5, xid))
    assert (other.cause, other.meaning) == ("clock", "Clock: 13")
    assert found(read((79.0, 79.0), [(0.0, 0.0)] * 5, xid)) == ()
    assert found(read((0.0, 79.0), [(0.0, 79.0)] * 3 + [(0.0, 0.0)] * 2, xid)) == ()


def test_a_host_of_a_suspect_is_no_peer():
    """Ranks on the suspect's host share what its host shows."""
    device = {"hosts": frozenset({"n0"})}
    devices = [
        Machine(ranks=(0,), is_suspect=True, local_rank=0, uuid="GPU-0", **device),
        Machine(ranks=(1,), is_suspect=False, local_rank=1, **device),
        Machine(ranks=(2,), is_suspect=False, hosts=frozenset({"n1"})),
    ]
    first, second = hosts_of_devices(devices)
    assert (first.ranks, first.is_suspect, first.uuid) == ((0,), True, "")
    assert (second.ranks, second.is_suspect) == ((2,), False)


def test_a_slow_link_is_named_by_communicator_and_operation():
    """Each pair is compared with the same pair of the peers; a bandwidth reads as one."""
    asked = query(unit="bytes/s", meaning="Bus bandwidth", by=("communicator", "operation"))
    slow = replace(read((400e9, 40e9), [(400e9, 400e9)] * 5, asked), part="tp AllGather")
    usual = replace(read((20e9, 20e9), [(20e9, 20e9)] * 5, asked), part="dp AllReduce")
    (one,) = found(slow, usual)
    assert one.text.startswith(
        "Bus bandwidth (tp AllGather): rank 0 on n0: 400 GB/s before the onset, 40 GB/s since; 5 peers: 400 GB/s"
    )
    assert found(replace(read((400e9, 40e9), [(400e9, 40e9)] * 5, asked), part="tp AllGather")) == ()
