# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""Collects healthy steps of one run, each reduced to a few numbers, to which its model is fitted.

Pure. The size of a reduced step does not depend on the number of ranks, so a window takes a few kilobytes and can be
stored.

Shapes: W steps, S stages, R ranks (columns of the rows), M members of all domains of a kind, concatenated.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lockstep.contracts.errors import MalformedError
from lockstep.simulator.calibration.measured import OperatorTimes, Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.intake.timeline import StepRow
    from lockstep.contracts.domains import Topology

WINDOW_STEPS = 40
"""Steps in a window, twice what a fit needs: 20 to fit, 20 held out."""
SPACING_SECONDS = 0.25
"""Least time between two collected steps, so that a window lasts at least ten seconds. Shared hosts change their
pace every few seconds, and held-out steps that all fall into one pace do not represent the others (recorded jobs on
two cores)."""
_ALL = "world"
_FLOOR = ("data", "host", "gc")
_CHECKED = ("tp", "cp", "ep", "pp")
"""Kinds whose size a specification must match; data-parallel groups may or may not include context-parallel ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWindow:
    """The stored healthy window of an earlier fit, and the digest of the specification used.

    `operators` are the operator times of captured healthy ranks that the fit used.
    """

    digest: str
    window: Window
    operators: OperatorTimes | None = None


class _Step(NamedTuple):
    """A reduced step, seconds."""

    seconds: float
    compute_S: list[float]
    optimizer_S: list[float]
    floor: float
    spread: float
    exposed: dict[str, float]
    shortest: dict[str, float]


class HealthySteps:
    """The last `WINDOW_STEPS` healthy steps of a run of fixed shape; `ranks` are the columns of its rows."""

    def __init__(self, topology: "Topology", ranks: "NDArray[np.int64]") -> None:
        self._topology = topology
        stage_R = np.asarray(topology.stages)[ranks]
        self._columns_S = [np.flatnonzero(stage_R == stage) for stage in np.unique(stage_R)]
        self._last_unix_s = float("-inf")
        self._steps: deque[_Step] = deque(maxlen=WINDOW_STEPS)
        self._places: dict[str, tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
        self._members: dict[str, tuple[int, ...]] = {}
        self._sizes: dict[str, Counter[int]] = {}
        by_kind: dict[str, list[NDArray[np.intp]]] = {}
        for domain in topology.domains:
            if len(domain.ranks) <= 1:
                continue
            members = np.asarray(domain.ranks, dtype=np.int64)
            columns = np.minimum(np.searchsorted(ranks, members), len(ranks) - 1)
            if (ranks[columns] == members).all():
                by_kind.setdefault(domain.kind, []).append(columns)
                self._members.setdefault(domain.kind, (domain.ranks[0], domain.ranks[-1]))  # the farthest apart
                self._sizes.setdefault(domain.kind, Counter())[len(domain.ranks)] += 1
        if len(ranks) > 1 and _ALL not in by_kind:  # a job's only group is announced as dp, but its records have none
            by_kind[_ALL], self._members[_ALL] = [np.arange(len(ranks))], (int(ranks[0]), int(ranks[-1]))
        for kind, groups in by_kind.items():
            begins = np.cumsum([0, *(len(group) for group in groups)])[:-1]
            self._places[kind] = (np.concatenate(groups), begins)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def is_full(self) -> bool:
        """Whether there are enough steps for a window."""
        return len(self._steps) == WINDOW_STEPS

    def add(self, row: "StepRow", step_seconds: float) -> None:
        """Add a step, unless it follows the last one within `SPACING_SECONDS`."""
        if abs(row.end_unix_s - self._last_unix_s) < SPACING_SECONDS:
            return
        self._last_unix_s = row.end_unix_s
        compute_S = [_median(row.components["compute"][columns]) for columns in self._columns_S]
        optimizer_R = row.views.get("optimizer", np.full(len(row.ranks), np.nan))
        optimizer_S = [_median(optimizer_R[columns], unknown=float("nan")) for columns in self._columns_S]
        spread = max(_spread(row.self_seconds[columns]) for columns in self._columns_S)
        floor = max(sum(_median(row.components[name][columns]) for name in _FLOOR) for columns in self._columns_S)
        exposed, shortest = (
            {kind: self._least(kind, seconds[kind]) for kind in self._places if kind in seconds}
            for seconds in (row.transfers, row.floors)
        )
        self._steps.append(_Step(step_seconds, compute_S, optimizer_S, floor, spread, exposed, shortest))

    def _least(self, kind: str, seconds_R: "NDArray[np.floating]") -> float:
        """Return the least of a domain, the last rank's to arrive, median over the kind's domains; NaN if unknown."""
        column_M, begins = self._places[kind]
        least = np.minimum.reduceat(np.nan_to_num(seconds_R[column_M], nan=np.inf), begins)
        known = least[np.isfinite(least)]
        return float(np.median(known)) if len(known) else float("nan")

    def forget_half(self) -> None:
        """Drop the older half: the newer half may be from one steady state."""
        for _ in range(len(self._steps) // 2):
            self._steps.popleft()

    def window(self) -> Window:
        """Return the window of the collected steps."""
        exposed, shortest = (
            {kind: np.array([step[kind] for step in steps]) for kind in self._places if all(kind in s for s in steps)}
            for steps in ([step.exposed for step in self._steps], [step.shortest for step in self._steps])
        )
        return Window(
            step_W=np.array([step.seconds for step in self._steps]),
            compute_SW=np.array([step.compute_S for step in self._steps]).T,
            optimizer_SW=np.array([step.optimizer_S for step in self._steps]).T,
            floor_W=np.array([step.floor for step in self._steps]),
            spread_W=np.array([step.spread for step in self._steps]),
            exposed=exposed,
            shortest=shortest,
            members=self._members,
            world_size=self._topology.world_size,
            degrees={kind: sizes.most_common(1)[0][0] for kind, sizes in self._sizes.items() if kind in _CHECKED},
        )


def kept_to_json(kept: KeptWindow) -> dict[str, Any]:
    """Return the stored form, without the digest, which is stored separately."""
    return window_to_json(kept.window) | {"operators": None if kept.operators is None else asdict(kept.operators)}


def kept_from_json(value: Mapping[str, Any], *, digest: str, where: str) -> KeptWindow:
    """Return the value of a stored form (`kept_to_json`); operator times may be missing.

    Raises
    ------
    MalformedError
        The value has another form.
    """
    window = window_from_json(value, where=where)
    stored = value.get("operators")
    if stored is None:
        return KeptWindow(digest=digest, window=window)
    try:
        operators = OperatorTimes(
            matrix_seconds=float(stored["matrix_seconds"]),
            other_seconds=float(stored["other_seconds"]),
            ranks=tuple(map(int, stored["ranks"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedError("operator times", where=where, got=repr(error), expected="the stored format") from None
    if not (operators.matrix_seconds > 0 and operators.other_seconds > 0):
        raise MalformedError("operator times", where=where, got=stored, expected="seconds above 0")
    return KeptWindow(digest=digest, window=window, operators=operators)


def window_to_json(window: Window) -> dict[str, Any]:
    """Return the stored form."""
    return {
        "step": window.step_W.tolist(),
        "compute": window.compute_SW.tolist(),
        "optimizer": None if window.optimizer_SW is None else list(map(_nulled, window.optimizer_SW)),
        "floor": window.floor_W.tolist(),
        "spread": window.spread_W.tolist(),
        "exposed": {kind: _nulled(seconds_W) for kind, seconds_W in window.exposed.items()},
        "shortest": {kind: _nulled(seconds_W) for kind, seconds_W in window.shortest.items()},
        "members": {kind: list(ranks) for kind, ranks in window.members.items()},
        "world_size": window.world_size,
        "degrees": dict(window.degrees),
    }


def window_from_json(value: Mapping[str, Any], *, where: str) -> Window:
    """Return the window of a stored form (`window_to_json`); `optimizer` and `shortest` may be missing.

    Raises
    ------
    MalformedError
        The value has another form.
    """
    try:
        stored = value.get("optimizer")
        window = Window(
            step_W=np.array(value["step"], dtype=np.float64),
            compute_SW=np.array(value["compute"], dtype=np.float64),
            floor_W=np.array(value["floor"], dtype=np.float64),
            spread_W=np.array(value["spread"], dtype=np.float64),
            exposed=_by_kind(value["exposed"]),
            shortest=_by_kind(value.get("shortest", {})),
            members={str(kind): tuple(map(int, ranks)) for kind, ranks in value["members"].items()},
            world_size=int(value["world_size"]),
            degrees={str(kind): int(size) for kind, size in value["degrees"].items()},
            optimizer_SW=None if stored is None else np.array(stored, dtype=np.float64),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedError("healthy window", where=where, got=repr(error), expected="the stored format") from None
    steps = window.step_W.shape
    shapes = {
        window.floor_W.shape,
        window.spread_W.shape,
        *(each.shape for each in (*window.exposed.values(), *window.shortest.values())),
        window.compute_SW.shape[1:],
        (window.compute_SW if window.optimizer_SW is None else window.optimizer_SW).shape[1:],
    }
    if len(steps) != 1 or shapes != {steps}:
        raise MalformedError("healthy window", where=where, got=shapes, expected=f"{steps} steps of everything")
    return window


def _by_kind(value: Mapping[str, Any]) -> "dict[str, NDArray[np.float64]]":
    return {str(kind): np.array(seconds, dtype=np.float64) for kind, seconds in value.items()}


def _nulled(seconds: "NDArray[np.float64]") -> list[float | None]:
    return [None if np.isnan(each) else float(each) for each in seconds]


def _median(values: "NDArray[np.floating]", *, unknown: float = 0.0) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else unknown


def _spread(own_R: "NDArray[np.floating]") -> float:
    """Return by how many seconds the slowest rank works longer than the median rank."""
    known = own_R[~np.isnan(own_R)]
    return float(known.max() - np.median(known)) if len(known) else 0.0
