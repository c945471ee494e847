# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""What takes a rank longer than its peers in every step: a fault recurs, the noise of a busy host does not.

Totals of a capture cannot separate the two: one pause by the scheduler is as long as a fault in all steps together.
Step by step they differ. So a node of the call tree counts with its median excess if it has it in every step, beyond
the spread of its peers and beyond what a generally slower rank has; all other nodes count as equal. `explain` then
reads the remaining trees like those of any capture.

Shape suffixes: T steps, R peers, N nodes of the suspect's call tree and, last, time in no recorded call.
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
IN_EVERY_STEP = Threshold(0.5, "ratio of the median excess", "own: least excess of a step for it to be the same one")
PEER_SPREADS = Threshold(
    3.0,
    "standard deviations of the peers, median step, or standard errors of medians over steps",
    "own: as for any outlier among few",
)
OF_ITS_OWN = Threshold(0.5, "ratio of the excess", "own: least part that is left when the rank is as fast as its peers")
_OF_MEDIANS = 1.4826 * 1.2533
"""Factors from a median deviation to a standard deviation, and from the standard error of a mean to that of a median,
both for the normal distribution."""
_EXCEPTIONS = 5
"""In one of this many steps a pause of the peers may hide a fault."""

Times = NDArray[np.float64]


class Recurrence(NamedTuple):
    """Number of steps in which a function holds its excess, of how many."""

    held: int
    steps: int

    @property
    def is_usual(self) -> bool:
        """Whether it is more than half: an excess in fewer steps is a pause and no reason for a slow rank."""
        return 2 * self.held > self.steps


def steady_captures(
    suspect: TraceSummary, peers: Sequence[TraceSummary]
) -> tuple[TraceSummary, list[TraceSummary]] | None:
    """Return the captures as if the suspect and its peers differed only in what recurs in every step.

    All peers get the median over the peers; the suspect gets that plus its steady excess. Findings are unchanged. None
    if there are too few steps, no peer, or nothing is steady.
    """
    steps = _known_steps(suspect, peers)
    if steps < STEPS.value:
        return None
    own_TN = _with_outside(suspect, steps)
    peers_RTN = np.stack([_as_nodes_of(suspect, each, steps) for each in peers])
    excess_N = _with_callees(_steady_excess(own_TN, peers_RTN, suspect.tree), suspect.tree)
    if not excess_N.any():
        return None
    usual_N = np.median(peers_RTN, axis=(0, 1))
    usual = [_with_totals(each, suspect.tree, usual_N, steps) for each in peers]
    return _with_totals(suspect, suspect.tree, usual_N + excess_N, steps), usual


def recurring_steps(suspect: TraceSummary, peers: Sequence[TraceSummary], path: Sequence[str]) -> Recurrence | None:
    """Return in how many steps a node of the suspect's call tree holds its excess; None if unknown.

    `path` are the names from a root to the node. It is unknown with few steps, without peers, or for a node that is not
    among the calls.
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
    """Return the number of steps with totals of their own in all these captures, 0 without peers."""
    return min(len(each.step_ns) for each in (suspect, *peers)) if peers else 0


def _with_outside(summary: TraceSummary, steps: int) -> Times:
    """Return the nodes' work in the first steps, without collectives, plus each step's time outside the roots."""
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
    """Return a peer's totals by the suspect's nodes, 0 if its tree lacks one."""
    totals_TN = _with_outside(peer, steps)
    place = {path: at for at, path in enumerate(paths(peer.tree))}
    found = np.zeros((steps, len(suspect.tree) + 1))
    for at, path in enumerate(paths(suspect.tree)):
        if path in place:
            found[:, at] = totals_TN[:, place[path]]
    found[:, -1] = totals_TN[:, -1]
    return found


def _steady_excess(own_TN: Times, peers_RTN: Times, tree: Sequence[CallNode]) -> Times:
    """Return the excess over the peers' medians of the nodes that have it in every step, 0 for all others.

    That is the median over steps if they are alike. A fault may vary, as collections and loaders do: if the rank's
    smallest step exceeds every step of every peer, it is the excess of the smallest. A single peer does not show how
    much ranks differ, so the rank's smallest step has to exceed all of its steps.
    """
    usual_TN = np.median(peers_RTN, axis=0)
    excess_TN = own_TN - usual_TN
    median_N, usual_N = np.median(excess_TN, axis=0), np.median(usual_TN, axis=0)
    least_N = np.sort(excess_TN, axis=0)[len(excess_TN) // _EXCEPTIONS]
    is_apart_N = own_TN.min(axis=0) > peers_RTN.max(axis=(0, 1))
    steady_N = np.where(least_N >= IN_EVERY_STEP.value * median_N, median_N, np.where(is_apart_N, least_N, 0.0))
    spread_N = _scatter_of_medians(peers_RTN)
    if len(peers_RTN) > 1:
        spread_N = np.maximum(spread_N, np.median(peers_RTN.std(axis=0, ddof=1), axis=0))
    else:
        steady_N = np.where(is_apart_N, steady_N, 0.0)
    of_slowness_N = max(_slowness(own_TN, usual_TN, tree) - 1.0, 0.0) * usual_N
    is_steady_N = (steady_N > 0) & (steady_N >= PEER_SPREADS.value * spread_N)
    is_steady_N &= steady_N - of_slowness_N >= OF_ITS_OWN.value * steady_N
    return np.where(is_steady_N, steady_N, 0.0)


def _with_callees(excess_N: Times, tree: Sequence[CallNode]) -> Times:
    """Return the excess with each caller's at least the sum of its callees', since its total contains them."""
    found, callees_N = excess_N.copy(), np.zeros_like(excess_N)
    for index in reversed(range(len(tree))):  # callers come first
        found[index] = max(found[index], callees_N[index])
        if tree[index].parent != ROOT:
            callees_N[tree[index].parent] += found[index]
    return found


def _scatter_of_medians(peers_RTN: Times) -> Times:
    """Return the standard error of the difference between a rank's median and its peers', from their steps alone.

    With two peers the spread within most steps may be small by chance although each varies by more than the excess. The
    median deviation over steps ignores single pauses.
    """
    peers, steps, _ = peers_RTN.shape
    deviation_RN = np.median(np.abs(peers_RTN - np.median(peers_RTN, axis=1, keepdims=True)), axis=1)
    scatter_N: Times = _OF_MEDIANS * np.median(deviation_RN, axis=0) * np.sqrt((1 + 1 / peers) / steps)
    return scatter_N


def _slowness(own_TN: Times, usual_TN: Times, tree: Sequence[CallNode]) -> float:
    """Return how many times as long as its peers' median the rank takes for the same work: a rank without its core.

    The median over the peers' recorded work, by self time, so that a fault in one function does not count.
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
    """Return the self time of each node: its total less its callees'."""
    found = totals_N.copy()
    for index, node in enumerate(tree):
        if node.parent != ROOT:
            found[node.parent] -= totals_N[index]
    return np.maximum(found, 0.0)


def _with_totals(summary: TraceSummary, tree: Sequence[CallNode], totals_N: Times, steps: int) -> TraceSummary:
    """Return a capture with these totals per step, without collectives and without single steps."""
    whole_N = np.round(totals_N * steps).astype(np.int64)
    roots = sum(int(whole_N[index]) for index, node in enumerate(tree) if node.parent == ROOT)
    nodes = [
        replace(node, total_ns=int(total), self_ns=0, by_step_ns=[])
        for node, total in zip(tree, whole_N[:-1], strict=True)
    ]
    return replace(summary, steps=steps, tree=nodes, window_ns=roots + int(whole_N[-1]), step_ns=[])
