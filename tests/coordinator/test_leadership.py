"""Who orders captures: one of those that are alive, with a term above all before it."""

from coordinator.leadership import SETTLE_S, SILENT_S, Leadership
from exporter.capturing.captures import Candidate, Captures
from lockstep.contracts.capture import OPTIMIZER, StepBoundary
from lockstep.contracts.limits import TERM_AHEAD_SECONDS_MAX
from lockstep.contracts.messages import CaptureRequest, CoordinatorAlive

NOW = 1_800_000_000.0


def connected(name: str, incarnation: int) -> Leadership:
    leadership = Leadership(name, incarnation)
    leadership.connected(NOW)
    return leadership


def test_the_first_started_leads_and_the_other_follows():
    """Both know of each other: one leads, by a rule that both apply alike."""
    first, second = connected("a", 1), connected("b", 2)
    first.take(second.heartbeat(NOW), NOW)
    second.take(first.heartbeat(NOW), NOW)
    assert first.update(NOW + SETTLE_S)
    assert not second.update(NOW + SETTLE_S)
    assert (first.leads, second.leads) == (True, False)
    assert not first.update(NOW + SETTLE_S + 1)


def test_no_one_leads_before_the_others_could_be_known():
    """Retained heartbeats of others come first; without a connection no one leads at all."""
    alone = connected("a", 1)
    assert not alone.update(NOW + SETTLE_S / 2)
    assert alone.update(NOW + SETTLE_S)
    alone.disconnected()
    assert not alone.leads
    assert not alone.update(NOW + 100)


def test_a_successor_takes_a_higher_term():
    """After the last will of the leader the other one leads, with a number that fences the former one off."""
    first, second = connected("a", 1), connected("b", 2)
    second.take(first.heartbeat(NOW), NOW)
    first.update(NOW + SETTLE_S)
    second.take(first.heartbeat(NOW + SETTLE_S), NOW + SETTLE_S)
    assert not second.update(NOW + SETTLE_S)
    second.take(first.heartbeat(NOW + 3, alive=False), NOW + 3)
    assert second.update(NOW + 3)
    assert second.term > first.term


def test_a_silent_leader_is_no_leader():
    """Should the broker forget the last will, silence states the same."""
    first, second = connected("a", 1), connected("b", 2)
    second.take(first.heartbeat(NOW), NOW)
    assert not second.update(NOW + SETTLE_S)
    assert second.update(NOW + SILENT_S)
    assert second.peers(NOW + SILENT_S) == 0


def test_terms_never_fall_when_the_broker_forgot_everything():
    """A term is at least the unix time: nodes that remember an old one obey the new leader."""
    old = connected("a", 1)
    old.update(NOW + SETTLE_S)
    new = Leadership("b", 2)
    new.connected(NOW + 1000)
    new.update(NOW + 1000 + SETTLE_S)
    assert new.term > old.term


def test_our_own_heartbeat_makes_no_peer():
    """The broker sends a coordinator its own retained message too."""
    alone = connected("a", 2)
    alone.take(CoordinatorAlive(coordinator="a", alive=False, incarnation=1, unix_ns=0, term=9), NOW)
    assert alone.peers(NOW) == 0
    assert alone.update(NOW + SETTLE_S)
    assert alone.term > 9


def test_a_leader_that_was_suspended_leads_under_a_term_of_its_own():
    """Another one led meanwhile: what the first one orders from now on must not pass under that one's term."""
    first, second = connected("a", 1), connected("b", 2)
    first.update(NOW + SETTLE_S)
    second.take(first.heartbeat(NOW + SETTLE_S), NOW + SETTLE_S)
    assert second.update(NOW + SETTLE_S + SILENT_S)
    resumed_s = NOW + 2 * SILENT_S
    first.take(second.heartbeat(resumed_s), resumed_s)
    assert not first.leads
    assert first.update(resumed_s)
    assert first.term > second.term
    second.take(first.heartbeat(resumed_s), resumed_s)
    assert not second.update(resumed_s)
    assert not second.leads


def test_a_term_that_no_leader_can_have_is_left_out():
    """Terms are unix seconds: one from a hundred years ahead is no leader's, whichever client sends it, and moves nothing."""
    first, second = connected("a", 1), connected("b", 2)
    assert first.update(NOW + SETTLE_S)
    term = first.term
    for forged in (int(NOW + SETTLE_S) + TERM_AHEAD_SECONDS_MAX + 1, 1 << 62, (1 << 63) - 1):
        message = CoordinatorAlive(coordinator="b", alive=True, incarnation=2, unix_ns=0, term=forged)
        assert not first.take(message, NOW + SETTLE_S)
        assert not first.note_term(forged, NOW + SETTLE_S)
        assert (first.leads, first.term) == (True, term)
    assert first.peers(NOW + SETTLE_S) == 1
    assert second.note_term(term, NOW + SETTLE_S)


def test_a_leader_steps_above_a_term_that_a_node_has_seen():
    """Only nodes may know of it: the order of a coordinator that is gone, and the broker forgot its heartbeat."""
    leader = connected("a", 1)
    leader.update(NOW + SETTLE_S)
    seen = int(NOW) + 600
    assert leader.note_term(seen, NOW + SETTLE_S + 1)
    assert not leader.leads
    assert leader.update(NOW + SETTLE_S + 2)
    assert leader.term == seen + 1
    assert leader.note_term(leader.term, NOW + SETTLE_S + 3)
    assert leader.leads


def test_nodes_that_lie_cannot_raise_terms_beyond_what_nodes_accept():
    """The highest term that any node can have a leader take is one that all nodes still obey."""
    leader, now_s = connected("a", 1), NOW + SETTLE_S
    for _ in range(100):
        leader.note_term(int(now_s) + TERM_AHEAD_SECONDS_MAX, now_s)
        leader.update(now_s)
    assert leader.leads
    captures = Captures()
    able = Candidate("running", StepBoundary(OPTIMIZER, 1, 0, 0), 1)
    request = CaptureRequest(run="r", node="n", request_id=1, ranks=[0], first_step=0, steps=1, term=leader.term)
    assert captures.admit(request, {0: able}, 0, now_s).order is not None


def test_a_clock_that_was_ahead_and_is_set_back_costs_no_leader():
    """Its own term is then one that no leader can have: it leads on with another one."""
    leader = connected("a", 1)
    leader.connected(NOW + 10**7)
    leader.update(NOW + 10**7 + SETTLE_S)
    assert leader.term > NOW + 10**6
    leader.connected(NOW)
    assert leader.update(NOW + SETTLE_S)
    assert leader.leads
    assert leader.term == int(NOW + SETTLE_S)


def test_coordinators_that_are_gone_are_forgotten():
    """A name for each start, or invented ones, must not gather."""
    leader = connected("a", 1)
    for number in range(1000):
        message = CoordinatorAlive(coordinator=f"c{number}", alive=number % 2 == 0, incarnation=9, unix_ns=0, term=0)
        leader.take(message, NOW + number)
        leader.update(NOW + number)
    assert len(leader._peers) <= SILENT_S + 1
