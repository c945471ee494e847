# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Which part of its own work makes a slow rank slow: data, compute, host or gc, or time off the CPU.

Pure. Uses medians over the last steps, so that one odd step names nothing. The peers' figure is the median over the
ranks of the same stage that are not slow themselves, plus what the rank's replica shares: under uneven batches compute
differs by more than any fault, and a slow loader would be mistaken for it.

The part with the largest excess is the cause. If that is compute, most of it may be in forward, backward or optimizer.
If it is compute, host or gc and the thread spent the excess off the CPU, then that is the cause: the thread did not do
more work, it slept, was blocked or was descheduled. A processor on which all work takes longer also collects garbage
for longer, so gc is the cause only by its growth in proportion beyond compute and host, and on the CPU. Time off the
CPU is compared over own work as a whole: a rank that sleeps waits less for its loader, which is time off the CPU too.

Shapes: R ranks, P stages, K steps.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.anomalies import UNKNOWN
from coordinator.detect.ranks.groups import Groups, middle
from coordinator.intake.columns import COMPONENTS
from coordinator.intake.views import OFF_CPU, VIEWS
from lockstep.contracts.records import COMPUTE_PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.intake.timeline import StepRow
    from coordinator.settings.policy import CausePolicy

    Parts = dict[str, NDArray[np.floating]]

SELF = "self"
WAIT = "wait"
PARTS = (*COMPONENTS, *VIEWS, SELF, WAIT)
"""All parts that are compared."""
COMPUTE = "compute"
GC = "gc"
SLEEPS = (COMPUTE, "host", GC)
"""Components in which time off the CPU is not part of the work: threads wait for their loaders this way."""
_RUNNING = (COMPUTE, "host")
_SURE_SHARE = 0.8
_WORKING = ("forward", "backward")
_SECONDS_MIN = 1e-9  # resolution of a record
_PACE_RATIO = 0.1  # variation of collection time on shared caches and memory: 4 to 7 % measured
_BUSY_RATIO_MIN = 0.01  # of usual work on the CPU
_DOUBLED_SHARE = 0.1  # of an excess on the CPU as long as the usual work: a tenth of a core is contention
_PHASE_SHARE = 0.8  # of the excess of compute: a slow device is slow in all phases


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Cause of one slow rank, and seconds per step of it and of its peers by part (`PARTS`).

    A part that was not measured is missing from both. `confidence` is high, medium or low. `component` is the one that
    grew most, or unknown; it is the cause, unless that is time off the CPU. `phase` is the phase of compute with most
    of the excess, or empty.
    """

    cause: str
    confidence: str
    component: str
    phase: str
    own: dict[str, float]
    peers: dict[str, float]


def parts_of(row: "StepRow") -> "Parts":
    """Return the parts of one step: components, views, own work and waiting, arrays of shape (n_ranks,), seconds."""
    return {**row.components, **row.views, SELF: row.self_seconds, WAIT: row.duration - row.self_seconds}


def single_parts(row: "StepRow", shift_R: "NDArray[np.floating] | None") -> "Parts":
    """Return the parts of own work that are tested separately, less the seconds that each rank's work explains.

    Compute is left out if its phases are known.
    """
    parts = less_work(parts_of(row), shift_R)
    left_out = {SELF, WAIT, *([COMPUTE] if parts.keys() >= {*COMPUTE_PHASES} else [])}
    return {name: value for name, value in parts.items() if name not in left_out}


def _usual_work(usual: "Mapping[str, float]") -> tuple[float, float]:
    """Return the seconds of own work without waiting for loaders, and the share of them that is on the CPU."""
    waited = usual.get("data", 0.0)  # for loaders, off the CPU
    working = max(usual.get(SELF, 0.0) - waited, _SECONDS_MIN)
    return working, min(max(1 - (usual.get(OFF_CPU, 0.0) - waited) / working, 0.0), 1.0)


def is_asleep(off_cpu: float | None, total: float, usual: "Mapping[str, float]", policy: "CausePolicy") -> bool:
    """Whether an excess of `total` seconds is not work: the thread was off the CPU for `off_cpu` seconds of it.

    `usual` holds the reference's seconds by part. On a crowded machine a computing thread is off the CPU for part of
    its usual work too; in the excess it must have been on the CPU for a much smaller share than that. Short work is
    rarely descheduled, so the peers do not show every contention: a rank whose CPU time doubles must have slept for
    nearly all of the excess.
    """
    if off_cpu is None or total <= 0:
        return False
    working, busy_ratio = _usual_work(usual)
    busy = total - off_cpu
    share_max = (1 - policy.off_cpu_share_min) * busy_ratio
    if busy > busy_ratio * working:
        share_max = min(share_max, _DOUBLED_SHARE)
    return busy <= share_max * total


def slowed_alike(
    more: "Mapping[str, float]", usual: "Mapping[str, float]", off_cpu_seconds: float | None
) -> dict[str, float]:
    """Return the excess of each part, with the excess of collections that collect no more than usual moved to compute.

    `more` and `usual` are seconds by part, `off_cpu_seconds` is the excess of own work off the CPU, None if unknown. A
    job that collects in every step spends much of its own work in collections, so a slow or crowded core would be
    attributed to collections that have not changed: those that grow in proportion to all running code, and those that
    take hardly longer on the CPU. Other growth there is attributed to contention that has begun and takes as much of
    the core: work that shares a core finds cold caches. The time off the CPU that more work costs on a core that is
    always shared is not new contention.
    """
    parts = dict(more)
    running = sum(usual.get(name, 0.0) for name in _RUNNING)
    if more.get(GC, 0.0) <= 0 or COMPUTE not in more or running <= 0:
        return parts
    ratio = sum(more.get(name, 0.0) for name in _RUNNING) / running
    alike = min(max(ratio, 0.0) * usual.get(GC, 0.0), more[GC])
    off_cpu = min(max(off_cpu_seconds or 0.0, 0.0), usual.get(GC, 0.0))  # another thread has half of the core
    on_cpu = more[GC] - off_cpu
    busy_ratio = _usual_work(usual)[1]
    crowd = off_cpu - max(on_cpu, 0.0) * (1 - busy_ratio) / max(busy_ratio, _BUSY_RATIO_MIN)
    if on_cpu <= _PACE_RATIO * usual.get(GC, 0.0) + max(crowd, 0.0):
        alike = more[GC]
    return parts | {GC: more[GC] - alike, COMPUTE: more[COMPUTE] + alike}


def phase_of(more: "Mapping[str, float]") -> str:
    """Return the phase with most of the excess of compute, given seconds by part; empty if no phase has most of it."""
    phases = {name: more[name] for name in COMPUTE_PHASES if name in more}
    phase = max(phases, key=lambda name: phases[name], default="")
    return phase if phase and phases[phase] >= _PHASE_SHARE * more.get(COMPUTE, 0.0) > 0 else ""


def middling(parts: "Mapping[str, NDArray[np.floating]]") -> dict[str, float]:
    """Return each part's median over the ranks, seconds; parts that no rank measured are left out."""
    return {name: float(np.nanmedian(value)) for name, value in parts.items() if not np.isnan(value).all()}


def longest(parts: "Parts") -> dict[str, float]:
    """Return each part of the rank with most own work, seconds; parts that it did not measure are left out."""
    own_R = parts[SELF]
    if np.isnan(own_R).all():
        return {}
    rank = int(np.nanargmax(own_R))
    return {name: float(value[rank]) for name, value in parts.items() if not np.isnan(value[rank])}


def medians(rows: "Sequence[StepRow]") -> "Parts":
    """Return each part's median over `rows`, arrays of shape (n_ranks,), seconds, NaN if never measured."""
    parts = [parts_of(row) for row in rows]
    unknown_R = np.full(rows[-1].ranks.shape, np.nan, dtype=np.float32)
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: middle(np.stack([part.get(name, unknown_R) for part in parts])) for name in names}


def less_work(parts: "Parts", shift_R: "NDArray[np.floating] | None") -> "Parts":
    """Return the parts less the seconds of compute that each rank's work explains.

    More work lengthens forward and backward in proportion, and not the optimizer.
    """
    if shift_R is None:
        return parts
    less = {name: parts[name] - shift_R for name in (SELF, COMPUTE)}
    if parts.keys() >= {*_WORKING}:
        working_R = sum(parts[name] for name in _WORKING)
        less_ratio_R = shift_R / np.maximum(working_R, _SECONDS_MIN)
        less |= {name: parts[name] * (1 - less_ratio_R) for name in _WORKING}
    return parts | less


class Explainer:
    """Explains slow ranks of one layout; `replicas` is None if ranks share no batches, `places` if all differ."""

    def __init__(self, stages: Groups, replicas: Groups | None, places: Groups | None = None) -> None:
        self._stages = stages
        self._replicas = replicas
        self._places = places

    def explain(
        self,
        own: "Parts",
        slow_R: "NDArray[np.bool_]",
        shares_R: "NDArray[np.bool_]",
        typical_P: "Parts",
        policy: "CausePolicy",
        *,
        differs_R: "NDArray[np.bool_] | None" = None,
        slow_parts: "Callable[[int], Collection[str]]",
    ) -> dict[int, Explanation]:
        """Return the explanation of each slow rank by its column.

        `own` holds medians of the last steps; `typical_P` what steps of each stage used to consist of, the reference
        if no healthy rank does the same work; `shares_R` marks the ranks that are slower than their own replica,
        `differs_R` those whose place has work of its own, which is not part of the excess.
        `slow_parts` returns the parts of a column that are in alarm separately, the largest excess first.
        """
        columns = np.flatnonzero(slow_R)
        peers: dict[str, NDArray[np.floating]] = {}
        for name, value_R in own.items():
            healthy_R = np.where(slow_R, np.nan, value_R)
            # Of a few healthy ranks, most may have work of their own: the stage is measured by the others.
            healthy_P = self._stages.median(healthy_R if differs_R is None else np.where(differs_R, np.nan, healthy_R))
            if name in typical_P:
                healthy_P = np.where(np.isnan(healthy_P), typical_P[name], healthy_P)
            usual_R = self._stages.spread(healthy_P)
            if self._places is not None and differs_R is not None and name != WAIT:
                place_L = np.nan_to_num(self._places.median(healthy_R - usual_R))
                usual_R = usual_R + self._places.spread(place_L) * differs_R
            if self._replicas is not None and shares_R.any() and name != WAIT:
                shared_D = np.nan_to_num(self._replicas.median(healthy_R - usual_R))
                usual_R = usual_R + self._replicas.spread(shared_D) * shares_R
            peers[name] = usual_R[columns]
        found = {}
        for place, column in enumerate(columns.tolist()):
            mine = {name: float(value[column]) for name, value in own.items()}
            theirs = {name: float(value[place]) for name, value in peers.items()}
            found[column] = _explain_one(mine, theirs, policy, slow_parts(column))
        return found


def _explain_one(
    own: dict[str, float], peers: dict[str, float], policy: "CausePolicy", slow_parts: "Collection[str]"
) -> Explanation:
    known = [name for name in own if not np.isnan(own[name] - peers[name])]
    more = {name: own[name] - peers[name] for name in known}
    excess = slowed_alike({name: more[name] for name in COMPONENTS if name in more}, peers, more.get(OFF_CPU))
    total = own[SELF] - peers[SELF]
    # A part in alarm by itself is the cause: changes of the others in the same steps are noise.
    laid_to_compute = {*COMPUTE_PHASES, *([GC] if excess.get(GC, 0.0) <= 0 else [])}
    slow = [COMPUTE if name in laid_to_compute else name for name in slow_parts]
    slow = [name for name in slow if name in excess]
    component = slow[0] if slow else max(excess, key=lambda name: excess[name], default=UNKNOWN)
    if slow:
        total = max(total, excess[component])
    if component != UNKNOWN and not excess[component] >= policy.share_min * total > 0:
        component = UNKNOWN
    cause, share = component, excess.get(component, 0.0) / total if component != UNKNOWN else 0.0
    if component in SLEEPS and is_asleep(more.get(OFF_CPU), total, peers, policy):
        cause, share = OFF_CPU, more[OFF_CPU] / total
    phases = [name for name in slow_parts if name in COMPUTE_PHASES]
    phase = phases[0] if phases else phase_of(more)
    return Explanation(
        cause=cause,
        confidence="high" if share >= _SURE_SHARE else "medium" if cause != UNKNOWN else "low",
        component=component,
        phase=phase if component == COMPUTE else "",
        own={name: own[name] for name in known},
        peers={name: peers[name] for name in known},
    )
