# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""For which rank of a pipeline stage the others wait, by each rank's own time in a step.

A pipeline step contains chains of waits: a rank waits for data from another rank and therefore arrives late at a
collective of its own group, so the last rank in a collective is often not the slow one. Whatever a rank waits for, all
ranks take the same time for a step, and the time outside communication is the rank's own (Hermes, equation 1, T of a
device). Among ranks with the same work, the others wait for the one with most own time.

Shape suffixes: T steps, R ranks of a stage.
"""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.communication_causes.repetition import repetition
from lockstep.diagnosis.communication_causes.waiting import GroupWaiting, wait_ratio

_PEERS_MIN = 2
COUNTED = "steps"

Times = NDArray[np.float64]


class StepTimes(NamedTuple):
    """One rank's steps: numbers (int64), and per step its own time and its waiting time (float64 ns)."""

    number: NDArray[np.int64]
    own_ns: Times
    waits_ns: Times


def stage_waiting(times: Mapping[int, StepTimes], stages: Mapping[int, int], world_size: int) -> list[GroupWaiting]:
    """Return the waiting of each stage with at least two ranks, the one with most waiting first.

    The job's step is as long as its longest rank; the further waiting of another rank is its slack (`waited_ns`). A
    rank with more own time than its peers costs the job what neither its slack absorbs nor another stage needs anyway.
    """
    common = _common_steps(times)
    if not len(common):
        return []
    kept = {rank: np.isin(each.number, common) for rank, each in times.items()}
    own = {rank: each.own_ns[kept[rank]] for rank, each in times.items()}
    waits = {rank: each.waits_ns[kept[rank]] for rank, each in times.items()}
    is_whole = len(times) >= world_size
    several = [each for each in sorted(set(stages.values())) if len(_of_one(each, times, stages)) >= _PEERS_MIN]
    found = [_of_stage(each, own, waits, stages, is_whole=is_whole) for each in several]
    return sorted(found, key=lambda each: -float(each.waited_ns.sum()))


def _of_one(stage: int, ranks: Iterable[int], stages: Mapping[int, int]) -> list[int]:
    return [rank for rank in ranks if stages.get(rank) == stage]


def _common_steps(times: Mapping[int, StepTimes]) -> NDArray[np.int64]:
    """Return the numbers of the steps that all ranks recorded."""
    common = np.zeros(0, np.int64)
    for at, each in enumerate(times.values()):
        common = each.number if at == 0 else np.intersect1d(common, each.number)
    return common


def _of_stage(
    stage: int, own: Mapping[int, Times], waits: Mapping[int, Times], stages: Mapping[int, int], *, is_whole: bool
) -> GroupWaiting:
    ranks = tuple(sorted(_of_one(stage, own, stages)))
    own_TR = np.stack([own[rank] for rank in ranks], axis=1)
    waited_TR = own_TR.max(axis=1)[:, None] - own_TR
    last_T = own_TR.argmax(axis=1)
    caused_T = waited_TR.sum(axis=1)
    caused, once = np.zeros((2, len(ranks)))
    np.add.at(caused, last_T, caused_T)
    np.maximum.at(once, last_T, caused_T)
    stands_ns = {rank: float(each.sum()) for rank, each in waits.items()}
    lost = [_lost_to(rank, last_T == at, own, stages) for at, rank in enumerate(ranks)]
    step_T = np.arange(len(own_TR))
    return GroupWaiting(
        group=(f"pipeline stage {stage}", ranks),
        ranks=ranks,
        collectives=len(own_TR),
        compute_ratio=wait_ratio(own_TR),
        elapsed_ratio=float("nan"),
        transit_ratio=float("nan"),
        waited_ns=np.array([stands_ns[rank] for rank in ranks]) - min(stands_ns.values()),
        caused_ns=caused,
        once_ns=once,
        lost_ns=np.array(lost),
        awaited=np.bincount(last_T, minlength=len(ranks)),
        repeated=repetition(step_T, last_T, waited_TR, step_starts_ns_T=step_T),
        duration_ns=np.array([stands_ns[rank] for rank in ranks]),
        transmits_ns=np.full(own_TR.shape, np.nan),
        is_whole=is_whole,
        counted=COUNTED,
    )


def _lost_to(rank: int, for_it_T: NDArray[np.bool_], own: Mapping[int, Times], stages: Mapping[int, int]) -> float:
    """Return the cost of a rank to the job in the steps in which it is the longest of its stage.

    Without the fault each rank would take as long as the others of its stage, and the job as long as the longest rank.
    """
    needs = {each: float(own_T[for_it_T].sum()) for each, own_T in own.items()}
    repaired = max(min(ns, _usual(each, needs, stages)) for each, ns in needs.items())
    slack = max(needs.values()) - needs[rank]
    beyond = needs[rank] - max(repaired, _usual(rank, needs, stages))
    return max(beyond - slack, 0.0)


def _usual(rank: int, needs: Mapping[int, float], stages: Mapping[int, int]) -> float:
    """Return the median of the other ranks of its stage, or its own value if it is alone."""
    others = [needs[each] for each in _of_one(stages[rank], needs, stages) if each != rank]
    return median(others) if others else needs[rank]
