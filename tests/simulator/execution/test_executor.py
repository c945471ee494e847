import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.execution.contention_free import longest_path
from lockstep.simulator.execution.executor import execute
from lockstep.simulator.execution.topological_levels import start_by_level
from lockstep.simulator.lowering.graph import FEATURE, GRADIENT
from tests.simulator.jobs import chain, computations, features, flow, graph


@pytest.mark.parametrize("groups", [2, 3, 8])
def test_t4_groups_on_one_link_take_as_many_times_longer(groups):
    """Each of k equal flows on one link takes k times as long as one alone."""
    alone = execute(graph(features((flow(0), 6.0))))
    shared = execute(graph(features(*[(flow(0), 6.0)] * groups)))
    assert alone.step_s == 6.0
    assert shared.end.tolist() == pytest.approx([6.0 * groups] * groups)


def test_t4_a_flow_that_leaves_frees_its_part():
    """Of two flows of 4 and 10 bytes the first ends at 8, the second, alone from then on, at 14."""
    timeline = execute(graph(features((flow(0), 4.0), (flow(0), 10.0))))
    assert timeline.end.tolist() == pytest.approx([8.0, 14.0])


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(0.1, 5)), min_size=1, max_size=8))
def test_t4_fair_sharing_matches_brute_force(jobs):
    """Flows that arrive one by one on a link end as in a processor-sharing queue stepped by hand."""
    arrivals = [sum(gap for gap, _ in jobs[: index + 1]) for index in range(len(jobs))]
    operations = [*computations(*arrivals), *features(*[(flow(0), work) for _, work in jobs])]
    # Each arrival is a computation of a rank of its own, so that they do not wait for each other.
    operations[: len(jobs)] = [(queue, work, owner) for owner, (queue, work, _) in enumerate(operations[: len(jobs)])]
    timeline = execute(graph(operations, [(index, len(jobs) + index) for index in range(len(jobs))]))
    left = dict(enumerate(work for _, work in jobs))
    ends, now = {}, 0.0
    while left:
        here = [index for index in left if arrivals[index] <= now + 1e-12]
        coming = [arrivals[index] - now for index in left if index not in here]
        step = min([left[index] * len(here) for index in here] + coming)
        for index in here:
            left[index] -= step / len(here)
        now += step
        for index in [index for index in here if left[index] <= 1e-9]:
            ends[index] = now
            del left[index]
    assert timeline.end[len(jobs) :].tolist() == pytest.approx([ends[index] for index in range(len(jobs))], rel=1e-6)


def test_overlap_stretches_the_part_that_overlaps():
    """A gradient of 2 s during a computation of 10 s, gamma 0.5: both run at 2/3 for 3 s, and 11 s pass."""
    operations = [*computations(10.0), (GRADIENT, 2.0, flow(0))]
    timeline = execute(graph(operations), overlap_factor=0.5)
    assert timeline.end.tolist() == pytest.approx([11.0, 3.0])


def test_overlap_is_felt_by_members_only():
    """A gradient of other ranks, and a feature of this one, slow no computation."""
    for other in ((GRADIENT, 2.0, flow(0, members=(1,))), (FEATURE, 2.0, flow(0))):
        timeline = execute(graph([*computations(10.0), other]), overlap_factor=0.5)
        assert timeline.end.tolist() == [10.0, 2.0]


def test_latency_holds_no_link():
    """A flow's latency passes after its bytes: the next flow has the link meanwhile."""
    operations = features((flow(0, latency_s=3.0), 4.0), (flow(0), 2.0), (flow(0), 1.0))
    timeline = execute(graph(operations, [(1, 2)]), events_only=True)
    # 0 and 1 share until 1 is through at 4; then 0 and 2 share until 6, when 2 is; 0 has moved 3 of 4 bytes by then.
    assert timeline.end.tolist() == pytest.approx([10.0, 4.0, 6.0])


@st.composite
def random_graphs(draw, *, flows=False):
    """Return directed acyclic graphs of computations, each of its own rank, and of flows if asked."""
    count = draw(st.integers(1, 12))
    operations = []
    for index in range(count):
        work = draw(st.sampled_from([0.0, 0.5, 1.0, 2.5]))
        if flows and draw(st.booleans()):
            members = tuple(draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=2)))
            latency_s = draw(st.sampled_from([0.0, 0.25]))
            links = sorted(draw(st.sets(st.integers(0, 2), min_size=1)))
            queue = draw(st.sampled_from([FEATURE, GRADIENT]))
            operations.append((queue, work, flow(*links, members=members, latency_s=latency_s)))
        else:
            operations += computations(work, owner=index)
    pairs = [(a, b) for b in range(count) for a in range(b) if draw(st.booleans())]
    return graph(operations, pairs, capacity=(1.0, 1.0, 1.0)), pairs


def brute_force_longest_path(of, edges):
    end = np.zeros(len(of))
    for index in range(len(of)):
        before = [end[a] for a, b in edges if b == index]
        spent = of.seconds[index] + of.volume_bytes[index]
        end[index] = max(before, default=0.0) + spent
    return end


@settings(deadline=None)
@given(random_graphs(flows=True))
def test_t5_undisturbed_is_the_longest_path(drawn):
    """Without sharing and overlap, events and both forms of the longest path agree with brute force."""
    of, edges = drawn
    expected = brute_force_longest_path(of, edges)
    for events_only in (False, True):
        assert execute(of, sharing=False, events_only=events_only).end == pytest.approx(expected)
    spent = of.seconds + of.volume_bytes
    assert start_by_level(of, spent) + spent == pytest.approx(expected)
    assert longest_path(of)[1] == pytest.approx(expected)


@settings(deadline=None)
@given(random_graphs(flows=True), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_shortcut_changes_nothing(drawn, overlap_factor):
    """Taking over from the longest path where the first disturbance strikes is what events from the start give."""
    of, _ = drawn
    quick = execute(of, overlap_factor=overlap_factor)
    slow = execute(of, overlap_factor=overlap_factor, events_only=True)
    assert quick.start == pytest.approx(slow.start, abs=1e-9)
    assert quick.end == pytest.approx(slow.end, abs=1e-9)


def test_operations_that_wait_for_each_other_are_named():
    """A cycle is an error, not a silence."""
    with pytest.raises(ConfigError, match="2 operations that wait for each other"):
        execute(graph(computations(1.0, 1.0), [(0, 1), (1, 0)]))


def test_an_undisturbed_graph_never_meets_the_heap():
    """A chain is settled by the longest path alone."""
    timeline = execute(graph(computations(1.0, 2.0, 3.0), chain(0, 1, 2)), overlap_factor=0.5)
    assert (timeline.settled, timeline.step_s) == (3, 6.0)


@pytest.mark.parametrize(("flows", "settled", "step_s"), [(2, 2, 4.0), (3, 0, 6.0)])
def test_flows_that_do_not_compete_never_meet_the_heap(flows, settled, step_s):
    """Flows that take half a link each do not disturb each other until a third one comes."""
    timeline = execute(graph(features(*[(flow(0, cap=0.5), 2.0)] * flows)))
    assert (timeline.settled, timeline.step_s) == (settled, pytest.approx(step_s))
