"""Which nodes may be about to deliver what they have spooled."""

import pytest

from coordinator.intake import presence
from coordinator.intake.presence import NodePresence

TIMES = {"grace_seconds": 5.0, "rejoin_seconds": 45.0}


def noted(*notes):
    """Return what is known after notes of (second, is_alive); None is an announcement."""
    known = NodePresence()
    known.note("another", 0, is_alive=True)
    for second, is_alive in notes:
        if is_alive is None:
            known.note_announcement("n", second)
        else:
            known.note("n", second, is_alive=is_alive)
    return known


@pytest.mark.parametrize(
    ("notes", "until_s"),
    [
        ([(100, True)], 105),
        ([(100, True), (110, True), (120, True)], 105),
        ([(100, True), (200, False)], 245),
        ([(100, True), (200, False), (230, False)], 275),
        ([(100, True), (200, False), (240, True)], 245),
        ([(100, None)], 105),
        ([(100, None), (103, True)], 108),
        ([(100, True), (150, None)], 105),
    ],
)
def test_a_node_has_its_time_to_return_and_then_to_deliver(notes, until_s):
    """It is awaited from when it was last called away, and for the grace period after it has come back."""
    known = noted(*notes)
    assert known.may_deliver("n", until_s - 0.1, **TIMES)
    assert not known.may_deliver("n", until_s, **TIMES)


def test_while_every_node_is_away_each_may_deliver():
    """The broker is; whose records are missing shows when it is back. Then each node has its time again."""
    known = NodePresence()
    for node in ("a", "b"):
        known.note(node, 10, is_alive=True)
        known.note(node, 20, is_alive=False)
    assert known.may_deliver("a", 10_000, **TIMES)
    for node in ("a", "b"):
        known.note(node, 10_000, is_alive=False)
    known.note("a", 10_001, is_alive=True)
    assert known.may_deliver("b", 10_044, **TIMES)
    assert not known.may_deliver("b", 10_045, **TIMES)
    known.note("a", 10_046, is_alive=False)
    assert known.may_deliver("b", 10_046, **TIMES)


def test_of_an_unknown_node_nothing_is_expected():
    """Nodes of a step log have no heartbeats."""
    assert not NodePresence().may_deliver("n", 0.0, **TIMES)


def test_only_heartbeats_make_a_node_alive():
    """An announcement is retained and may be of a node that has gone; a last will ends a life."""
    known = NodePresence()
    known.note_announcement("announced", 0.0)
    for node, is_alive in (("a", True), ("b", True), ("a", False)):
        known.note(node, 1.0, is_alive=is_alive)
    assert known.alive == {"b"}


def test_invented_nodes_cost_bounded_memory(monkeypatch):
    """Beyond the limit nodes are not followed; those that are go on."""
    monkeypatch.setattr(presence, "NODES_MAX", 2)
    known = NodePresence()
    for node in ("a", "b", "c"):
        known.note(node, 0.0, is_alive=True)
    known.note_announcement("d", 0.0)
    known.note("a", 1.0, is_alive=False)
    assert known.alive == {"b"}
    assert not known.may_deliver("d", 0.0, **TIMES)
