"""A pass as a template of operations and edges lasts as long as its ops, done one after the other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.simulator.lowering.link_model import Phase
from lockstep.simulator.lowering.ops import NO_OPERATION, Await, Blocking, Compute, PassTemplate, Queued

PHASES = {name: Phase("all_reduce", group_set, 1.0) for group_set, name in enumerate("abc")}
TAKES = {PHASES["a"]: 0.25, PHASES["b"]: 3.0, PHASES["c"]: 1.0}


@st.composite
def passes(draw):
    """Return the acts of a pass; what is awaited was queued before."""
    ops, tickets = [], 0
    for kind in draw(st.lists(st.sampled_from(["compute", "block", "queue", "ask", "await"]), max_size=12)):
        phases = tuple(PHASES[name] for name in draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=2)))
        if kind == "compute":
            ops.append(Compute(draw(st.sampled_from([0.0, 0.5, 2.0]))))
        elif kind == "block":
            ops.append(Blocking(phases[0]))
        elif kind == "queue":
            ops.append(Queued(phases))
        elif kind == "ask":
            ops.append(Queued(phases, ticket=tickets))
            tickets += 1
        elif tickets:
            ops.append(Await(draw(st.integers(0, tickets - 1))))
    return ops


def by_hand(ops, now, queue_free):
    """Return when the pass ends and the queue is free, and what the next must wait for."""
    waits, ended = 0.0, {}
    for op in ops:
        if isinstance(op, Queued):
            for phase in op.phases:
                queue_free = max(queue_free, now) + TAKES[phase]
            ended[op.ticket] = queue_free
        elif isinstance(op, Await):
            waits = max(waits, ended[op.ticket])
        else:
            now = max(now, waits) + (op.seconds if isinstance(op, Compute) else TAKES[op.phase])
            waits = 0.0
    if not any(isinstance(op, Compute | Blocking) for op in ops):
        now, waits = max(now, waits), 0.0
    return now, queue_free, waits


@settings(deadline=None)
@given(passes(), st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 5.0]))
def test_a_pattern_is_its_acts(ops, now, queue_free):
    """Ends of the pass and of its queue, and what is still awaited, are those of stepping through the ops."""
    template = PassTemplate.from_ops(ops)
    spent = np.zeros(template.count)
    spent[template.computing] = template.work_s
    for calls in template.calls:
        spent[calls.indices] = [TAKES[calls.kinds[which][1]] for which in calls.which]
    start = np.zeros(template.count)
    start[template.entering] = now
    if template.first_queued != NO_OPERATION:
        start[template.first_queued] = max(start[template.first_queued], queue_free)
    for target in range(template.count):  # indices are in the order of the ops, which edges follow
        before = template.edges[0][template.edges[1] == target]
        start[target] = max([start[target], *(start + spent)[before]])
    end = start + spent
    free = end[template.last_queued] if template.last_queued != NO_OPERATION else queue_free
    waits = end[template.awaited].max(initial=0.0)
    assert (end[template.last], free, waits) == pytest.approx(by_hand(ops, now, queue_free))
    assert template.first in template.entering


def test_equal_calls_of_a_group_set_keep_their_order():
    """Features and gradients of one group set keep their indices, and whether the pass waits for them."""
    ops = [Blocking(PHASES["a"]), Queued((PHASES["a"], PHASES["b"])), Compute(1.0), Blocking(PHASES["a"])]
    found = {calls.group_set: calls for calls in PassTemplate.from_ops(ops).calls}
    assert {group_set: calls.indices.tolist() for group_set, calls in found.items()} == {0: [0, 1, 4], 1: [2]}
    assert [found[0].kinds[which] for which in found[0].which] == [
        (is_blocking, PHASES["a"]) for is_blocking in (True, False, True)
    ]
    assert found[1].kinds == ((False, PHASES["b"]),)
