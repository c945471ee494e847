"""A rank with a fault in a job whose ranks the host pauses in turn for longer than the fault takes."""

import numpy as np
import pytest

from lockstep.analysis.cluster import analyse_cluster
from lockstep.analysis.rank import analyse_rank
from lockstep.analysis.steady_ranks import find_steady_ranks
from lockstep.trace.columns import ANNOTATION, OPERATOR, PYTHON, WorkKind
from tests.analysis.job import BASE_NS, MS, RANKS, metadata
from tests.trace.made import columns_of, made

STEPS, CULPRIT, WORK_MS = 4, 2, 10
FUNCTIONS = ("train.py(20): forward", "train.py(30): loss", "train.py(40): backward")
PAUSES_MS = np.array([(0, 70, 5, 0), (5, 0, 60, 10), (0, 0, 40, 55), (50, 0, 0, 0)])
"""Of each rank in each step, in a function that changes with both."""


def ranks_of(fault_ms=0, *, paused=PAUSES_MS, only_first=False, recorded=STEPS):
    """Return the ranks' analyses; rank 2 takes `fault_ms` more in its loss, in every step or in the first two.

    The last `recorded` all-reduces are in the trace.
    """
    work_ms = np.full((STEPS, len(RANKS), len(FUNCTIONS)), WORK_MS)
    for step in range(STEPS):
        for rank in RANKS:
            work_ms[step, rank, (step + rank) % len(FUNCTIONS)] += paused[step, rank]
    work_ms[: 2 if only_first else STEPS, CULPRIT, 1] += fault_ms
    events = {rank: [] for rank in RANKS}
    begin_ns = BASE_NS
    for step in range(STEPS):
        end_ns = begin_ns + int(work_ms[step].sum(axis=1).max() + 5) * MS
        for rank in RANKS:
            of_step = step_of(step, begin_ns, end_ns, work_ms[step, rank].tolist())
            events[rank] += of_step if step >= STEPS - recorded else of_step[:-1]
        begin_ns = end_ns
    return [analyse_rank(columns_of(events[rank], metadata=metadata(rank)), rank=rank) for rank in RANKS]


def step_of(step, begin_ns, end_ns, work_ms):
    """Return a step's events: three functions, and an all-reduce that all ranks leave together."""
    ends_ns = begin_ns + np.cumsum(work_ms) * MS
    functions = [
        made(name, PYTHON, 1, int(end) - ms * MS, ms * MS)
        for name, ms, end in zip(FUNCTIONS, work_ms, ends_ns, strict=True)
    ]
    arrived = int(ends_ns[-1])
    return [
        made(f"ProfilerStep#{step}", ANNOTATION, 1, begin_ns, end_ns - begin_ns),
        *functions,
        made("c10d::allreduce_", OPERATOR, 1, arrived, 1000),
        made("<built-in method wait of Work>", PYTHON, 1, arrived + 1000, end_ns - arrived - 2000),
        made("gloo:all_reduce", ANNOTATION, 9, arrived + 500, end_ns - arrived - 600, work=WorkKind.COMMUNICATION),
    ]


def named(ranks):
    """Return what is found of some ranks only."""
    return [each for each in analyse_cluster(ranks).findings if len(each.ranks) < len(RANKS)]


def test_a_fault_in_every_step_is_found_below_the_noise():
    """30 ms in each step, next to pauses of 40 to 70 ms: rank 2 is the last one in two steps of four only."""
    (found,) = named(ranks_of(30))
    assert (found.cause, found.ranks, found.subject) == ("slow_function", (CULPRIT,), FUNCTIONS[1])
    assert (found.steps, found.confidence) == ((STEPS, STEPS), "medium")
    assert 0 < found.lost_ns <= STEPS * 30 * MS


def test_two_collectives_show_who_is_waited_for():
    """Of four steps two have their all-reduce in the trace: the calls show that it recurs, the waiting what it costs."""
    (found,) = named(ranks_of(30, recorded=2))
    assert (found.ranks, found.subject) == ((CULPRIT,), FUNCTIONS[1])
    assert 0 < found.lost_ns <= 2 * 30 * MS


@pytest.mark.parametrize("ranks", [ranks_of(0), ranks_of(60, only_first=True)])
def test_pauses_name_no_rank(ranks):
    """Ranks that are paused in turn, and one that takes longer in the first two steps only."""
    assert named(ranks) == []


def test_what_no_rank_waits_for_costs_nothing():
    """Rank 2 takes 30 ms longer in every step, and rank 0 is paused for longer than that in each: none waits for it."""
    paused = np.zeros((STEPS, len(RANKS)), int)
    paused[:, 0] = 45
    ranks = {each.rank: each for each in ranks_of(30, paused=paused)}
    peers = {rank: [each for each in RANKS if each != rank] for rank in RANKS}
    assert find_steady_ranks(ranks, peers, analyse_cluster(list(ranks.values())).groups, slow=()) == []
    faulty = {each.rank: each for each in ranks_of(30)}
    (found,) = find_steady_ranks(faulty, peers, analyse_cluster(list(faulty.values())).groups, slow=())
    assert found.ranks == (CULPRIT,)
