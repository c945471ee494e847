# ruff: noqa: N806  (names of arrays end in their shape: R ranks)
"""Exports the last steps of some ranks as a Chrome trace for Perfetto: one process per rank, one slice per step.

Pure: rows evaluated by the detectors in, plain values out. The parts of a step are drawn one after the other inside it:
their durations are measured, but their begins are not, as the trace's metadata states.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.page.heat import WORST_RANKS
from coordinator.page.rank_figures import figures
from lockstep.contracts.records import COMPUTE_PHASES, DOMAIN_KINDS

if TYPE_CHECKING:
    from coordinator.decide.explain import ExplanationContext
    from coordinator.decide.incidents import Incident
    from coordinator.intake.timeline import StepRow

Event = dict[str, Any]

RANKS_MAX = 64
"""Largest number of ranks in a trace; each has a few hundred slices."""
_PEERS = 8  # healthy ranks drawn with those of an incident
_US = 1e6
_THOUSANDTHS = 3  # decimals of a microsecond: the precision of the format's readers
_COMPUTE = "compute"
_COMPONENTS = ("data", _COMPUTE, "host", "gc")
_ORDER = "parts are drawn one after the other; when each began within its step is not recorded"


def ranks_drawn(scene: "ExplanationContext", incident: "Incident | None") -> list[int]:
    """Return an incident's ranks with some peers of its first rank's pipeline stage; without one, the slowest ranks."""
    if not scene.rows:
        return []
    known = scene.rows[-1].ranks
    if incident is None or not incident.ranks:
        found = figures(scene)
        excess_R = np.zeros(0) if found is None else np.nan_to_num(found.excess_R, nan=-np.inf)
        order = np.argsort(-excess_R, kind="stable")
        return sorted(int(known[at]) for at in (*order[:WORST_RANKS], *order[WORST_RANKS:][-_PEERS:]))
    own = np.intersect1d(known, incident.ranks)[: RANKS_MAX - _PEERS]
    stages = np.asarray(scene.topology.stages)
    others = np.setdiff1d(known, incident.ranks)
    peers = others[stages[others] == stages[incident.ranks[0]]][:_PEERS]
    return sorted([*own.tolist(), *peers.tolist()])


def steps_trace(
    scene: "ExplanationContext", incidents: "Iterable[Incident]", ranks: list[int], name: str
) -> dict[str, Any]:
    """Return the trace of `ranks` over the recent steps; `incidents` are marked at their onset.

    Times are microseconds since the begin of the first step, on the run's clock; `args` hold seconds.
    """
    rows = list(scene.rows)
    origin_s = min((_begin_s(row, ranks) for row in rows), default=0.0)
    events = [event for rank in ranks for event in _of_rank(scene, rows, rank, origin_s)]
    events += [event for incident in incidents for event in _mark(incident, rows, ranks, origin_s)]
    return {"displayTimeUnit": "ms", "traceName": name, "otherData": {"order": _ORDER}, "traceEvents": events}


def _of_rank(scene: "ExplanationContext", rows: "list[StepRow]", rank: int, origin_s: float) -> Iterator[Event]:
    name = f"rank {rank} on {scene.hostname(rank)}"
    yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
    yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": 0, "args": {"name": "steps"}}
    before_us = 0.0
    for row in rows:
        at = int(np.searchsorted(row.ranks, rank))
        if at == len(row.ranks) or row.ranks[at] != rank or not np.isfinite(row.duration[at]):
            continue
        end_us = (row.end_unix_s - origin_s) * _US
        # The rows hold one clock for all ranks: a step must not begin before the previous one ends, or slices overlap.
        begin_us = max(before_us, end_us - float(row.duration[at]) * _US)
        if end_us <= begin_us:
            continue
        before_us = end_us
        parts = dict(_parts(row, at))
        views = {name: float(values_R[at]) for name, values_R in row.views.items() if np.isfinite(values_R[at])}
        arguments = {"step": row.step, "step_seconds": float(row.duration[at]), **_seconds(parts), **_seconds(views)}
        yield _slice(f"step {row.step}", "step", rank, (begin_us, end_us), arguments)
        for part, seconds in parts.items():
            begin, begin_us = begin_us, min(end_us, begin_us + seconds * _US)
            if begin_us > begin:
                category = "wait" if part.endswith(" wait") else "own work"
                yield _slice(part, category, rank, (begin, begin_us), {"seconds": seconds})
            if part == _COMPUTE:
                yield from _phases(views, rank, begin, begin_us)


def _phases(views: dict[str, float], rank: int, begin_us: float, end_us: float) -> Iterator[Event]:
    """Yield forward, backward and optimizer inside the compute part, one after the other."""
    for phase in COMPUTE_PHASES:
        start_us, begin_us = begin_us, min(end_us, begin_us + views.get(phase, 0.0) * _US)
        if begin_us > start_us:
            yield _slice(phase, "phase of compute", rank, (start_us, begin_us), {"seconds": views[phase]})


def _parts(row: "StepRow", at: int) -> Iterator[tuple[str, float]]:
    shown = [(part, row.components.get(part)) for part in _COMPONENTS]
    shown += [(f"{kind} wait", row.waits.get(kind)) for kind in DOMAIN_KINDS]
    for part, values_R in shown:
        if values_R is not None and np.isfinite(values_R[at]) and values_R[at] > 0:
            yield part, float(values_R[at])


def _seconds(parts: dict[str, float]) -> dict[str, float]:
    return {f"{part.replace(' ', '_')}_seconds": seconds for part, seconds in parts.items()}


def _begin_s(row: "StepRow", ranks: list[int]) -> float:
    durations = row.duration[np.isin(row.ranks, ranks)]
    return row.end_unix_s - float(np.nanmax(durations, initial=0.0))


def _mark(incident: "Incident", rows: "list[StepRow]", ranks: list[int], origin_s: float) -> Iterator[Event]:
    onset_step = incident.onset_step
    first = next((row for row in rows if onset_step is not None and row.step >= onset_step), None)
    if first is None:
        return
    shown = {"incident": incident.id, "cause": incident.cause, "onset_step": incident.onset_step}
    at_us = round(max(0.0, (_begin_s(first, ranks) - origin_s) * _US), _THOUSANDTHS)
    name = f"{incident.kind.replace('_', ' ')}: {incident.cause}"
    yield {"ph": "i", "s": "g", "name": name, "pid": ranks[0], "tid": 0, "ts": at_us, "args": shown}


def _slice(name: str, category: str, rank: int, span_us: tuple[float, float], arguments: dict[str, Any]) -> Event:
    begin_us, end_us = (round(value, _THOUSANDTHS) for value in span_us)
    lasted_us = round(end_us - begin_us, _THOUSANDTHS)
    place = {"pid": rank, "tid": 0, "ts": begin_us, "dur": lasted_us}
    return {"ph": "X", "cat": category, "name": name, **place, "args": arguments}
