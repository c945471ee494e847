"""A rank that has ended is announced as such once its ring has been read to the end, with the last step in it."""

import pytest

from exporter.counts import ExporterCounters
from exporter.reading.rings import Rings
from lockstep.contracts import ring as layout
from lockstep.contracts.messages import FAILED, RUNNING
from tests.exporter.conftest import NOW_NS, record

STEPS = 1500
"""More than the exporter reads of one ring at once."""


@pytest.fixture
def rings(root):
    rings = Rings(root, ExporterCounters(), {})
    yield rings
    rings.close()


def raise_error(ring):
    """End a rank by an exception."""
    ending = {"exception": "ValueError", "frame": "train.py(88): load", "monotonic_ns": NOW_NS}
    ring.blob(layout.ENDING_OFFSET, layout.ENDING_BYTES, ending)
    ring.state(layout.STATE_RAISED)


def read(rings):
    """Read once; return the steps that came, and how the rank is announced."""
    rings.scan(NOW_NS)
    steps = sum(len(each.records) for each in rings.read())
    (info,) = rings.runs["run-a"].announced()
    return steps, info


def test_an_ending_waits_for_the_marks_before_it(rings, make_ring):
    """The exporter of a starved node comes to read when hundreds of steps wait, and the process has ended already."""
    ring = make_ring(block_count=2048)
    for step in range(STEPS):
        ring.write(record(step))
    raise_error(ring)
    steps, info = read(rings)
    while steps < STEPS:
        assert (info.state, info.ending) == (RUNNING, None)
        more, info = read(rings)
        assert more, "the ring was read to its end, and the rank has not ended"
        steps += more
    assert (info.state, info.ending.exception, info.ending.last_step) == (FAILED, "ValueError", STEPS - 1)
    revision = rings.runs["run-a"].revision
    assert read(rings) == (0, info)
    assert rings.runs["run-a"].revision == revision


def test_a_rank_that_fails_before_its_first_step_has_no_last_one(rings, make_ring):
    """Which step it was in is not known: no step is missing, not step 0."""
    raise_error(make_ring())
    _, info = read(rings)
    assert (info.state, info.ending.last_step) == (FAILED, None)


def test_a_ring_that_vanishes_is_read_as_far_as_it_may_be(rings, make_ring):
    """Nothing of it can be read later: its rank has ended."""
    ring = make_ring(block_count=2048)
    read(rings)
    for step in range(STEPS):
        ring.write(record(step))
    raise_error(ring)
    ring.path.unlink()
    steps, info = read(rings)
    assert (steps, info.state, info.ending.last_step) == (STEPS, FAILED, STEPS - 1)
