"""What the detector must reach, scenario by scenario and at every number of ranks: what `--check` compares with.

Rates are shares of what was run: a few seeds can show a miss, they cannot prove 0.995. Latencies are demanded of all
sudden faults of 5 % and more together, and of one scenario only where it has enough of them for a percentile.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.scenarios.bound import hang_recall, least_delays
from benchmarks.scenarios.catalogue import DEGRADED, FAULTS, HEALTHY
from benchmarks.scenarios.job import HANG
from benchmarks.scenarios.table import OURS, Table

HEALTHY_STEPS_PER_ALARM = 500_000
_LATENCIES_MIN = 20  # of one scenario: below, the 95th percentile is the largest


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one scenario must reach; latencies in steps, the first slow one is 1. `within` counts later finds as missed.

    `smallest` is the number of ranks from which on it is demanded.
    """

    recall: float = 0.995
    p50: float | None = 3
    p95: float | None = 5
    within: int | None = None
    innocents: int | None = 0
    cause: float | None = 0.99
    smallest: int = 8


_FROM_START = Demand(p50=None, p95=None)
_MANY_AT_FAULT = Demand(recall=0.95)
_LINK = Demand(recall=0.99)
_PART = Demand(p50=None, p95=None, within=10)
_SMALL = Demand(recall=0.99, p50=None, p95=None, within=8, smallest=128)

DEMANDS: dict[str, Demand] = {
    **dict.fromkeys(FAULTS, Demand()),
    "slow 3 %": _SMALL,
    "16 slow 3 %": _SMALL,
    "slow from the start": _FROM_START,
    "20 % from the start": _FROM_START,
    "20 % from the start, wide silicon": _FROM_START,
    "16 from the start": _FROM_START,
    "3 % from the start": Demand(recall=0.99, p50=None, p95=None, smallest=128),
    "half of a domain": _MANY_AT_FAULT,
    "half of a tensor group": _MANY_AT_FAULT,
    "domain of two": _MANY_AT_FAULT,
    "two slow nodes": _MANY_AT_FAULT,
    "drift": Demand(p50=None, p95=28),  # 3.5 % of 15 % in 120 steps
    "data jitter of all": Demand(p95=8),
    "compute jitter of all": Demand(p95=8),
    **{name: _PART for name in FAULTS if "shared hosts" in name},
    **{name: replace(_PART, within=5) for name in FAULTS if "+40%, shared hosts 8%" in name},
    **{name: Demand(p50=None, p95=None, within=200) for name in FAULTS if " in 1 of " in name},
    **{name: Demand(p50=None, p95=None, within=40) for name in FAULTS if name.startswith("job") and "noise" in name},
    "slow, noisy": Demand(p50=None, p95=8, innocents=None),
    # Three events on three ranks take their time.
    **{name: Demand(recall=0.97, p50=None, p95=None) for name in FAULTS if name.startswith(("scattered", "gc each"))},
    **dict.fromkeys(("link tp", "link cp", "link ep", "link dp", "link pp", "nic of a node", "network of all"), _LINK),
    "slow rank and job": Demand(
        recall=0.98, p50=None, p95=None
    ),  # next to a culprit a slower job must last to be reported
    **dict.fromkeys((name for name in FAULTS if name.startswith("step held")), Demand(recall=0.95, p50=1, p95=1)),
    # A late rank and a lost record look alike in a step log (docs/detection.md): `undemanded` where any test fails.
    **dict.fromkeys((name for name in FAULTS if name.startswith(HANG)), Demand(recall=0.95, p50=None, p95=None)),
}
PAGES_MAX = dict.fromkeys(HEALTHY, 0)
"""Pages that each healthy scenario may cause. Those that lack the column which explains their steps are missed so."""


def missed(table: Table) -> Iterator[str]:
    """Yield a line for every demand that the table does not meet."""
    for ranks in table.sizes():
        for name in table.names(ranks):
            if name in FAULTS:
                yield from (f"{ranks:,} ranks, {name}: {what}" for what in _missed_of(table, ranks, name))
            elif name in HEALTHY:
                yield from (f"{ranks:,} ranks, {name}: {what}" for what in _missed_in_health(table, ranks, name))
        sudden = [name for name in table.names(ranks) if name in FAULTS and DEMANDS[name].p50 is not None]
        rows = table.total(OURS, ranks, sudden).latency_rows
        yield from (f"{ranks:,} ranks, sudden faults: {what}" for what in _slower(rows, Demand()))
    alarms, steps = false_alarms(table)
    if alarms * HEALTHY_STEPS_PER_ALARM > steps:
        yield f"false alarms: {alarms} in {steps:,} healthy steps, at most 1 in {HEALTHY_STEPS_PER_ALARM:,}"


def undemanded(table: Table) -> Iterator[str]:
    """Yield a line for every fault whose recall is not demanded, because no test within the error budget reaches it."""
    for ranks in table.sizes():
        for name in table.names(ranks):
            if name in FAULTS and (most := _most_recall(ranks, name)) < DEMANDS[name].recall:
                yield f"{ranks:,} ranks, {name}: recall of any test at most {most:.3f}"


def _most_recall(ranks: int, name: str) -> float:
    """Return the recall of the most powerful test, 1 where it is not known."""
    most = hang_recall(FAULTS[name](ranks, 1), HEALTHY_STEPS_PER_ALARM)
    return 1.0 if most is None else most


def _missed_of(table: Table, ranks: int, name: str) -> Iterator[str]:
    demand, result = DEMANDS[name], table.total(OURS, ranks, [name])
    if result.wanted and ranks >= demand.smallest and _most_recall(ranks, name) >= demand.recall:
        in_time = [rows for rows in result.latency_rows if demand.within is None or rows <= demand.within]
        recall = len(in_time) / result.wanted
        if recall < demand.recall:
            within = "" if demand.within is None else f" within {demand.within} steps"
            yield f"recall {recall:.3f}{within}, at least {demand.recall}{_bound_text(name, ranks, demand)}"
        if len(result.latency_rows) >= _LATENCIES_MIN:
            yield from _slower(result.latency_rows, demand)
    if demand.innocents is not None and result.wrong_ranks > demand.innocents:
        yield f"{result.wrong_ranks} innocent ranks named, at most {demand.innocents}"
    if demand.cause is not None and result.causes_right < demand.cause * result.causes_named:
        yield f"cause right in {result.causes_right / result.causes_named:.3f}, at least {demand.cause}"


def _bound_text(name: str, ranks: int, demand: Demand) -> str:
    """Return how often any test could meet a demand in time, where that is known."""
    if demand.within is None or (delays := least_delays(FAULTS[name](ranks, 1), HEALTHY_STEPS_PER_ALARM)) is None:
        return ""
    return f"; any test: at most {np.mean(delays <= demand.within):.3f}"


def _missed_in_health(table: Table, ranks: int, name: str) -> Iterator[str]:
    """Yield where a healthy scenario has more pages than it may: many steps may have one by chance."""
    result = table.total(OURS, ranks, [name])
    pages = result.alarms_in_health
    if pages > PAGES_MAX[name] and pages * HEALTHY_STEPS_PER_ALARM > result.healthy_rows:
        yield f"{pages} pages in {result.healthy_rows:,} healthy steps, at most {PAGES_MAX[name]}"


def _slower(latency_rows: list[int], demand: Demand) -> Iterator[str]:
    for percent, limit in ((50, demand.p50), (95, demand.p95)):
        rows = float(np.percentile(latency_rows, percent)) if latency_rows else 0.0
        if limit is not None and rows > limit:
            yield f"p{percent} {rows:.0f} steps, at most {limit:.0f}"


def false_alarms(table: Table) -> tuple[int, int]:
    """Return pages without a fault, and the steps that had none, over everything that was run."""
    counted = [
        score
        for (method, name, _), score in table.scores.items()
        if method == OURS and (name in FAULTS or name in HEALTHY) and name not in DEGRADED
    ]
    return sum(score.alarms_in_health for score in counted), sum(score.healthy_rows for score in counted)
