"""Passes without contention, built as a few fused operations instead of op by op, and the ops these expand to.

Classes of ranks whose collectives involve all of them form a lockstep set. Between two rendezvous the slowest class
determines the time, so that the part from the first rendezvous of a pass to the last has the same length whenever each
class arrives. A pass consists of a class's ops before it (the head), the shared part, and the class's ops after it (the
tail). A class on its own needs one operation. That is exact as long as no other group uses the links meanwhile.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.lowering.link_model import Flow, LinkModel
from lockstep.simulator.lowering.ops import OpList
from lockstep.simulator.lowering.program import RankClass
from lockstep.simulator.strategy.schedule import BACKWARD

_Group = tuple[int, int]
"""A group set and a class of its groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpExpansion:
    """The ops that the fused operations of a class represent, one operation for each of `passes`.

    Ops begin `begin_s` after their operation and last `seconds`, arrays of shape (ops,). An op is a computation if
    `feature` is -1, otherwise the feature `flows[feature]`, which moves `volumes_bytes[feature]` and occurs
    `counts[feature]` times in a pass; meanwhile the class computes for `hides_s`. The class is busy from `busy_s[0]` to
    `busy_s[1]`, arrays of shape (intervals,), and waits for its set in between. An operation that `is_shared` belongs
    to no class; one of its classes `carries` the bytes.
    """

    rank_class: int
    passes: NDArray[np.int64]
    operations: NDArray[np.int64]
    begin_s: NDArray[np.float64]
    seconds: NDArray[np.float64]
    feature: NDArray[np.int64]
    flows: tuple[Flow, ...]
    volumes_bytes: tuple[float, ...]
    counts: tuple[int, ...]
    busy_s: tuple[NDArray[np.float64], NDArray[np.float64]]
    is_shared: bool
    carries: bool
    hides_s: NDArray[np.float64]

    def features_s(self) -> list[float]:
        """Return for each flow the seconds of all its ops in all passes."""
        n = len(self.operations)
        named = zip(self.flows, self.volumes_bytes, self.counts, strict=True)
        return [n * count * (flow.latency_s + volume / flow.alone) for flow, volume, count in named]

    def op_features_s(self) -> NDArray[np.float64]:
        """Return the seconds of each op's feature, 0 for a computation."""
        times = zip(self.flows, self.volumes_bytes, strict=True)
        alone_s = [flow.latency_s + volume / flow.alone for flow, volume in times]
        return np.where(self.feature >= 0, np.array([*alone_s, 0.0])[self.feature], 0.0)

    def hidden_s(self) -> float:
        """Return the seconds in which features overlap computation, in all passes."""
        return len(self.operations) * float(np.minimum(self.op_features_s(), self.hides_s).sum())

    def carried_bytes(self) -> list[float]:
        """Return for each flow the bytes that its ops move in all passes."""
        n = len(self.operations) * self.carries
        return [n * count * volume for volume, count in zip(self.volumes_bytes, self.counts, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSummary:
    """A pass of a set: heads and tails by class, 0.0 for none, and the part between them, which the set shares.

    `shared_s` is None for a set without a rendezvous: its heads are whole passes. `begin_s` and `busy_s` are as in
    `OpExpansion`, by class, for the ops `first` to `end`.
    """

    head_s: list[float]
    shared_s: float | None
    tail_s: list[float]
    first: int
    end: int
    begin_s: list[NDArray[np.float64]]
    seconds: list[NDArray[np.float64]]
    busy_s: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
    hides_s: list[NDArray[np.float64]]


def summarise_pass(op_list: OpList, speeds: Sequence[float], features_s: Sequence[float]) -> PassSummary:
    """Return the pass of classes with these `speeds`; feature number i of the op list takes `features_s[i]`."""
    # Arrays of shape (classes of the set, ops), and over the rendezvous or the intervals between them.
    speed = np.array(speeds)
    rendezvous = np.flatnonzero(op_list.feature >= 0)
    taken = np.where(op_list.feature >= 0, np.array([*features_s, 0.0])[op_list.feature], 0.0)
    hides = op_list.hides_s / speed[:, None]
    # Parallel work that exceeds the time of its feature continues right after it.
    work = op_list.work_s / speed[:, None] + np.maximum(hides - taken, 0.0)
    if len(speeds) == 1 or not len(rendezvous):
        return _apart(work + taken, hides)
    done = np.cumsum(work, axis=1)
    # Classes of equal speed end together, so that all have the same tail.
    end = work.shape[1] if (speed == speed[0]).all() else int(rendezvous[-1]) + 1
    first = int(rendezvous[0])
    met = (done - work)[:, rendezvous]
    gap = np.diff(met, axis=1)
    longest = gap.max(axis=0)
    leaves = np.cumsum(taken[rendezvous]) + np.concatenate(([0.0], np.cumsum(longest)))
    begins = leaves - taken[rendezvous]
    tail = done[:, -1] - met[:, -1]
    is_whole = end == work.shape[1]
    shared_s = float(leaves[-1] + (tail[0] if is_whole else 0.0))
    since = np.searchsorted(rendezvous, np.arange(first, end), side="right") - 1
    begin_s, busy_s = [], []
    for own_work, own_done, own_met, own_gap in zip(work, done, met, gap, strict=True):
        begin = leaves[since] + (own_done - own_work)[first:end] - own_met[since]
        begin[rendezvous - first] = begins
        begin_s.append(begin)
        waits = own_gap < longest
        ends = (leaves[:-1] + own_gap)[waits]
        busy_s.append((np.concatenate(([0.0], begins[1:][waits])), np.concatenate((ends, [shared_s]))))
    return PassSummary(
        head_s=(met[:, 0]).tolist(),
        shared_s=shared_s,
        tail_s=[0.0] * len(speeds) if is_whole else tail.tolist(),
        first=first,
        end=end,
        begin_s=begin_s,
        seconds=list((work + taken)[:, first:end]),
        busy_s=busy_s,
        hides_s=list(hides[:, first:end]),
    )


def _apart(seconds: NDArray[np.float64], hides: NDArray[np.float64]) -> PassSummary:
    done = np.cumsum(seconds, axis=1)
    heads = done[:, -1].tolist() if seconds.shape[1] else [0.0] * len(seconds)
    return PassSummary(
        head_s=heads,
        shared_s=None,
        tail_s=[0.0] * len(heads),
        first=0,
        end=seconds.shape[1],
        begin_s=list(done - seconds),
        seconds=list(seconds),
        busy_s=[(np.array([0.0]), np.array([head_s])) for head_s in heads],
        hides_s=list(hides),
    )


def fusable_passes(rank_class: RankClass) -> int:
    """Return the number of passes before contention is possible: all up to the first sum of gradients."""
    if any(program.queues_always for program in rank_class.programs):
        return 0
    passes = rank_class.passes
    final = passes[:, 1].max()
    for index in np.flatnonzero((passes[:, 0] == BACKWARD) & (passes[:, 1] == final)):
        if rank_class.programs[passes[index, 2]].last.is_queuing:
            return int(index)
    return len(passes)


def lockstep_sets(classes: Sequence[RankClass], sending: Iterable[int], link_model: LinkModel) -> list[tuple[int, ...]]:
    """Return the sets of classes whose passes can be fused; a class is in at most one of them.

    All features of a set belong to groups of all its classes, and use links that nothing else uses meanwhile: no sends,
    which belong to the group sets `sending`, and no groups without a member in the set. Another group with a member in
    the set runs before or after the feature, and, if it is in the gradient queue, after all passes up to the first sum.
    """
    sends = {(group_set, group) for group_set in sending for group in link_model.group_of[group_set].values()}
    passed = {link for group in sends for link in link_model.links_of(*group)}
    group_sets = {stage: _group_sets(one) for stage, one in {each.stage: each for each in classes}.items()}
    visitors: dict[int, set[_Group]] = {}
    members: dict[_Group, tuple[int, ...]] = {}
    features: list[set[_Group]] = []
    for rank_class in classes:
        mine: set[_Group] = set()
        for group_set, blocking in group_sets[rank_class.stage]:
            group = (group_set, link_model.group_of[group_set][rank_class.number])
            if blocking:
                mine.add(group)
            if group not in members:
                members[group] = link_model.members(*group)
                for link in link_model.links_of(*group):
                    visitors.setdefault(link, set()).add(group)
        features.append(mine)
    found = []
    for number, mine in enumerate(features):
        together = {members[group] for group in mine} or {(number,)}
        members_of_set = together.pop()
        if together or number != members_of_set[0]:
            continue
        links = {link for group in mine for link in link_model.links_of(*group)}
        if (
            all(features[other] == mine for other in members_of_set)
            and not links & passed
            and all(set(members[group]) & set(members_of_set) for link in links for group in visitors[link])
        ):
            found.append(members_of_set)
    return found


def _group_sets(rank_class: RankClass) -> set[tuple[int, bool]]:
    """Return the group sets in which a class takes part, and whether its passes wait for them."""
    passes = (each for program in rank_class.programs for each in (program.forward, program.last))
    returns = {(phase.group_set, False) for queued in rank_class.returns for phase in queued.phases}
    return returns.union(*(each.group_sets for each in passes))
