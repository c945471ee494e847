"""The list of exporters for Prometheus' discovery."""

import pytest

from coordinator.intake.refusals import Refusals
from coordinator.intake.targets import GONE_KEPT_S, Targets
from lockstep.contracts.messages import NodeAlive


def alive(node="n0", address="n0.lan:9855", *, is_alive=True, scheme="http"):
    return NodeAlive(node=node, alive=is_alive, unix_ns=0, stream_id=1, address=address, scheme=scheme)


def listed(targets, now_s=0.0):
    return {each["labels"]["__meta_lockstep_node"]: each for each in targets.listed(now_s)}


def test_a_target_is_where_the_exporter_announces_it():
    """Address and scheme in the labels that Prometheus reads, ordered by node; a later word replaces an earlier one."""
    targets = Targets()
    targets.receive(alive("n1", "n1.lan:9855", scheme="https"), 0.0)
    targets.receive(alive("n0", "10.0.0.7:1"), 0.0)
    targets.receive(alive("n0", "[fe80::1]:9855"), 1.0)
    assert targets.listed(1.0) == [
        {
            "targets": ["[fe80::1]:9855"],
            "labels": {"__scheme__": "http", "__meta_lockstep_node": "n0", "__meta_lockstep_alive": "true"},
        },
        {
            "targets": ["n1.lan:9855"],
            "labels": {"__scheme__": "https", "__meta_lockstep_node": "n1", "__meta_lockstep_alive": "true"},
        },
    ]


def test_who_is_gone_stays_for_an_hour():
    """A failing scrape is the alarm; a target that comes back is alive again, and its time begins again."""
    targets = Targets()
    targets.receive(alive(), 0.0)
    targets.receive(alive(is_alive=False), 10.0)
    targets.receive(alive(is_alive=False), 20.0)  # the last will is retained: it may come again
    assert listed(targets, 30.0)["n0"]["labels"]["__meta_lockstep_alive"] == "false"
    targets.receive(alive(), 40.0)
    targets.receive(alive(is_alive=False), 50.0)
    assert listed(targets, 50.0 + GONE_KEPT_S)
    assert not listed(targets, 51.0 + GONE_KEPT_S)


@pytest.mark.parametrize(
    "address", ["", "n0", "n0:", ":9855", "http://n0:9855", "n0:9855/x", "n 0:1", "n0:123456", "a\n:1"]
)
def test_what_is_no_address_is_no_target(address):
    """One bad target makes Prometheus refuse all; exporters of before show nothing at all."""
    targets = Targets()
    targets.receive(alive(address=address), 0.0)
    targets.receive(alive("n1", scheme="ftp"), 0.0)
    assert targets.listed(0.0) == []


def test_an_address_that_becomes_none_is_gone():
    """An exporter that was replaced by an older one can no longer be found by this list."""
    targets = Targets()
    targets.receive(alive(), 0.0)
    targets.receive(alive(address=""), 1.0)
    assert listed(targets, 2.0)["n0"]["labels"]["__meta_lockstep_alive"] == "false"


def test_an_invented_node_gives_way_to_a_real_one():
    """Who sends heartbeats keeps its place; who sends none for a minute loses it to another node, and only then."""
    refusals = Refusals()
    targets = Targets(refusals, nodes_max=2)
    targets.receive(alive("invented"), 0.0)
    targets.receive(alive("n0"), 1.0)
    targets.receive(alive("n1"), 2.0)
    assert set(listed(targets, 2.0)) == {"invented", "n0"}
    assert refusals.counts["node"] == 1
    for now_s in range(10, 70, 10):
        targets.receive(alive("n0"), float(now_s))
        targets.receive(alive("n1"), float(now_s))
    assert set(listed(targets, 60.0)) == {"invented", "n0"}
    targets.receive(alive("n1"), 61.0)
    assert set(listed(targets, 61.0)) == {"n0", "n1"}
    targets.receive(alive("n2"), 62.0)
    assert set(listed(targets, 62.0)) == {"n0", "n1"}


def test_a_node_that_was_never_seen_to_go_is_forgotten_too():
    """The broker's retained heartbeat of a machine that is no more comes with each restart of the coordinator."""
    targets = Targets()
    targets.receive(alive(), 0.0)
    assert listed(targets, GONE_KEPT_S)
    assert not listed(targets, GONE_KEPT_S + 1)
