"""Marks of a device that are lost, late, or that no agent writes: no measure is made of them, and what follows is exact."""

import json
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.marks import MARK_STRUCT, OTHER_THREAD, MarkBlock, MarkKind
from lockstep.contracts.records import MISSING, RECORD_FIELDS, RECORD_STRUCT, Flag
from tests.agent.device.marked import MarkedScene
from tests.agent.device.simulated import MS, TP

DEVICE_KINDS = [kind for kind in MarkKind if kind.name.startswith("DEVICE_")]


def blocks_of(steps, collectives=30):
    """Return the blocks of a training whose steps are all alike but for their waits, and their records."""
    scene = MarkedScene()
    for step in range(steps):
        scene.data(MS)
        for _ in range(collectives):
            scene.forward(MS, MS)
            wait_ns = step * 1000
            scene.collective(500, kind=TP, synchronous=True, not_before_ns=scene.device.free_ns[0] + wait_ns)
        with scene.backward():
            scene.forward(2 * MS, 40 * MS)
        scene.optimize(MS, 5 * MS)
        scene.device.synchronize()
    scene.finish()
    blocks = scene.blocks()
    return blocks, built(StepBuilder(), blocks)


def built(builder, blocks):
    return {
        record["step"]: (record, step.is_incomplete)
        for block in blocks
        for step in builder.add(block)
        for record in [dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(step.record), strict=True))]
    }


BLOCKS, WHOLE = blocks_of(24)


@pytest.mark.parametrize("lost", range(40, len(BLOCKS) - 12))
def test_a_block_that_is_lost(lost):
    """Steps around it have no measure that lacks a mark; those after it are measured again, as they were."""
    builder = StepBuilder()
    records = built(builder, BLOCKS[:lost] + BLOCKS[lost + 1 :])
    assert builder.counts.lost_marks == BLOCKS[lost].count
    assert len(records) >= len(WHOLE) - 4
    *_, last = MARK_STRUCT.iter_unpack(BLOCKS[lost].marks)
    again = 0
    for step, (record, is_incomplete) in sorted(records.items()):
        whole, _ = WHOLE[step]
        if record["device_step_ns"] == MISSING:
            assert is_incomplete or record["tp_wait_ns"] == MISSING
            assert record["flags"] & Flag.WARM_UP
            continue
        assert record["device_step_ns"] == whole["device_step_ns"]
        assert (record["tp_wait_ns"], record["tp_count"]) == (whole["tp_wait_ns"], whole["tp_count"])
        again += record["start_ns"] > last[0]
    assert again
    assert records[max(records)][0]["device_step_ns"] != MISSING


@pytest.mark.parametrize("first", range(1, 30, 3))
def test_a_reader_that_comes_late(first):
    """One that has not seen the device's beginning measures from the first anchors on, once steps are numbered."""
    records = built(StepBuilder(), BLOCKS[first:])
    assert sorted(records) == list(range(min(records), len(WHOLE)))
    assert min(records) <= 12 + first // 3
    for step, (record, _) in records.items():
        assert record["device_step_ns"] == WHOLE[step][0]["device_step_ns"]
        assert record["tp_wait_ns"] == WHOLE[step][0]["tp_wait_ns"]


@pytest.mark.parametrize("distance_ns", [2**63 - 1, -(2**63), 1 << 61])
@pytest.mark.parametrize("kind", [MarkKind.DEVICE_ANCHOR, MarkKind.DEVICE_EVENT])
def test_distances_that_no_device_has(kind, distance_ns):
    """They lie beyond what a record holds; nothing raises, and steps after them are measured."""
    changed = []
    for block in BLOCKS:
        content = bytearray(block.marks)
        for at in range(0, len(content), MARK_STRUCT.size):
            time_ns, its_kind, detail, subject, _ = MARK_STRUCT.unpack_from(content, at)
            if its_kind == kind and 30 <= block.sequence < 50:
                MARK_STRUCT.pack_into(content, at, time_ns, its_kind, detail, subject, distance_ns)
        ends = (block.backward_ends, block.optimizer_ends, block.step_ends)
        changed.append(MarkBlock(block.sequence, block.position, *ends, bytes(content)))
    records = built(StepBuilder(), changed)
    assert sorted(records) == sorted(WHOLE)
    assert records[max(records)][0]["device_step_ns"] == WHOLE[max(records)][0]["device_step_ns"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(DEVICE_KINDS),
            st.booleans(),
            st.integers(0, 0xFFFF),
            st.integers(0, 0xFFFFFFFF) | st.integers(0, 3000),
            st.integers(-(2**63), 2**63 - 1),
        ),
        max_size=30,
    ),
    st.integers(0, 1000),
)
def test_marks_that_no_agent_writes(marks, seed):
    """Whatever a file states of a device, steps are numbered as they were, and nothing raises."""
    random = Random(seed)
    blocks, position = [], 0
    for block in BLOCKS:
        content = block.marks
        if marks and random.random() < 0.3:
            kind, is_elsewhere, detail, subject, argument = marks.pop()
            at = random.randrange(block.count) * MARK_STRUCT.size
            kind |= OTHER_THREAD * is_elsewhere
            time_ns = MARK_STRUCT.unpack_from(content, at)[0]
            content = content[:at] + MARK_STRUCT.pack(time_ns, kind, detail, subject, argument) + content[at:]
        ends = (block.backward_ends, block.optimizer_ends, block.step_ends)
        blocks.append(MarkBlock(block.sequence, position, *ends, content))
        position += len(content) // MARK_STRUCT.size
    records = built(StepBuilder(), blocks)
    assert sorted(records) == sorted(WHOLE)


@pytest.mark.parametrize("at", range(2, len(BLOCKS), 5))
def test_a_reader_that_begins_again(at):
    """No step is lost or numbered otherwise; those that the device was not done with then have no measure."""
    builder = StepBuilder()
    former = built(builder, BLOCKS[:at])
    state = json.loads(json.dumps(builder.state()))
    again = StepBuilder.from_state(state, where="a test")
    latter = built(again, BLOCKS[at:])
    assert sorted([*former, *latter]) == sorted(WHOLE)
    unmeasured = [step for step, (record, _) in latter.items() if record["device_step_ns"] == MISSING]
    assert len(unmeasured) <= 3
    for step in unmeasured:
        assert latter[step][0]["flags"] & Flag.WARM_UP
        assert latter[step][0]["tp_wait_ns"] == MISSING
    for step in set(latter) - set(unmeasured):
        for name in ("device_step_ns", "tp_wait_ns", "tp_comm_ns", "tp_count", "tp_shortest_ns", "backward_ns"):
            assert latter[step][0][name] == WHOLE[step][0][name]
    assert builder.state() == state  # it was not changed by that


@pytest.mark.parametrize(
    "steps", [1, [1], [["00", True]], [["00" * RECORD_STRUCT.size, 1]], [["zz" * 700, False]], "00"]
)
def test_a_state_that_is_none(steps):
    """A file that holds what no builder has written is refused."""
    state = StepBuilder().state() | {"device": steps}
    with pytest.raises(MalformedError, match="device"):
        StepBuilder.from_state(state, where="a test")
