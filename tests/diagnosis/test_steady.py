"""What a rank does longer in every step, and what pauses of the host are."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.diagnosis.steady import recurring_steps, steady_captures
from tests.diagnosis.summaries import summary

MS = 1_000_000
STEP_MS = 100


def calls(rank, totals_ms, *, names=("forward", "backward"), callee_ms=None, callee="wait for collectives"):
    """Return the calls of a rank: `totals_ms` has one row a step, one column a root; and a callee of the first root."""
    rows = np.array(totals_ms, np.int64) * MS
    roots = [(name, 1) for name in names]
    if callee_ms is not None:
        roots[0] = (names[0], 1, (callee, 1))
        rows = np.insert(rows, 1, np.array(callee_ms, np.int64) * MS, axis=1)
    made = summary(rank, *roots)
    nodes = [
        replace(node, total_ns=int(each.sum()), self_ns=0, by_step_ns=each.tolist())
        for node, each in zip(made.tree, rows.T, strict=True)
    ]
    return replace(made, tree=nodes, steps=len(rows), step_ns=[STEP_MS * MS] * len(rows))


def steady_ms(suspect, peers):
    """Return by how much each root is longer in every step, ms a step, by name."""
    found = steady_captures(suspect, peers)
    if found is None:
        return {}
    own, (usual, *_) = found
    differences = {
        one.name: (one.total_ns - other.total_ns) / own.steps / MS
        for one, other in zip(own.tree, usual.tree, strict=True)
    }
    return {name: ms for name, ms in differences.items() if ms}


PEERS = [
    calls(0, [[10, 20], [70, 21], [11, 20], [10, 90]]),
    calls(1, [[11, 80], [10, 20], [10, 22], [12, 20]]),
    calls(3, [[10, 21], [10, 20], [10, 20], [11, 21]]),
]
"""Three ranks, two of which the host pauses for 60 or 70 ms once or twice."""


def test_a_fault_that_every_step_has_is_left_of_the_noise():
    """Rank 2 takes 15 ms longer in forward, and was paused in backward once for longer than that in all steps."""
    suspect = calls(2, [[25, 20], [26, 20], [25, 90], [26, 21]])
    assert steady_ms(suspect, PEERS) == {"forward": pytest.approx(15, abs=1)}


def test_two_peers_that_vary_by_more_show_no_excess():
    """The host shortens and lengthens their steps alike; in most steps the two are close to each other by chance."""
    peers = [
        calls(1, [[165, 300], [48, 300], [116, 300], [48, 300]]),
        calls(2, [[31, 300], [71, 300], [102, 300], [57, 300]]),
    ]
    assert steady_ms(calls(3, [[173, 300], [144, 300], [163, 300], [137, 300]]), peers) == {}
    steady = [calls(rank, [[52, 300], [48, 300], [51, 300], [48, 300]]) for rank in (1, 2)]
    assert steady_ms(calls(3, [[133, 300], [128, 300], [131, 300], [137, 300]]), steady) == {
        "forward": pytest.approx(81, abs=2)
    }


def test_pauses_are_nothing_steady():
    """Two pauses of 60 ms make the total 30 ms a step longer; half of the steps have none of it."""
    assert steady_ms(calls(2, [[70, 20], [70, 20], [10, 20], [10, 20]]), PEERS) == {}


def test_a_fault_may_vary_where_no_peer_ever_takes_as_long():
    """Collections of 30 to 300 ms on rank 2 alone count with 20 ms, which every step has; a peer's 35 ms hide them."""
    suspect = calls(2, [[300, 20], [30, 20], [120, 20], [250, 20]])
    quiet = [calls(rank, [[10, 20]] * 4) for rank in (0, 1, 3)]
    assert steady_ms(suspect, quiet) == {"forward": pytest.approx(20, abs=1)}
    assert steady_ms(suspect, [*quiet[:2], calls(3, [[10, 20], [35, 20], [10, 20], [10, 20]])]) == {}


def test_one_of_five_steps_may_hide_a_fault():
    """Two of three peers are paused in the same step."""
    peers = [calls(0, [[10, 20]] * 4 + [[90, 20]]), calls(1, [[10, 20]] * 4 + [[90, 20]]), calls(3, [[11, 20]] * 5)]
    assert steady_ms(calls(2, [[30, 20]] * 5), peers) == {"forward": pytest.approx(20, abs=1)}


def test_a_rank_that_is_slower_in_everything_has_no_function_of_its_own():
    """Another process has half of its core: all that it does takes twice as long."""
    assert steady_ms(calls(2, [[20, 40], [21, 40], [20, 42], [20, 40]]), PEERS) == {}


def test_waiting_within_a_function_is_none_of_it():
    """The peers wait for rank 2 in their forwards, which are as long as its own, 30 ms of which is work."""
    suspect = calls(2, [[40, 20]] * 4, callee_ms=[0] * 4)
    peers = [calls(rank, [[40, 20]] * 4, callee_ms=[30] * 4) for rank in (0, 1, 3)]
    assert steady_ms(suspect, peers) == {"forward": 30}


def test_a_caller_takes_longer_by_at_least_what_its_callees_do():
    """Forward as a whole differs by pauses of the host; in it, attention takes 6 ms more in every step."""
    peers = [
        calls(
            rank,
            [[40 + first, 20], [40, 20], [60 - first, 20], [40, 20]],
            callee_ms=[10, 10, 10, 10],
            callee="attention",
        )
        for rank, first in ((0, 0), (1, 20), (3, 10))
    ]
    suspect = calls(2, [[46, 20], [36, 20], [47, 20], [38, 20]], callee_ms=[16, 16, 17, 16], callee="attention")
    assert steady_ms(suspect, peers) == {"attention": pytest.approx(6, abs=1), "forward": pytest.approx(6, abs=1)}


def test_time_in_no_call_counts_as_well():
    """Without stacks a slow logger is in no call: 20 ms less of each step are recorded on rank 2."""
    own, usual = steady_captures(calls(2, [[10, 20]] * 4), [calls(rank, [[10, 40]] * 4) for rank in (0, 1, 3)])
    assert own.window_ns - usual[0].window_ns == 4 * 20 * MS


@pytest.mark.parametrize(("steps", "peers"), [(2, 3), (4, 0)])
def test_too_little_shows_nothing(steps, peers):
    """Two steps do not show what comes back; without peers no step can be evaluated."""
    suspect, others = calls(2, [[90, 20]] * steps), [calls(rank, [[10, 20]] * steps) for rank in range(peers)]
    assert steady_captures(suspect, others) is None
    assert recurring_steps(suspect, others, ["forward"]) is None


@pytest.mark.parametrize(("forward_ms", "excess"), [((40, 41, 40, 42), {"forward": 20}), ((40, 41, 40, 24), {})])
def test_one_peer_shows_what_is_longer_than_its_longest_step(forward_ms, excess):
    """The peer takes 20 ms, and once 25: the suspect has to take longer than that in each step, as ranks are apart."""
    suspect, peer = calls(2, [[ms, 20] for ms in forward_ms]), calls(0, [[20, 20], [20, 20], [25, 20], [20, 20]])
    assert steady_ms(suspect, [peer]) == {name: pytest.approx(ms, abs=1) for name, ms in excess.items()}


@pytest.mark.parametrize(
    ("forward_ms", "expected"), [((30, 30, 10, 30), (3, 4)), ((30, 90, 40, 30), (4, 4)), ((90, 90, 10, 10), (2, 4))]
)
def test_a_function_recurs_in_more_than_half_of_the_steps(forward_ms, expected):
    """As a fault in three of four steps does, and as two pauses do not."""
    suspect = calls(2, [[each, 20] for each in forward_ms])
    found = recurring_steps(suspect, PEERS, ["forward"])
    assert (found, found.is_usual) == (expected, expected != (2, 4))
    assert recurring_steps(suspect, PEERS, ["no such call"]) is None
