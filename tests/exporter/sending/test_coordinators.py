import pytest

from exporter.sending.coordinators import (
    KNOWN_MAX,
    LIVE_NS,
    RESEND_NS,
    Coordinators,
)
from lockstep.contracts.delivery import WINDOW_BYTES_MAX, WINDOW_MESSAGES_MAX
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import Acknowledgement

STREAM = 77
SECOND_NS = 10**9
NOW = 60 * SECOND_NS  # a machine that was booted a minute ago
FORGET_NS = 3600 * SECOND_NS


def make(*, freed: int = 0, last: int = 0, **known_ns: int) -> Coordinators:
    return Coordinators(stream_id=STREAM, freed=freed, last=last, forget_ns=FORGET_NS, seen_ns=known_ns)


def ack(received: int = 0, committed: int = 0, name: str = "a", **values) -> Acknowledgement:
    defaults = {"node": "n", "coordinator": name, "incarnation": 1, "stream_id": STREAM}
    return Acknowledgement(**(defaults | {"received": received, "committed": committed} | values))


def send(coordinators: Coordinators, count: int, now_ns: int = NOW, size_bytes: int = 100) -> int:
    """Send frames while the window lets them pass; return how many it let."""
    for sent in range(count):
        if not coordinators.may_send(size_bytes, now_ns):
            return sent
        coordinators.note_sent(coordinators.next_sequence, size_bytes, now_ns)
    return count


def show(coordinators: Coordinators, acknowledgement: Acknowledgement, now_ns: int) -> None:
    """Let a coordinator show where it stands, and time pass."""
    coordinators.acknowledge(acknowledgement, now_ns)
    coordinators.tick(now_ns)


def test_nothing_is_sent_before_an_acknowledgement_in_this_session():
    """A new session begins at the coordinator's offset, not where the one before had stopped."""
    coordinators = make(last=10)
    assert (coordinators.next_sequence, coordinators.may_send(1, NOW)) == (None, False)
    coordinators.acknowledge(ack(4), NOW)
    assert (coordinators.next_sequence, coordinators.may_send(1, NOW)) == (5, True)
    send(coordinators, 3)
    coordinators.begin_session()
    assert (coordinators.next_sequence, coordinators.may_send(1, NOW)) == (None, False)
    coordinators.acknowledge(ack(6), NOW)
    assert coordinators.next_sequence == 7


def test_the_smallest_window_that_a_live_coordinator_grants_holds():
    """In messages and in bytes; one message is always under way."""
    coordinators = make()
    coordinators.acknowledge(ack(0, window_messages=5), NOW)
    coordinators.acknowledge(ack(0, name="b", window_messages=3, window_bytes=350), NOW)
    assert send(coordinators, 10) == 3
    coordinators.acknowledge(ack(3), NOW)
    coordinators.acknowledge(ack(3, name="b", window_messages=0, window_bytes=0), NOW)
    assert send(coordinators, 10) == 1
    later = NOW + LIVE_NS + SECOND_NS
    coordinators.acknowledge(ack(4, window_messages=5), later)
    assert send(coordinators, 10, later) == 5


def test_while_a_coordinator_holds_nothing_is_sent():
    """Not to the others either, and no timeout runs; then everything behind what it has received goes again."""
    coordinators = make()
    coordinators.acknowledge(ack(0), NOW)
    coordinators.acknowledge(ack(0, name="b"), NOW)
    send(coordinators, 5)
    coordinators.acknowledge(ack(5, name="b"), NOW)
    coordinators.acknowledge(ack(2, hold=True), NOW)
    later = NOW + 25 * SECOND_NS
    coordinators.tick(later)
    assert (coordinators.next_sequence, coordinators.may_send(1, later)) == (6, False)
    coordinators.acknowledge(ack(2), later)
    coordinators.acknowledge(ack(5, name="b"), later)
    assert (coordinators.next_sequence, coordinators.may_send(1, later)) == (3, True)


def test_a_coordinator_that_holds_and_falls_silent_holds_no_one_up():
    """It is not live any more: the others go on."""
    coordinators = make()
    coordinators.acknowledge(ack(0, hold=True), NOW)
    later = NOW + LIVE_NS + SECOND_NS
    coordinators.acknowledge(ack(0, name="b"), later)
    assert coordinators.may_send(1, later)


def test_the_timeout_begins_when_a_coordinator_holds_no_longer():
    """What was sent while it held is no reason to send it twice at once."""
    coordinators = make()
    coordinators.acknowledge(ack(0), NOW)
    send(coordinators, 3)
    coordinators.acknowledge(ack(0, hold=True), NOW)
    later = NOW + 5 * RESEND_NS
    coordinators.acknowledge(ack(0, resend=True), later)
    send(coordinators, 3, later)
    show(coordinators, ack(0), later + RESEND_NS - 1)
    assert coordinators.next_sequence == 4
    show(coordinators, ack(0), later + RESEND_NS)
    assert coordinators.next_sequence == 1


def test_nothing_is_sent_again_to_a_coordinator_that_is_silent():
    """It may have lost nothing, and what waits for it at the broker would only become more."""
    coordinators = make()
    coordinators.acknowledge(ack(0), NOW)
    send(coordinators, 3)
    coordinators.tick(NOW + 2 * RESEND_NS)
    assert coordinators.next_sequence == 4


def test_the_first_of_several_sends_from_the_lowest_on():
    """Both have to get everything: the send offset goes back for the second one, and never ahead for it."""
    coordinators = make(last=10)
    coordinators.acknowledge(ack(8), NOW)
    coordinators.acknowledge(ack(2, name="b"), NOW)
    assert coordinators.next_sequence == 3
    coordinators.acknowledge(ack(9, name="c"), NOW)
    assert coordinators.next_sequence == 3


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"received": 2}, 6),  # in order: nothing to do
        ({"received": 2, "resend": True}, 3),
        ({"received": 1, "incarnation": 2}, 2),
        ({"received": 5, "incarnation": 2}, 6),
        ({"received": 1}, 6),  # less than before: time will show
        ({"received": 5, "resend": True}, 6),
    ],
)
def test_when_the_send_offset_goes_back(second: dict, expected: int):
    """A coordinator that was restarted, or that asks, is sent to from behind what it has."""
    coordinators = make()
    coordinators.acknowledge(ack(0), NOW)
    assert send(coordinators, 5) == 5
    coordinators.acknowledge(ack(**second), NOW)
    assert coordinators.next_sequence == expected


def test_what_stands_still_is_sent_again_ever_more_rarely():
    """The loss of the newest messages shows in nothing else; without use the wait doubles, with progress it starts over."""
    coordinators = make()
    coordinators.acknowledge(ack(0), NOW)
    send(coordinators, 5)
    now, waits = NOW, []
    for _ in range(7):
        begin = now
        while coordinators.next_sequence == 6:
            now += SECOND_NS
            coordinators.acknowledge(ack(2), now)
            coordinators.tick(now)
        assert coordinators.next_sequence == 3
        waits.append((now - begin) // RESEND_NS)
        send(coordinators, 3, now)
    assert waits == [1, 2, 4, 8, 16, 32, 32]
    coordinators.acknowledge(ack(3), now)
    show(coordinators, ack(3), now + RESEND_NS - 1)
    assert coordinators.next_sequence == 6
    show(coordinators, ack(3), now + RESEND_NS)
    assert coordinators.next_sequence == 4


def test_a_coordinator_that_has_everything_is_left_alone():
    """However long nothing new comes."""
    coordinators = make()
    coordinators.acknowledge(ack(0), NOW)
    send(coordinators, 5)
    coordinators.acknowledge(ack(5), NOW)
    for seconds in range(0, 3000, 10):
        coordinators.acknowledge(ack(5), NOW + seconds * SECOND_NS)
        coordinators.tick(NOW + seconds * SECOND_NS)
    assert coordinators.next_sequence == 6


def test_the_window_has_an_end_in_messages():
    """As many as that beyond the slowest live coordinator, then one for each that it receives."""
    coordinators = make()
    coordinators.acknowledge(ack(0), NOW)
    coordinators.acknowledge(ack(0, name="b"), NOW)
    assert send(coordinators, 1000) == WINDOW_MESSAGES_MAX
    coordinators.acknowledge(ack(WINDOW_MESSAGES_MAX), NOW)
    assert send(coordinators, 1000) == 0
    coordinators.acknowledge(ack(3, name="b"), NOW)
    assert send(coordinators, 1000) == 3


def test_the_window_has_an_end_in_bytes_and_always_lets_one_pass():
    """A message larger than the window goes alone."""
    coordinators = make()
    coordinators.acknowledge(ack(0), NOW)
    assert send(coordinators, 1000, size_bytes=WINDOW_BYTES_MAX // 4) == 4
    coordinators.acknowledge(ack(4), NOW)
    assert send(coordinators, 1000, size_bytes=WINDOW_BYTES_MAX + 1) == 1


def test_a_lost_frame_of_many_messages_is_one_in_the_window():
    """The window counts what is under way, not numbers."""
    coordinators = make()
    coordinators.acknowledge(ack(0), NOW)
    coordinators.note_sent(1_000_000, 0, NOW)
    assert coordinators.next_sequence == 1_000_001
    assert send(coordinators, 1000) == WINDOW_MESSAGES_MAX - 1


def test_a_silent_coordinator_holds_the_window_no_longer_than_that():
    """Up to the limit it is live; behind it the others go on, and alone nothing is sent to it."""
    coordinators = make()
    coordinators.acknowledge(ack(0), NOW)
    coordinators.acknowledge(ack(0, name="b"), NOW)
    send(coordinators, WINDOW_MESSAGES_MAX)
    later = NOW + LIVE_NS
    coordinators.acknowledge(ack(WINDOW_MESSAGES_MAX), later)
    assert not coordinators.may_send(1, later)
    assert coordinators.may_send(1, later + 1)
    assert not coordinators.may_send(1, later + LIVE_NS + 1)


def test_what_is_freed_is_what_all_known_ones_have_committed():
    """One that is silent counts until it is forgotten; with none known nothing may go."""
    coordinators = make(last=10)
    assert (coordinators.committed(), coordinators.received()) == (None, None)
    coordinators.acknowledge(ack(9, 8), NOW)
    coordinators.acknowledge(ack(7, 5, name="b"), NOW + 1)
    assert (coordinators.committed(), coordinators.received()) == (5, 7)
    coordinators.tick(NOW + 1 + FORGET_NS)
    assert (coordinators.committed(), coordinators.received()) == (5, 7)
    coordinators.tick(NOW + 2 + FORGET_NS)
    assert (coordinators.committed(), coordinators.seen_ns) == (None, {})


def test_one_known_from_an_earlier_process_holds_everything_until_it_acknowledges():
    """All that is known of it is that it had committed what is freed."""
    coordinators = make(freed=3, last=10, b=NOW - 100 * SECOND_NS)
    coordinators.acknowledge(ack(9, 9), NOW)
    assert coordinators.committed() == 3
    coordinators.acknowledge(ack(9, 9, name="b"), NOW)
    assert coordinators.committed() == 9
    assert make(freed=3, last=10, b=NOW - 2 * FORGET_NS).seen_ns != {}
    (forgotten := make(b=NOW - 2 * FORGET_NS)).tick(NOW)
    assert forgotten.seen_ns == {}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"stream_id": STREAM + 1}, "stream_id"),
        ({"received": 6}, "offsets"),
        ({"received": 2**64 - 1}, "offsets"),
        ({"received": 3, "committed": 4}, "offsets"),
        ({"received": -1, "committed": -1}, "offsets"),
        ({"name": ""}, "coordinator"),
        ({"name": "../x"}, "coordinator"),
    ],
)
def test_an_acknowledgement_that_cannot_be_changes_nothing(values: dict, field: str):
    """It is refused by name of what is wrong: no coordinator has what was never sent."""
    coordinators = make(last=2)
    coordinators.acknowledge(ack(2, name="good"), NOW)
    send(coordinators, 3)
    with pytest.raises(MalformedError, match=field):
        coordinators.acknowledge(ack(**({"received": 5} | values)), NOW)
    assert (coordinators.next_sequence, coordinators.seen_ns) == (6, {"good": NOW})
    coordinators.acknowledge(ack(5, 5, name="good"), NOW)


def test_names_have_an_end():
    """Each holds messages back, so that a peer that makes names up must not fill the spool for ever."""
    coordinators = make()
    for number in range(KNOWN_MAX):
        coordinators.acknowledge(ack(0, name=f"c{number}"), NOW)
    with pytest.raises(MalformedError, match="at most"):
        coordinators.acknowledge(ack(0, name="one-more"), NOW)
    coordinators.acknowledge(ack(0, name="c3"), NOW)


def test_what_is_sent_again_is_known_as_that():
    """By this process, and by the one before, which may have sent all there was."""
    coordinators = make(last=2)
    coordinators.acknowledge(ack(1), NOW)
    assert [coordinators.note_sent(number, 1, NOW) for number in (2, 3)] == [True, False]
    coordinators.rewind(2)
    assert [coordinators.note_sent(number, 1, NOW) for number in (2, 3, 4)] == [True, True, False]


def test_a_lost_frame_ends_where_a_coordinator_stands():
    """One that has part of it must be able to take it as a duplicate, and the rest as its own."""
    coordinators = make(last=20)
    coordinators.acknowledge(ack(12), NOW)
    coordinators.acknowledge(ack(5, name="b"), NOW)
    assert coordinators.lost_frame_end(1, 20) == 5
    assert coordinators.lost_frame_end(6, 20) == 12
    assert coordinators.lost_frame_end(13, 20) == 20
    assert coordinators.lost_frame_end(6, 12) == 12
