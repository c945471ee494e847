"""Accounts for the device time of a run: by part of the step, by kind of loss, by day. Pure: a log and incidents in.

Goodput is the share of device time in which steps made the progress of a usual step. The rest is attributed to exactly
one kind of loss each: restarts (between attempts), warm-up, checkpoints, evaluations, captures, stalls, stragglers. A
flagged step loses its excess over the median of the unflagged ones. An incident loses the time by which its steps would
have been shorter without it, times all ranks (`Incident.lost_device_seconds`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.detect.anomalies import CRASH, HANG
from coordinator.record.backtest import to_line
from coordinator.record.step_table import StepTable, parts_of_table, table_of
from lockstep.contracts.records import MISSING, Flag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.decide.incidents import Incident
    from coordinator.record.steplog import StepLog

PRODUCTIVE, STRAGGLERS, STALLS = "productive", "stragglers", "stalls"
CHECKPOINTS, EVALUATIONS, CAPTURES = "checkpoints", "evaluations", "captures"
RESTARTS, WARM_UP = "restarts", "warm-up"
CATEGORIES = (PRODUCTIVE, STRAGGLERS, STALLS, CHECKPOINTS, EVALUATIONS, CAPTURES, RESTARTS, WARM_UP)
_FLAGGED = (
    (Flag.WARM_UP, WARM_UP),
    (Flag.CHECKPOINT, CHECKPOINTS),
    (Flag.EVALUATION, EVALUATIONS),
    (Flag.PROFILED, CAPTURES),
)
STALL_STEPS, STALL_S = 10.0, 30.0
"""An unflagged step that takes ten usual steps and at least half a minute counts as a stall, not as slowness."""
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSummary:
    """Mean time of a part of the step over ranks and unflagged steps, and its share of the step."""

    name: str
    seconds: float
    share_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySummary:
    """One day in UTC: device seconds by category, the number of steps that ended on it, and the goodput."""

    date: str
    steps: int
    device_seconds: Mapping[str, float]
    goodput_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run over all its attempts. Figures that were not measured are None.

    `device_seconds` holds all device time by category. `mfu_ratio` needs model FLOPs and the peak of every rank's
    device.
    """

    run: str
    ranks: int
    attempts: int
    steps: int
    begin_unix_s: float
    end_unix_s: float
    step_seconds: float
    """Median duration of the unflagged steps."""
    parts: tuple[PartSummary, ...]
    tokens_per_second: float | None
    samples_per_second: float | None
    mfu_ratio: float | None
    device_seconds: Mapping[str, float]
    goodput_ratio: float
    days: tuple[DaySummary, ...]
    incidents: tuple[Mapping[str, Any], ...]


def summarise_run(
    log: "StepLog", incidents: "Iterable[Incident]", *, peak_flops_per_second: Mapping[int, float] | None = None
) -> RunSummary:
    """Return the summary of one run; `peak_flops_per_second` is by rank, as announced.

    Raises
    ------
    MalformedError
        The log has no rows.
    """
    table = table_of(log)
    listed = sorted((each for each in incidents if each.run == log.run), key=lambda each: each.opened_unix_ns)
    steps = _Steps.of(table)
    lost = [
        (_day(each.opened_unix_ns * 1e-9), each.lost_device_seconds)
        for each in listed
        if each.kind not in (HANG, CRASH)
    ]
    days = _days(table, steps, lost)
    device_seconds = {name: sum(day.device_seconds[name] for day in days) for name in CATEGORIES}
    return RunSummary(
        run=log.run,
        ranks=len(table.ranks),
        attempts=int(table.attempt_index.max()) + 1,
        steps=table.steps,
        begin_unix_s=float(table.begin_unix_s.min()),
        end_unix_s=float(table.end_unix_s.max()),
        step_seconds=steps.usual_s,
        parts=_parts(table, steps),
        tokens_per_second=_rate(table, "tokens"),
        samples_per_second=_rate(table, "samples"),
        mfu_ratio=_mfu(table, peak_flops_per_second or {}),
        device_seconds=device_seconds,
        goodput_ratio=_share(device_seconds),
        days=days,
        incidents=tuple(
            to_line(each) | {"lost_device_hours": round(each.lost_device_seconds / _HOUR_S, 6)} for each in listed
        ),
    )


def summary_to_json(summary: RunSummary) -> dict[str, Any]:
    """Return the JSON form."""
    return asdict(summary)


@dataclass(frozen=True, slots=True)
class _Steps:
    """Wall seconds of each step by category, float64 of shape (n_steps,), and which steps are usual ones."""

    usual_s: float
    is_usual: "NDArray[np.bool_]"
    seconds_of: "dict[str, NDArray[np.float64]]"

    @classmethod
    def of(cls, table: StepTable) -> "_Steps":
        """Attribute the steps of a table; every second between the first and the last row is counted exactly once."""
        order = np.argsort(table.end_unix_s, kind="stable")
        begin, end = table.begin_unix_s[order], table.end_unix_s[order]
        before = np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]])
        wall = np.maximum(end - before, 0.0)
        is_first = np.diff(table.attempt_of_step[order], prepend=table.attempt_of_step[order][0]) != 0
        gap = np.where(is_first, np.clip(begin - before, 0.0, wall), 0.0)
        wall -= gap
        flags = table.flags_of_step[order]
        plain = (flags & ~int(Flag.SKIPPED_OPTIMIZER)) == 0
        usual_s = float(np.median(wall[plain] if plain.any() else wall))
        made = {name: np.zeros(len(order)) for name in CATEGORIES}
        made[RESTARTS] += gap
        excess = np.maximum(wall - usual_s, 0.0)
        left = ~plain
        for flag, name in _FLAGGED:
            here = left & ((flags & int(flag)) != 0)
            made[name] += np.where(here, excess, 0.0)
            left &= ~here
        stalled = plain & (wall > max(STALL_STEPS * usual_s, STALL_S))
        made[STALLS] += np.where(stalled, excess, 0.0)
        made[PRODUCTIVE] = wall - sum(made[name] for name in CATEGORIES if name not in (PRODUCTIVE, RESTARTS))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return cls(usual_s, (plain & ~stalled)[back], {name: values[back] for name, values in made.items()})


def _days(table: StepTable, steps: _Steps, lost: Sequence[tuple[str, float]]) -> tuple[DaySummary, ...]:
    """Return the account by the day on which a step ended; losses of incidents count on the day they opened."""
    dates = np.array([_day(end_s) for end_s in table.end_unix_s])
    lost_on: dict[str, float] = {}
    for date, seconds in lost:
        lost_on[date] = lost_on.get(date, 0.0) + seconds
    known, made = np.unique(dates), []
    for date in known.tolist():
        here = dates == date
        account = {name: float(values[here].sum()) * len(table.ranks) for name, values in steps.seconds_of.items()}
        account[STRAGGLERS] = min(lost_on.get(date, 0.0), account[PRODUCTIVE])
        account[PRODUCTIVE] -= account[STRAGGLERS]
        made.append(DaySummary(date=date, steps=int(here.sum()), device_seconds=account, goodput_ratio=_share(account)))
    return tuple(made)


def _parts(table: StepTable, steps: _Steps) -> tuple[PartSummary, ...]:
    usual = steps.is_usual[table.step_index]
    duration = table.seconds("duration_ns")
    assert duration is not None  # a required column
    step_s = float(np.mean(duration[usual])) if usual.any() else float(np.mean(duration))
    rows = usual if usual.any() else np.ones(len(duration), dtype=bool)
    made = [(name, values[rows]) for name, values in parts_of_table(table).items()]
    means = [(name, float(np.nanmean(values))) for name, values in made if not np.isnan(values).all()]
    return tuple(PartSummary(name=name, seconds=mean, share_ratio=mean / step_s) for name, mean in means)


def _rate(table: StepTable, column: str) -> float | None:
    """Return the rate of a quantity, summed over all ranks, over the whole run including pauses.

    None if not counted.
    """
    values = table.columns.get(column)
    if values is None or (values == MISSING).all():
        return None
    wall_s = float(table.end_unix_s.max() - table.begin_unix_s.min())
    return float(values[values != MISSING].sum(dtype=np.float64)) / wall_s


def _mfu(table: StepTable, peaks: Mapping[int, float]) -> float | None:
    """Return model FLOPs over the FLOPs that the devices could have done during the steps; None if unknown."""
    flops = table.columns.get("model_flops")
    if flops is None or not all(int(rank) in peaks for rank in table.ranks):
        return None
    known = flops != MISSING
    peak = np.array([peaks[int(rank)] for rank in table.ranks])[table.rank_index]
    possible = float((table.columns["duration_ns"][known] * 1e-9 * peak[known]).sum())
    return float(flops[known].sum(dtype=np.float64)) / possible if possible else None


def _share(account: Mapping[str, float]) -> float:
    total = sum(account.values())
    return account[PRODUCTIVE] / total if total else 0.0


def _day(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d}"
