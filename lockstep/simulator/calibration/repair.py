"""Predicts the gain of one repair: a step with the measured fault, and the step without it.

The fault is put into the calibrated model of a healthy run, so that what-ifs do not depend on when the model was
fitted: a slow rank computes at the speed that its measured excess implies, a slow link has the bandwidth share that its
measured transfers imply. In a job that computes more slowly as a whole, all ranks do. The time that all ranks wait
apart from computing (data, host, collections) is the step's floor, which grows by the measured excess.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockstep.simulator.calibration.online import OnlineModel, level_of
from lockstep.simulator.hardware.cluster import Cluster

RANK = "rank"
LINK = "link"
COMPUTING = "computing"
FLOOR = "floor"
SLOWDOWN_MAX = 1e4
"""Largest slowdown of a rank or a link; a larger one is a stall, for which no step is predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFault:
    """Measurement of one slow component.

    For a rank, `excess_seconds` is the extra time of each of `ranks` per step. For a link, `slowdown_ratio` is the
    relative excess of transfer times among `ranks`; `is_uplink` is true for the uplink of the domain that contains all
    of them (a node's), and false for the links among them. Computing and floor concern all ranks, so `ranks` is empty:
    `excess_seconds` is the extra computing time per step of each rank, or the extra wait apart from computing.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    excess_seconds: float = 0.0
    slowdown_ratio: float = 0.0
    is_uplink: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Gain of a repair: the share of the step with the fault that it saves, and the two predicted steps.

    `error_band_ratio` is the model's, for both steps.
    """

    gain_ratio: float
    faulty_step_seconds: float
    repaired_step_seconds: float
    error_band_ratio: float


def predict_gain(model: OnlineModel, fault: MeasuredFault) -> Gain | None:
    """Return the gain of repairing `fault`; None if the model has no such rank or link.

    Costs one simulation, with at most twice as many classes as the healthy job has.
    """
    repaired_s = model.expected_step_seconds
    if fault.kind in (COMPUTING, FLOOR):
        grown_s = _growth(model, fault)
        faulty_s = None if grown_s is None else repaired_s + grown_s
    else:
        sick = _with_fault(model, fault)
        faulty_s = None if sick is None else model.step_seconds(sick)
    if faulty_s is None:
        return None
    return Gain(
        gain_ratio=max(0.0, 1 - repaired_s / faulty_s),
        faulty_step_seconds=faulty_s,
        repaired_step_seconds=repaired_s,
        error_band_ratio=model.error_band_ratio,
    )


def _with_fault(model: OnlineModel, fault: MeasuredFault) -> Cluster | None:
    cluster = model.setup.cluster
    if not fault.ranks or not all(0 <= rank < model.setup.ranks for rank in fault.ranks):
        return None
    if fault.kind == RANK:
        slowdown = fault.excess_seconds / model.compute_seconds
        if not 0 < slowdown <= SLOWDOWN_MAX:
            return None
        slow = dict.fromkeys(_in_step(model, fault.ranks), 1 / (1 + slowdown))
        return replace(cluster, speed={**cluster.speed, **slow})
    if not 0 < fault.slowdown_ratio <= SLOWDOWN_MAX:
        return None
    links = _links(cluster, fault.ranks, is_uplink=fault.is_uplink)
    health = {**cluster.health, **dict.fromkeys(links, 1 / (1 + fault.slowdown_ratio))}
    return replace(cluster, health=health) if links else None


def _growth(model: OnlineModel, fault: MeasuredFault) -> float | None:
    """Return the relative growth of a step if all ranks are slower; the spread by chance is unchanged."""
    if not 0 < fault.excess_seconds <= SLOWDOWN_MAX * model.expected_step_seconds:
        return None
    if fault.kind == FLOOR:
        return fault.excess_seconds
    slowdown = fault.excess_seconds / model.compute_seconds
    if slowdown > SLOWDOWN_MAX:
        return None
    cluster = model.setup.cluster
    speed = {rank: cluster.speed.get(rank, 1.0) / (1 + slowdown) for rank in range(model.setup.ranks)}
    sick_s = model.setup.forecast(replace(cluster, speed=speed)).step_seconds
    return sick_s - model.forecast.step_seconds


def _in_step(model: OnlineModel, ranks: Sequence[int]) -> list[int]:
    """Return the ranks and those that go at their speed, whatever their own: tensor and context parallel groups.

    They meet in every layer, so a slow rank and a slow group give the same step; but a group stays one class of ranks,
    and a class that falls apart inside its groups costs 60 times as long to simulate (1,024 ranks, tp 8).
    """
    degrees = model.setup.degrees
    size = degrees.get("tp", 1) * degrees.get("cp", 1)
    return sorted({rank // size * size + place for rank in ranks for place in range(size)})


def _links(cluster: Cluster, ranks: Sequence[int], *, is_uplink: bool) -> list[tuple[int, int]]:
    """Return the uplinks, as (level, child), that join `ranks` where they part, or that lead out of where they join."""
    inside = level_of(cluster, tuple(ranks))
    if is_uplink:
        level = 0 if len(ranks) == 1 else None if inside is None else inside + 1
        if level is None or level >= len(cluster.levels):
            return []
        return [(level, ranks[0] // cluster.child_size(level))]
    if inside is None:
        return []
    return [(inside, child) for child in sorted({rank // cluster.child_size(inside) for rank in ranks})]
