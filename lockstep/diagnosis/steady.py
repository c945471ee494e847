# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""What a rank does longer than its peers in every step: a fault comes back, the noise of a busy host does not.

The totals of a capture cannot separate the two: one pause of a scheduler is as long as a fault is in all steps
together. Step by step they differ. So a node of the call tree counts with its median excess where it has it in every
step, beyond what the peers are apart there and beyond what a rank that is slower in everything has; all other nodes
count as alike. `explain` then reads the trees that remain as it reads those of any capture.

Shape suffixes: T steps, R peers, N nodes of the suspect's call tree and, as the last one, time in no recorded call.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.messages import CallNode, TraceSummary
from lockstep.diagnosis.excess import paths
from lockstep.diagnosis.threshold import Threshold
from lockstep.trace.names import COMMUNICATION_KIND
from lockstep.trace.patterns.pattern import OUTSIDE
from lockstep.trace.tree import ROOT

STEPS = Threshold(3, "count of steps", "own: fewer steps do not show what comes back")
PEERS = Threshold(2, "count of ranks", "own: one peer alone does not show what ranks are apart")
IN_EVERY_STEP = Threshold(0.5, "ratio of the median excess", "own: least excess of a step for it to be the same one")
PEER_SPREADS = Threshold(
    3.0,
    "standard deviations of the peers, median step, or standard errors of medians over steps",
    "own: as for any outlier among few",
)
OF_ITS_OWN = Threshold(0.5, "ratio of the excess", "own: least part that is left when the rank is as fast as its peers")
_OF_MEDIANS = 1.4826 * 1.2533
"""From a median deviation to a standard deviation, and from the standard error of a mean to that of a median: both of
the normal distribution."""
_EXCEPTIONS = 5
"""In one of so many steps a fault may be hidden by a pause of its peers."""

Times = NDArray[np.float64]


class Recurrence(NamedTuple):
    """In how many of how many steps a function holds its excess."""

    held: int
    steps: int

    @property
    def is_usual(self) -> bool:
        """Whether it is more than half: an excess in fewer steps is a pause, and not why the rank is slow."""
        return 2 * self.held > self.steps


def steady_captures(
    suspect: TraceSummary, peers: Sequence[TraceSummary]
) -> tuple[TraceSummary, list[TraceSummary]] | None:
    """Return the captures as they were if the suspect and its peers differed only in what every step has.

    The peers have the medians of all of them, the suspect these and its steady excess; findings stay each rank's own.
    None where steps or peers are too few, or nothing is steady.
    """
    steps = _known_steps(suspect, peers)
    if steps < STEPS.value or len(peers) < PEERS.value:
        return None
    own_TN = _with_outside(suspect, steps)
    peers_RTN = np.stack([_as_nodes_of(suspect, each, steps) for each in peers])
    excess_N = _steady_excess(own_TN, peers_RTN, suspect.tree)
    if not excess_N.any():
        return None
    usual_N = np.median(peers_RTN, axis=(0, 1))
    usual = [_with_totals(each, suspect.tree, usual_N, steps) for each in peers]
    return _with_totals(suspect, suspect.tree, usual_N + excess_N, steps), usual


def recurring_steps(suspect: TraceSummary, peers: Sequence[TraceSummary], path: Sequence[str]) -> Recurrence | None:
    """Return in how many steps a node of the suspect's call tree holds its excess; None where that cannot be seen.

    `path` are the names from a root to the node. It cannot be seen of few steps, without peers, or of a node that is
    not among the calls.
    """
    steps = _known_steps(suspect, peers)
    names = [tuple(name for _, name in each) for each in paths(suspect.tree)] + [(OUTSIDE,)]
    if steps < STEPS.value or tuple(path) not in names:
        return None
    at = names.index(tuple(path))
    peers_RT = np.stack([_as_nodes_of(suspect, each, steps)[:, at] for each in peers])
    excess_T = _with_outside(suspect, steps)[:, at] - np.median(peers_RT, axis=0)
    return Recurrence(int(np.count_nonzero(excess_T >= IN_EVERY_STEP.value * excess_T.mean())), steps)


def _known_steps(suspect: TraceSummary, peers: Sequence[TraceSummary]) -> int:
    """Return how many steps are known by themselves of all these captures, 0 without peers."""
    return min(len(each.step_ns) for each in (suspect, *peers)) if peers else 0


def _with_outside(summary: TraceSummary, steps: int) -> Times:
    """Return the work of the nodes in the first steps, collectives taken out, and what the roots leave of each step."""
    tree = summary.tree
    totals_TN = np.array([each.by_step_ns[:steps] for each in tree], np.float64).reshape(len(tree), steps).T
    outside_T = np.array(summary.step_ns[:steps], np.float64)
    waiting_TN = np.zeros_like(totals_TN)
    for index in reversed(range(len(tree))):
        if tree[index].kind == COMMUNICATION_KIND:
            waiting_TN[:, index] = totals_TN[:, index]
        if tree[index].parent == ROOT:
            outside_T -= totals_TN[:, index]
        else:
            waiting_TN[:, tree[index].parent] += waiting_TN[:, index]
    return np.column_stack((totals_TN - waiting_TN, np.maximum(outside_T, 0.0)))


def _as_nodes_of(suspect: TraceSummary, peer: TraceSummary, steps: int) -> Times:
    """Return a peer's totals by the suspect's nodes, 0 where its tree lacks one."""
    totals_TN = _with_outside(peer, steps)
    place = {path: at for at, path in enumerate(paths(peer.tree))}
    found = np.zeros((steps, len(suspect.tree) + 1))
    for at, path in enumerate(paths(suspect.tree)):
        if path in place:
            found[:, at] = totals_TN[:, place[path]]
    found[:, -1] = totals_TN[:, -1]
    return found


def _steady_excess(own_TN: Times, peers_RTN: Times, tree: Sequence[CallNode]) -> Times:
    """Return the excess over the peers' medians of the nodes that have it in every step, 0 of all others.

    That is the median of steps that are alike. A fault may vary, as collections and loaders do: where the rank takes
    longer in its least step than any peer in any, it is the excess of the least.
    """
    usual_TN = np.median(peers_RTN, axis=0)
    excess_TN = own_TN - usual_TN
    median_N, usual_N = np.median(excess_TN, axis=0), np.median(usual_TN, axis=0)
    least_N = np.sort(excess_TN, axis=0)[len(excess_TN) // _EXCEPTIONS]
    is_apart_N = own_TN.min(axis=0) > peers_RTN.max(axis=(0, 1))
    steady_N = np.where(least_N >= IN_EVERY_STEP.value * median_N, median_N, np.where(is_apart_N, least_N, 0.0))
    spread_N = np.maximum(np.median(peers_RTN.std(axis=0, ddof=1), axis=0), _scatter_of_medians(peers_RTN))
    of_slowness_N = max(_slowness(own_TN, usual_TN, tree) - 1.0, 0.0) * usual_N
    is_steady_N = (steady_N > 0) & (steady_N >= PEER_SPREADS.value * spread_N)
    is_steady_N &= steady_N - of_slowness_N >= OF_ITS_OWN.value * steady_N
    return np.where(is_steady_N, steady_N, 0.0)


def _scatter_of_medians(peers_RTN: Times) -> Times:
    """Return by how much a rank's median differs from that of its peers by the variation of their steps alone.

    Of two peers the spread in most steps may be small by chance, while each of them varies by more than the excess. The
    median deviation of steps leaves single pauses out.
    """
    peers, steps, _ = peers_RTN.shape
    deviation_RN = np.median(np.abs(peers_RTN - np.median(peers_RTN, axis=1, keepdims=True)), axis=1)
    scatter_N: Times = _OF_MEDIANS * np.median(deviation_RN, axis=0) * np.sqrt((1 + 1 / peers) / steps)
    return scatter_N


def _slowness(own_TN: Times, usual_TN: Times, tree: Sequence[CallNode]) -> float:
    """Return how many times as long as its peers' median the rank takes for the same work: a rank without its core.

    The median over the recorded work of the peers, by self time, so that a fault in one function does not count.
    """
    own_N, usual_N = (_self_times(np.median(each, axis=0), tree)[:-1] for each in (own_TN, usual_TN))
    known = usual_N > 0
    if not known.any():
        return 1.0
    ratio, weight = own_N[known] / usual_N[known], usual_N[known]
    order = np.argsort(ratio)
    at = int(np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2))
    return float(ratio[order][min(at, len(ratio) - 1)])


def _self_times(totals_N: Times, tree: Sequence[CallNode]) -> Times:
    """Return what the callees of each node leave of it."""
    found = totals_N.copy()
    for index, node in enumerate(tree):
        if node.parent != ROOT:
            found[node.parent] -= totals_N[index]
    return np.maximum(found, 0.0)


def _with_totals(summary: TraceSummary, tree: Sequence[CallNode], totals_N: Times, steps: int) -> TraceSummary:
    """Return a capture of so many steps with these totals a step, without collectives and without single steps."""
    whole_N = np.round(totals_N * steps).astype(np.int64)
    roots = sum(int(whole_N[index]) for index, node in enumerate(tree) if node.parent == ROOT)
    nodes = [
        replace(node, total_ns=int(total), self_ns=0, by_step_ns=[])
        for node, total in zip(tree, whole_N[:-1], strict=True)
    ]
    return replace(summary, steps=steps, tree=nodes, window_ns=roots + int(whole_N[-1]), step_ns=[])
