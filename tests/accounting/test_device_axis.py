"""Host times to device times: between events, around them, and what of a pause was felt."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.accounting.device_axis import DeviceAxis, in_flight_ns, translate
from lockstep.accounting.events import BACKWARD, UNSEEN_NS, IssuedCollective, StepEvents, Traffic
from lockstep.contracts.records import MISSING


@st.composite
def axes(draw):
    """Points ascending in both, the device never before the host."""
    hosts = sorted(draw(st.sets(st.integers(100, 200), min_size=2, max_size=8)))
    device, points = 0, []
    for host in hosts:
        device = max(device, host) + draw(st.integers(0, 30))
        points.append((host, device))
    return DeviceAxis(points, 0), points


@settings(deadline=None)  # the machine may be busy
@given(axes(), st.lists(st.integers(90, 250), min_size=2, max_size=6))
def test_order_is_kept(made, times):
    """Of two host times the later one is never earlier on the device, and an event is where it is."""
    axis, points = made
    assert all(axis.at(host) == device for host, device in points)
    devices = [axis.at(time) for time in sorted(times)]
    assert devices == sorted(devices)


@settings(deadline=None)  # the machine may be busy
@given(axes(), st.integers(100, 200), st.integers(0, 50))
def test_no_more_is_felt_of_a_pause_than_it_took(made, begin, took):
    """Without events of its own a pause is felt for at most its length; nowhere is it felt backwards."""
    axis, points = made
    first, last = axis.exposed(begin, begin + took)
    assert first <= last
    if not {begin, begin + took} <= {host for host, _ in points}:
        assert last - first <= took


def test_pause_that_a_queue_covers():
    """What was queued at the next event is taken off; an idle device feels it all."""
    queued = DeviceAxis([(0, 10), (100, 130)], 0)
    assert queued.exposed(40, 60) == (60, 60)
    idle = DeviceAxis([(0, 0), (100, 105)], 5)
    assert idle.exposed(40, 60) == (45, 65)


def test_lead_is_the_least_above_an_idle_devices():
    """The least distance between host and device counts, less what a launch takes; without an event it is not known."""
    axis = DeviceAxis([(0, 5), (10, 40), (20, 35)], 5)
    assert axis.lead(10, 20) == 10
    assert axis.lead(0, 20) == 0
    assert axis.lead(11, 19) == MISSING


def test_collectives_without_an_end():
    """Only the last ones of a backward block unseen; what the host saw done is translated; none of them is changed."""
    events = StepEvents()
    events.spans = [(BACKWARD, 10, 50)]
    events.blocked = [(30, 31, 0)]
    asynchronous, synchronous = (Traffic(0, 1, 1, is_synchronous) for is_synchronous in (False, True))
    events.collectives = [IssuedCollective(issue_ns, asynchronous) for issue_ns in (20, 40, 60)]
    events.collectives += [IssuedCollective(issue_ns, synchronous) for issue_ns in (70, 80)]
    events.collectives[4].done_ns = 90
    translated = translate(events, DeviceAxis([(0, 1000), (100, 1100)], 1000), {})
    assert [c.done_ns for c in translated.collectives] == [UNSEEN_NS, 0, UNSEEN_NS, UNSEEN_NS, 1090]
    assert [c.issue_ns for c in translated.collectives] == [1020, 1040, 1060, 1070, 1080]
    assert [c.done_ns for c in events.collectives] == [0, 0, 0, 0, 90]


def test_time_in_flight_is_a_union():
    """Overlapping collectives count once, and one whose end is not known makes the whole unknown."""

    def flying(*times):
        events = StepEvents()
        for issue_ns, done_ns in times:
            events.collectives.append(IssuedCollective(issue_ns, Traffic(0, 1, 1, synchronous=False)))
            events.collectives[-1].done_ns = done_ns
        return in_flight_ns(events)

    assert flying() == 0
    assert flying((30, 40), (10, 20), (15, 25)) == 25
    assert flying((10, 20), (15, UNSEEN_NS)) == MISSING
