"""Passes as few operations: everything in a forecast is as when drawn act by act."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.simulator.hardware.clusters import dgx_a100, hc1, hc2
from lockstep.simulator.lowering.fused_passes import summarise_pass
from lockstep.simulator.lowering.link_model import Phase
from lockstep.simulator.lowering.ops import Blocking, Compute, OpList
from lockstep.simulator.models.transformers import gpt, moe
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.strategy.preset import Degrees, preset
from lockstep.simulator.strategy.schedule import Schedule

SMALL = gpt(layers=4, hidden=1024, heads=16, sequence=512, vocabulary=1024)
EXPERTS = moe(layers=4, hidden=512, heads=8, sequence=256, ffn=1024, experts=4, vocabulary=1024)
CLUSTERS = {8: hc1(), 16: hc2(2), 32: dgx_a100(4)}


def numbers_of(tree, cluster, **options):
    """Return what the two drawings must agree in, as numbers by name."""
    found = simulate(tree, cluster, batch=64, options=Options(**options))
    times = found.communication_seconds
    numbers = {
        "step": found.step_seconds,
        "total": times.total,
        "exposed": times.exposed,
        "bubble": found.bubble_seconds,
        **{f"kind {kind}": seconds for kind, seconds in times.by_kind.items()},
        **{f"peak {stage}": peak for stage, peak in enumerate(found.peak_memory_bytes)},
        **{f"link {link}": carried for link, carried in found.link_bytes.items()},
    }
    return numbers, found.operations


def agree(tree, cluster, **options):
    """Assert that both drawings give the same; return how many operations each needs."""
    (fused, few), (fine, many) = (
        numbers_of(tree, cluster, **options, fuse_passes=fuse_passes) for fuse_passes in (True, False)
    )
    # Differences of times, which rounding of the step reaches.
    assert fused == pytest.approx(fine, rel=1e-9, abs=1e-9 * fine["step"])
    return few, many


@st.composite
def sick_jobs(draw):
    """Return a tree with tp > 1 on a cluster with slow ranks and sick links, and options."""
    ranks = draw(st.sampled_from(sorted(CLUSTERS)))
    tp, cp, pp = (draw(st.sampled_from(sizes)) for sizes in ((2, 4, 8), (1, 1, 2), (1, 2, 4)))
    dp = max(1, ranks // (tp * cp * pp))
    ranks = tp * cp * pp * dp
    degrees = Degrees(
        tp=tp,
        cp=cp,
        pp=pp,
        dp=dp,
        virtual=draw(st.sampled_from([1, 1, 2])) if pp == 2 else 1,
        zero=draw(st.sampled_from([0, 0, 1, 2])),
        sequence_parallel=draw(st.booleans()),
    )
    cluster = next(each for size, each in CLUSTERS.items() if size >= ranks or size == max(CLUSTERS))
    for _ in range(draw(st.integers(0, 2))):
        cluster = cluster.with_rank(
            draw(st.integers(0, min(ranks, cluster.size) - 1)), draw(st.sampled_from([0.5, 0.9]))
        )
    for _ in range(draw(st.integers(0, 2))):
        level = draw(st.integers(0, len(cluster.levels) - 1))
        child = draw(st.integers(0, cluster.size // cluster.child_size(level) - 1))
        cluster = cluster.with_link(level, child, draw(st.sampled_from([0.3, 0.7])))
    cluster = cluster.with_device(overlap_factor=draw(st.sampled_from([0.0, 0.3])))
    schedule = Schedule(micro_batches=4, order=draw(st.sampled_from(["1f1b", "gpipe"])))
    options = {
        "sharing": draw(st.booleans()),
        "bucket_bytes": draw(st.sampled_from([None, 5e6])),
        "overlap_tensor": draw(st.booleans()),
        "overlap_returns": draw(st.booleans()),
    }
    return degrees, schedule, cluster, options


@settings(deadline=None, max_examples=40)
@given(sick_jobs().filter(lambda job: job[0].ranks <= job[2].size))
def test_drawing_passes_as_a_whole_changes_nothing(job):
    """Slow ranks and sick links at tp > 1, with cp, pp, dp, sharing and gamma: the forecast of act by act, to 1e-9."""
    degrees, schedule, cluster, options = job
    agree(preset(SMALL, degrees, schedule), cluster, **options)


SICK = {
    "slow rank": lambda c: c.with_rank(5, 0.7),
    "two slow ranks of one group": lambda c: c.with_rank(0, 0.7).with_rank(1, 0.5),
    "NVLink port": lambda c: c.with_link(0, 3, 0.4),
    "network card": lambda c: c.with_link(1, 1, 0.5),
    "all at once": lambda c: c.with_rank(2, 0.8).with_link(0, 3, 0.4).with_link(1, 0, 0.5),
}


@pytest.mark.parametrize("hurt", SICK.values(), ids=SICK)
@pytest.mark.parametrize("collapsing", [True, False], ids=["classes", "ranks"])
def test_sick_tensor_parallel_groups_need_few_operations(hurt, collapsing):
    """A group of unlike ranks meets act by act, but needs no operation for each act; for each rank by itself neither."""
    cluster = hurt(hc2(2).with_device(overlap_factor=0.3))
    tree = preset(SMALL, Degrees(tp=4, pp=2, dp=2), Schedule(micro_batches=8))
    few, many = agree(tree, cluster, collapsing=collapsing)
    assert many > 2 * few


def test_expert_groups_are_drawn_exactly():
    """All-to-all among the ranks of two nodes, next to tensor parallel groups with a slow rank."""
    cluster = hc2(2).with_device(overlap_factor=0.3).with_rank(3, 0.6).with_link(0, 1, 0.5)
    for degrees in (Degrees(tp=2, ep=2, dp=4, pp=2), Degrees(tp=4, ep=4, dp=4)):
        agree(preset(EXPERTS, degrees, Schedule(micro_batches=4)), cluster)


ACTS = st.lists(st.one_of(st.sampled_from([0.0, 0.5, 1.0, 2.5]), st.sampled_from(["a", "b"])), max_size=9)


@settings(deadline=None)
@given(ACTS, st.lists(st.sampled_from([0.5, 0.8, 1.0]), min_size=1, max_size=3), st.lists(st.floats(0, 5), min_size=3))
def test_a_pass_summary_equals_its_ops(ops, speeds, entered):
    """Heads, the middle and tails end when stepping through the acts by hand does, and show when each act begins."""
    phases = {name: Phase("all_reduce", number, 1.0) for number, name in enumerate("ab")}
    op_list = OpList.from_ops([Blocking(phases[op]) if op in phases else Compute(op) for op in ops])
    takes = {phases["a"]: 0.25, phases["b"]: 3.0}
    found = summarise_pass(op_list, speeds, [takes[phase] for phase in op_list.phases])
    entered = entered[: len(speeds)]
    now, begun = list(entered), [[] for _ in speeds]
    for op in ops:
        if op in phases:
            now = [max(now)] * len(speeds)
        for index, speed in enumerate(speeds):
            begun[index].append(now[index])
            now[index] += takes[phases[op]] if op in phases else op / speed
    ends = [enter + head_s for enter, head_s in zip(entered, found.head_s, strict=True)]
    if found.shared_s is not None:
        start_s = max(ends)
        ends = [start_s + found.shared_s + tail_s for tail_s in found.tail_s]
        for index in range(len(speeds)):
            assert start_s + found.begin_s[index] == pytest.approx(begun[index][found.first : found.end])
            busy_s = sum(end - begin for begin, end in zip(*found.busy_s[index], strict=True))
            assert busy_s == pytest.approx(found.seconds[index].sum())
    assert ends == pytest.approx(now)
