"""The gain of one repair: a step with the fault as it was measured, and the step without it.

The fault is put into the calibrated model of a healthy run, so what-ifs do not depend on when the model was fitted: a
slow rank computes at the speed that its measured excess implies, a slow link carries the share that its measured
transfers imply. So do all ranks of a job that computes more slowly as a whole; what all of them wait for apart from
computing (data, host, collections) is the step's floor, longer by what was measured.
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
"""Of a rank or a link; more is no slowdown but a standstill, which no step is predicted of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFault:
    """What was measured of one thing that is slow.

    A rank: `excess_seconds` is what each of `ranks` does longer in a step. A link: `slowdown_ratio` is how much longer
    transfers take, minus 1, among `ranks`; `is_uplink` is true if the way out of the domain that holds all of them is
    meant (a node's), not the links among them. Computing and floor are those of all ranks, `ranks` is empty:
    `excess_seconds` is what each of them computes longer in a step, or waits apart from computing.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    excess_seconds: float = 0.0
    slowdown_ratio: float = 0.0
    is_uplink: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What a repair gives back: the share of the step with the fault, and the two predicted steps.

    `error_band_ratio` is the model's, of both steps.
    """

    gain_ratio: float
    faulty_step_seconds: float
    repaired_step_seconds: float
    error_band_ratio: float


def predict_gain(model: OnlineModel, fault: MeasuredFault) -> Gain | None:
    """Return what the repair of `fault` gives back; None where the model knows no such rank or link.

    One simulation, of twice as many classes as the healthy job has at most.
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
    """Return by how much a step is longer where all ranks are slower; chance spreads them as before."""
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
