"""A builder's state in a file: continuing from it builds the same records, and what is no state is refused."""

import copy
import json
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.accounting.step_builder import STATE_VERSION, StepBuilder
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.limits import MONOTONIC_NS_MAX
from lockstep.contracts.marks import BLOCK_MARKS, MARK_STRUCT, MarkKind
from lockstep.contracts.records import Flag
from tests.accounting.jobs import KINDS, Job
from tests.accounting.played import PlayedTraining
from tests.accounting.test_lost_marks import MARK, block_of, in_blocks_of

WHERE = "/var/spool/positions.json"


def restarted(builder):
    """Return a builder made of the state as it comes back from a file."""
    return StepBuilder.from_state(json.loads(json.dumps(builder.state())), where=WHERE)


def build(blocks, *, restarts):
    """Return (steps, counts of the builder), with a restart behind each block whose index `restarts` holds for."""
    builder = StepBuilder()
    steps = []
    for at, block in enumerate(blocks):
        steps += builder.add(block)
        if restarts(at):
            builder = restarted(builder)
    return steps, builder


def agree(blocks):
    """Hold that a restart behind any block changes nothing."""
    steps, builder = build(blocks, restarts=lambda _at: False)
    again, other = build(blocks, restarts=lambda _at: True)
    assert again == steps
    assert other.state() == builder.state()
    assert other.boundary(-1) == builder.boundary(-1)


@pytest.mark.parametrize("seed", range(60))
def test_a_restart_behind_any_block_changes_no_record(seed):
    """Of jobs of all kinds, in blocks of all sizes, with and without lost blocks."""
    with PlayedTraining(block_count=2048) as training:
        Job(training, Random(seed)).run(30)
        blocks = in_blocks_of(training.blocks(), 1 + seed % BLOCK_MARKS)
    agree(blocks)
    agree(blocks[: len(blocks) // 3] + blocks[len(blocks) // 3 + 2 :])


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_numbered_over_a_gap_that_a_restart_is_in(kind):
    """What the builder has learnt goes with the state: blocks that were lost meanwhile cost no number."""
    with PlayedTraining(block_count=2048) as training:
        Job(training, Random(4)).steady(kind).run(60)
        blocks = in_blocks_of(training.blocks(), 7)
    middle = len(blocks) // 2
    lossy = blocks[:middle] + blocks[middle + 9 :]
    steps, builder = build(lossy, restarts=lambda _at: False)
    again, other = build(lossy, restarts=lambda at: at == middle - 1)
    assert again == steps
    assert other.is_aligned == builder.is_aligned
    assert builder.is_aligned or kind == "closure"


def test_the_state_of_a_rank_that_keeps_up_is_small():
    """It is stored once a second, for each rank."""
    with PlayedTraining(block_count=2048) as training:
        Job(training, Random(4)).steady("gan").run(60)
        builder = StepBuilder()
        for block in training.blocks():
            builder.add(block)
    assert len(json.dumps(builder.state())) < 4096


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(marks=st.lists(MARK, min_size=1, max_size=BLOCK_MARKS), after=st.lists(MARK, min_size=1, max_size=BLOCK_MARKS))
def test_a_state_made_of_any_marks_comes_back(marks, after):
    """Whatever a block holds, what was saved is no state that is refused."""
    builder = StepBuilder()
    builder.add(block_of([(0, MarkKind.BEGIN, 0, 0, 0)]))
    builder.add(block_of(marks))
    again = restarted(builder)
    again.add(block_of(after))
    again.state()


def test_what_is_no_state_is_refused():
    """By name: what is wrong where, what was got and what expected."""
    with pytest.raises(MalformedError, match=f"accounting state in {WHERE}: got 7, expected a mapping"):
        StepBuilder.from_state(7, where=WHERE)
    state = StepBuilder().state()
    with pytest.raises(ContractVersionError, match=f"version .* in {WHERE}: got 99, expected {STATE_VERSION}"):
        StepBuilder.from_state({**state, "version": 99}, where=WHERE)
    cases = [
        (("builder", "position"), -1, "builder.position in .*: got -1, expected an integer from 0"),
        (("builder", "is_aligned"), 1, "builder.is_aligned in .*: got 1, expected true or false"),
        (("builder", "other"), 1, "builder in .*: got .*other, expected a mapping of"),
        (("stride", "ending"), ["end", 1], r"stride.ending\[0\] in .*: got end, expected one of backward"),
        (("stride", "last"), [1, 2], r"stride.last in .*: got \[1, 2\], expected a list of 3 values"),
        (("running",), [], r"running in .*: got \[\], expected a mapping"),
        (("running", "communication"), None, "running.communication in .*: got None, expected a mapping"),
        (("running", "communication", "expected"), [0], "index of a collective in .*: got 0, expected below 0"),
        (("running", "communication", "waits"), [0] * 65, "waits in .*: got 65 values, expected .* at most 64"),
        (("running", "learner", "position"), 1, "learner.position in .*: got 1, expected below"),
        (("running", "spans", "open"), 4, "spans.open in .*: got 4, expected an integer from -1 to 3"),
        (("running", "step", "start_ns"), MONOTONIC_NS_MAX + 1, "step.start_ns in .*"),
    ]
    for path, value, message in cases:
        bad = copy.deepcopy(state)
        place = bad
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        with pytest.raises(MalformedError, match=message):
            StepBuilder.from_state(bad, where=WHERE)


def leaves(value, path=()):
    """Yield the path of every value in nested mappings and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in items:
        yield (*path, key)
        yield from leaves(inside, (*path, key))


VALUES = (
    st.none() | st.booleans() | st.integers(-3, 9) | st.integers() | st.text(max_size=3) | st.just([]) | st.just({})
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), after=st.lists(MARK, min_size=1, max_size=BLOCK_MARKS))
def test_a_state_changed_anywhere_is_refused_or_good_for_any_marks(data, after):
    """A file that was edited or damaged stops no exporter later on."""
    bad = copy.deepcopy(STATE)
    path = data.draw(st.sampled_from(sorted(leaves(STATE), key=str)))
    place = bad
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = data.draw(VALUES)
    try:
        builder = StepBuilder.from_state(bad, where=WHERE)
    except MalformedError:
        return
    end = (MONOTONIC_NS_MAX, MarkKind.STEP_END, 0, 0, 0)
    builder.add(block_of([*[mark for mark in after if mark[1] != MarkKind.BEGIN], end]))
    builder.boundary(-1)
    builder.state()


def busy_state():
    """Return the state of a builder in the midst of a step that has something of everything."""
    builder = StepBuilder()
    with PlayedTraining() as training:
        Job(training, Random(4)).steady("gan").run(30)
        training.data_begin()
        training.data_end((1, 2, 3))
        training.collect(2, 5)
        training.backward_begin()
        for ending in ("later", "expect", "unknown"):
            training.issue(0, 3, 2, 64, synchronous=True, ending=ending)
        training.done(0)
        training.unmeasured({3: (1, 2, 3)})
        training.annotate(1, 5)
        training.compile(1)
        training.flag(int(Flag.CHECKPOINT))
        training.buffer.wait_begin()
        training.buffer.wait_end()
        training.issue(0, 3, 2, 64, synchronous=True, ending="expect")
        training.buffer.wait_begin()
        for block in training.blocks():
            builder.add(block)
    return json.loads(json.dumps(builder.state()))


STATE = busy_state()


def test_the_busy_state_holds_something_of_everything():
    """No list of it is empty."""
    empty = {path[-1] for path in leaves(STATE) if value_at(path) == []}
    assert empty == {"other_waits", "history", "aside"}
    assert MARK_STRUCT.size * 2 < len(json.dumps(STATE))


def value_at(path):
    value = STATE
    for key in path:
        value = value[key]
    return value
