"""The partition of a step, against an oracle that looks at every nanosecond."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.accounting.breakdown import DOMAIN_COUNT, attribute
from lockstep.accounting.events import (
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    IssuedCollective,
    StepEvents,
    Traffic,
)

START, END = 10, 70


def _disjoint(count):
    return st.lists(st.integers(START - 5, END + 5), max_size=2 * count, unique=True).map(
        lambda times: list(zip(sorted(times)[::2], sorted(times)[1::2], strict=False))
    )


def _collective(issue, took, kind, synchronous):
    collective = IssuedCollective(issue, Traffic(kind, 8, 8, synchronous))
    collective.done_ns = 0 if took is None else issue + took
    return collective


TIMES = st.integers(START - 5, END + 5)
KINDS = st.integers(0, DOMAIN_COUNT - 1)
COLLECTIVES = st.lists(st.builds(_collective, TIMES, st.none() | st.integers(0, 30), KINDS, st.booleans()), max_size=8)
BLOCKS = st.lists(st.tuples(TIMES, st.integers(0, 15), KINDS).map(lambda t: (t[0], t[0] + t[1], t[2])), max_size=4).map(
    sorted
)


@st.composite
def marks(draw):
    made = StepEvents()
    spans = draw(_disjoint(5))
    made.spans = [(draw(st.sampled_from((DATA, FORWARD, BACKWARD, OPTIMIZER))), *span) for span in spans]
    made.collections = draw(_disjoint(3))
    made.collectives = draw(COLLECTIVES)
    made.blocked = draw(BLOCKS)
    return made


def _oracle_waits(made):
    """Return, by the rule read naively, (begin, end, kind) of every interval in which the thread may be blocked."""
    issues = sorted(c.issue_ns for c in made.collectives)
    own = [END, *issues, *(t for s in made.spans for t in s[1:]), *(t for b in made.blocked for t in b[:2])]
    waits = []
    for c in sorted(made.collectives, key=lambda c: c.issue_ns):
        begin = c.issue_ns
        if c.traffic.synchronous and not c.done_ns:
            continue
        if not c.traffic.synchronous:
            inside = [s for s in made.spans if s[0] == BACKWARD and s[1] <= begin <= s[2]]
            if not inside:
                continue
            begin = max(i for i in issues if i <= inside[0][2])
        later = [t for t in own if t > begin]
        if later:
            waits.append((begin, min(c.done_ns or END, *later), c.traffic.domain))
    return waits + made.blocked


def _oracle(made):
    waits = sorted(_oracle_waits(made), key=lambda w: w[0])
    breakdown = {"gc": 0, "host": 0, "data": 0, "compute": 0, "waits": [0] * DOMAIN_COUNT}
    for t in range(START, END):
        if any(begin <= t < end for begin, end in made.collections):
            breakdown["gc"] += 1
            continue
        wait = next((w for w in waits if w[0] <= t < w[1]), None)
        span = next((s for s in made.spans if s[1] <= t < s[2]), None)
        if wait is not None:
            breakdown["waits"][wait[2]] += 1
        elif span is None:
            breakdown["host"] += 1
        else:
            breakdown["data" if span[0] == DATA else "compute"] += 1
    return breakdown


@settings(max_examples=600)
@given(marks())
def test_every_nanosecond_is_attributed_by_the_rules(made):
    """The fast account equals the oracle that asks for each nanosecond who has it."""
    breakdown = attribute(START, END, made)
    assert {
        "gc": breakdown.collection_ns,
        "host": breakdown.host_ns,
        "data": breakdown.data_ns,
        "compute": breakdown.compute_ns,
        "waits": breakdown.wait_ns,
    } == _oracle(made)


@given(marks())
def test_time_in_flight_is_a_union_that_contains_the_wait(made):
    """By kind, the nanoseconds in which a collective was in flight, and never less than was waited."""
    breakdown = attribute(START, END, made)
    for kind in range(DOMAIN_COUNT):
        flights = [(c.issue_ns, c.done_ns or END) for c in made.collectives if c.traffic.domain == kind]
        union = sum(any(begin <= t < end for begin, end in flights) for t in range(START, END))
        assert breakdown.in_flight_ns[kind] == max(union, breakdown.wait_ns[kind])


@given(marks())
def test_parts_sum_to_the_step(made):
    """No part is negative and together they are the step, exactly."""
    breakdown = attribute(START, END, made)
    parts = [breakdown.collection_ns, breakdown.host_ns, breakdown.data_ns, breakdown.compute_ns, *breakdown.wait_ns]
    assert min(parts) >= 0
    assert sum(parts) == END - START
    assert breakdown.phase_ns[0] == breakdown.data_ns
    assert sum(breakdown.phase_ns[1:]) == breakdown.compute_ns


def test_reducer_is_hidden_until_its_last_issue():
    """A DDP step: buckets that finish while backward goes on cost nothing, the last one costs its tail."""
    made = StepEvents()
    made.spans = [(DATA, 0, 10), (FORWARD, 10, 100), (BACKWARD, 100, 300), (OPTIMIZER, 310, 350)]
    made.collectives = [_collective(150, 80, 3, False), _collective(200, 60, 3, False), _collective(250, 40, 3, False)]
    breakdown = attribute(0, 400, made)
    assert breakdown.wait_ns[3] == 290 - 250
    assert breakdown.compute_ns == 90 + 200 + 40 - 40
    assert breakdown.phase_ns == [10, 90, 200 - 40, 40]
    assert breakdown.host_ns == 10 + 50


def test_synchronous_collective_blocks_until_done():
    """It blocks from issue to done, whatever span that is in."""
    made = StepEvents()
    made.collectives = [_collective(20, 30, 5, True)]
    assert attribute(0, 100, made).wait_ns[5] == 30


def test_late_completion_does_not_reach_past_the_next_mark():
    """A completion noted late by another thread cannot block a thread that was seen elsewhere."""
    made = StepEvents()
    made.spans = [(DATA, 40, 60)]
    made.collectives = [_collective(20, 70, 5, True)]
    assert attribute(0, 100, made).wait_ns[5] == 20


def test_pending_collective_is_clipped_to_the_step():
    """One that is not done when the step ends is counted to the step's end."""
    made = StepEvents()
    made.spans = [(BACKWARD, 10, 100)]
    made.collectives = [_collective(70, None, 1, False)]
    assert attribute(0, 100, made).wait_ns[1] == 30


def test_asynchronous_outside_backward_blocks_only_where_seen():
    """Without a backward around it, only an explicit wait counts."""
    made = StepEvents()
    made.collectives = [_collective(10, 50, 0, False)]
    assert sum(attribute(0, 100, made).wait_ns) == 0
    made.blocked = [(30, 60, 0)]
    assert attribute(0, 100, made).wait_ns[0] == 30


def test_garbage_collection_comes_first():
    """What the collector took is neither wait nor data."""
    made = StepEvents()
    made.spans = [(DATA, 0, 50)]
    made.blocked = [(60, 90, 2)]
    made.collections = [(40, 70)]
    breakdown = attribute(0, 100, made)
    assert (breakdown.collection_ns, breakdown.data_ns, breakdown.wait_ns[2], breakdown.host_ns) == (30, 40, 20, 10)


def test_synchronous_collective_of_unknown_end_blocks_no_one():
    """Without anybody who saw it done, the thread is not taken to have waited."""
    made = StepEvents()
    made.collectives = [_collective(20, None, 5, True)]
    assert sum(attribute(0, 100, made).wait_ns) == 0


def test_guessed_kind_is_that_of_the_nearest_completion():
    """A wait whose kind is a guess goes to the kind that was done when it ended, else to the guess."""
    made = StepEvents()
    made.collectives = [_collective(10, 30, 0, False), _collective(12, 80, 3, False)]
    made.blocked = [(20, 41, ~3)]
    assert attribute(0, 100, made).wait_ns[0] == 21
    made.collectives = []
    assert attribute(0, 100, made).wait_ns[3] == 21
