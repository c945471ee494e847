"""Host times to device times: between events, around them, and what of a pause was felt."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.accounting.device_axis import DeviceAxis, in_flight_ns, translate
from lockstep.accounting.device_step import DeviceReading
from lockstep.accounting.events import BACKWARD, UNSEEN_NS, IssuedCollective, StepEvents, Traffic
from lockstep.accounting.step_arrays import arrays_of, in_issue_order
from lockstep.contracts.records import MISSING


def axis_of(points, floor_ns):
    host_ns, device_ns = np.array(points, np.int64).T
    return DeviceAxis(host_ns, device_ns, floor_ns)


def at(axis, *host_ns):
    return axis.at(np.array(host_ns, np.int64)).tolist()


def exposed(axis, begin_ns, end_ns):
    begin, end = axis.exposed(np.array([begin_ns], np.int64), np.array([end_ns], np.int64))
    return int(begin[0]), int(end[0])


@st.composite
def axes(draw):
    """Points ascending in both, the device never before the host."""
    hosts = sorted(draw(st.sets(st.integers(100, 200), min_size=2, max_size=8)))
    device, points = 0, []
    for host in hosts:
        device = max(device, host) + draw(st.integers(0, 30))
        points.append((host, device))
    return axis_of(points, 0), points


@settings(deadline=None)  # the machine may be busy
@given(axes(), st.lists(st.integers(90, 250), min_size=2, max_size=6))
def test_order_is_kept(made, times):
    """Of two host times the later one is never earlier on the device, and an event is where it is."""
    axis, points = made
    assert at(axis, *(host for host, _ in points)) == [device for _, device in points]
    devices = at(axis, *sorted(times))
    assert devices == sorted(devices)


@settings(deadline=None)  # the machine may be busy
@given(axes(), st.integers(100, 200), st.integers(0, 50))
def test_no_more_is_felt_of_a_pause_than_it_took(made, begin, took):
    """Without events of its own a pause is felt for at most its length; nowhere is it felt backwards."""
    axis, points = made
    first, last = exposed(axis, begin, begin + took)
    assert first <= last
    if not {begin, begin + took} <= {host for host, _ in points}:
        assert last - first <= took


def test_pause_that_a_queue_covers():
    """What was queued at the next event is taken off; an idle device feels it all."""
    queued = axis_of([(0, 10), (100, 130)], 0)
    assert exposed(queued, 40, 60) == (60, 60)
    idle = axis_of([(0, 0), (100, 105)], 5)
    assert exposed(idle, 40, 60) == (45, 65)


def test_lead_is_the_least_above_an_idle_devices():
    """The least distance between host and device counts, less what a launch takes; without an event it is not known."""
    axis = axis_of([(0, 5), (10, 40), (20, 35)], 5)
    assert axis.lead([(10, 20)]) == 10
    assert axis.lead([(0, 20)]) == 0
    assert axis.lead([(11, 19)]) == MISSING


def test_collectives_without_an_end():
    """Only the last ones of a backward block unseen; what the host saw done is translated; none of them is changed."""
    events = StepEvents()
    events.spans = [(BACKWARD, 10, 50)]
    events.blocked = [(30, 31, 0)]
    asynchronous, synchronous = (Traffic(0, 1, 1, is_synchronous) for is_synchronous in (False, True))
    events.collectives = [IssuedCollective(issue_ns, asynchronous) for issue_ns in (20, 40, 60)]
    events.collectives += [IssuedCollective(issue_ns, synchronous) for issue_ns in (70, 80)]
    events.collectives[4].done_ns = 90
    arrays = arrays_of(events)
    none, zero = np.zeros(5, np.bool_), np.zeros(5, np.int64)
    reading = DeviceReading(
        length_ns=100,
        host_ns_P=zero,
        offset_ns_P=zero,
        arrays=arrays,
        issue_ns_C=zero,
        is_read_C=none,
        done_ns_C=zero,
        is_done_C=none,
        is_aside_C=none,
        unmeasured=set(),
    )
    _, translated = translate(events, reading, axis_of([(0, 1000), (100, 1100)], 1000), 1000)
    assert translated.done_ns_C.tolist() == [UNSEEN_NS, 0, UNSEEN_NS, UNSEEN_NS, 1090]
    assert translated.issue_ns_C.tolist() == [1020, 1040, 1060, 1070, 1080]
    assert arrays.done_ns_C.tolist() == [0, 0, 0, 0, 90]


def test_time_in_flight_is_a_union():
    """Overlapping collectives count once, and one whose end is not known makes the whole unknown."""

    def flying(*times):
        events = StepEvents()
        for issue_ns, done_ns in times:
            events.collectives.append(IssuedCollective(issue_ns, Traffic(0, 1, 1, synchronous=False)))
            events.collectives[-1].done_ns = done_ns
        return in_flight_ns(in_issue_order(arrays_of(events)))

    assert flying() == 0
    assert flying((30, 40), (10, 20), (15, 25)) == 25
    assert flying((10, 20), (15, UNSEEN_NS)) == MISSING
