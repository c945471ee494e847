# ruff: noqa: N802, N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""The steps of one attempt that are not judged yet.

No clock and no judgement of records: `attempts.py` decides what belongs here. A step's records lie as they came until
it is complete, so that a step costs memory only for what has arrived of it.

Shapes: R ranks (columns), V values, N records taken together, G x K values in runs.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.intake.seats import Seats, as_nodes, joined, nodes_of, seats_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.intake.columns import Records
    from coordinator.settings.policy import TimelinePolicy

NOTHING = -1
_VALUES_AT_ONCE = 1 << 16  # laid out together: 256 KiB as they came, and as many as they are put
_PARTS_MAX = 64  # records that came one by one are joined to parts worth their handling


@dataclass(frozen=True, slots=True)
class _Part:
    """Values of some ranks as they came."""

    seats: Seats
    fields: tuple[str, ...]
    values_VN: "NDArray[np.float32]"

    def of(self, names: tuple[str, ...]) -> "NDArray[np.float32]":
        """Return some values, array of shape (len(names), N), NaN where one was not sent."""
        first = self.fields.index(names[0]) if names[0] in self.fields else 0
        if self.fields[first : first + len(names)] == names:
            return self.values_VN[first : first + len(names)]
        own_VN = np.full((len(names), self.values_VN.shape[1]), np.nan, dtype=np.float32)
        for own_N, name in zip(own_VN, names, strict=True):
            if name in self.fields:
                own_N[:] = self.values_VN[self.fields.index(name)]
        return own_VN


class HeldStep:
    """What has arrived of one step; cells of `end_ns_R` that `seen_R` does not name hold anything."""

    __slots__ = ("_arrivals", "_parts", "end_ns_R", "flags_R", "seen_R", "step")

    def __init__(self, step: int, rank_count: int) -> None:
        self.step = step
        self.seen_R = np.zeros(rank_count, dtype=bool)
        self.flags_R = np.zeros(rank_count, dtype=np.int64)
        self.end_ns_R = np.empty(rank_count, dtype=np.int64)
        self._parts: list[_Part] = []
        self._arrivals: dict[float, int] = {}

    def put(self, records: "Records", now_s: float) -> None:
        """Store records of this step, of ranks not seen in it yet."""
        seats = records.seats
        self._arrivals[now_s] = self._arrivals.get(now_s, 0) + records.count
        seats.put(self.seen_R, True)
        seats.put(self.end_ns_R, records.end_ns)
        if np.count_nonzero(records.flags):
            seats.put(self.flags_R, records.flags)
        self._parts.append(_Part(seats, records.fields, records.values_VN))

    def arrived_s(self, rank_count: int) -> float:
        """Return when so many ranks had reported the step; infinity where they have not."""
        arrived = 0
        for now_s, count in self._arrivals.items():
            arrived += count
            if arrived >= rank_count:
                return now_s
        return float("inf")

    def value_of(self) -> "dict[str, NDArray[np.float32]]":
        """Return the values by field, arrays of shape (R,), NaN where there is none.

        Only now are they laid out, so many fields at once as fit into the processor's cache: all of many ranks do not.
        """
        fields = tuple(dict.fromkeys(name for part in self._parts for name in part.fields))
        parts = _joined(self._parts)
        node_G = nodes_of([part.seats for part in parts])
        come = np.concatenate([part.seats.column for part in parts]) if node_G is None else node_G

        def lies(values: "NDArray[np.float32]") -> "NDArray[np.generic]":
            return values if node_G is None else as_nodes(values)

        values_VR = np.empty((len(fields), len(self.seen_R)), dtype=np.float32)
        place = np.zeros(len(lies(values_VR[0])), dtype=np.intp)
        place[come] = np.arange(len(come))
        at_once = min(max(1, _VALUES_AT_ONCE // len(self.seen_R)), len(fields))
        joined_VN = np.empty((at_once, sum(part.values_VN.shape[1] for part in parts)), dtype=np.float32)
        for first in range(0, len(fields), at_once):
            names = fields[first : first + at_once]
            came_VN = np.concatenate([part.of(names) for part in parts], axis=1, out=joined_VN[: len(names)])
            np.take(lies(came_VN), place, axis=1, out=lies(values_VR[first : first + at_once]), mode="clip")
        if np.count_nonzero(self.seen_R) < len(self.seen_R):
            values_VR[:, ~self.seen_R] = np.nan
        return dict(zip(fields, values_VR, strict=True))

    def widened(self, columns: "NDArray[np.intp]", rank_count: int) -> "HeldStep":
        """Return the step with `rank_count` ranks; the present ones move to `columns`."""
        wide = HeldStep(self.step, rank_count)
        wide._arrivals = dict(self._arrivals)
        wide.seen_R[columns] = self.seen_R
        wide.flags_R[columns] = self.flags_R
        wide.end_ns_R[columns] = self.end_ns_R
        wide._parts = [
            _Part(seats_of(columns[part.seats.column], rank_count), part.fields, part.values_VN) for part in self._parts
        ]
        return wide


def _joined(parts: list[_Part]) -> list[_Part]:
    """Return many small parts as few large ones."""
    if len(parts) <= _PARTS_MAX:
        return parts
    by_fields: dict[tuple[str, ...], list[_Part]] = {}
    for part in parts:
        by_fields.setdefault(part.fields, []).append(part)
    return [
        _Part(
            joined([part.seats for part in alike]),
            fields,
            np.concatenate([part.values_VN for part in alike], axis=1),
        )
        for fields, alike in by_fields.items()
    ]


class Window:
    """At most `length` steps from `base` on, the oldest not judged yet; `base` is None until the first record.

    Until a step is judged, the window still opens towards older steps: who reports first does not say where it begins.
    Invariant: all steps held lie inside.
    """

    def __init__(self, rank_count: int, policy: "TimelinePolicy") -> None:
        cells = policy.window_cells // max(rank_count, 1)
        self.length = max(policy.window_steps_min, min(policy.window_steps_max, cells))
        self.base: int | None = None
        self.last_step_R = np.full(rank_count, NOTHING, dtype=np.int64)
        self.steps: dict[int, HeldStep] = {}
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether it may still begin with an older step."""
        return self._is_open

    @property
    def reported_R(self) -> "NDArray[np.bool_]":
        """Ranks that have a record here, array of shape (R,)."""
        reported: NDArray[np.bool_] = self.last_step_R != NOTHING
        return reported

    def open_for(self, step_N: "NDArray[np.int64]") -> None:
        """Let the window begin with the oldest of these steps that all fit together with what is held."""
        if not self._is_open or not len(step_N):
            return
        base = int(step_N[0]) if self.base is None else self.base
        low = int(step_N.min(initial=base, where=step_N > base - self.length))
        top = max(int(step_N.max(initial=low, where=step_N < low + self.length)), max(self.steps, default=low))
        self.base = low if top < low + self.length else base

    def fits(self, step_N: "NDArray[np.int64]") -> "NDArray[np.bool_]":
        """Return which steps lie inside, array of shape (N,)."""
        return self._within(step_N, 0)

    def is_short_of(self, step_N: "NDArray[np.int64]") -> "NDArray[np.bool_]":
        """Return which steps lie less than a window's length before it, array of shape (N,)."""
        return self._within(step_N, -self.length)

    def is_past(self, step_N: "NDArray[np.int64]") -> "NDArray[np.bool_]":
        """Return which steps lie before what can still be stored, array of shape (N,)."""
        if self.base is None or self._is_open:
            return np.zeros(len(step_N), dtype=bool)
        past: NDArray[np.bool_] = step_N < self.base
        return past

    def _within(self, step_N: "NDArray[np.int64]", offset: int) -> "NDArray[np.bool_]":
        if self.base is None:
            return np.zeros(len(step_N), dtype=bool)
        first = self.base + offset
        inside: NDArray[np.bool_] = (step_N >= first) & (step_N < first + self.length)
        return inside

    def put(self, records: "Records", now_s: float, *, go_on: bool = False) -> None:
        """Store records of one step that fits, of ranks not seen in it yet, nor in a later one where they `go_on`."""
        step = int(records.step[0])
        held = self.steps.get(step)
        if held is None:
            held = self.steps[step] = HeldStep(step, len(self.last_step_R))
        held.put(records, now_s)
        seats = records.seats
        seats.put(self.last_step_R, step if go_on else np.maximum(seats.of(self.last_step_R), step))

    def held(self, records: "Records") -> "NDArray[np.bool_]":
        """Return which records fall on cells that are taken, array of shape (N,)."""
        taken = np.zeros(records.count, dtype=bool)
        for step in self.steps.keys() & np.unique(records.step).tolist():
            of_step = np.flatnonzero(records.step == step)
            taken[of_step] = self.steps[step].seen_R[records.column[of_step]]
        return taken

    def holds(self, step: int, column: int) -> bool:
        """Whether one cell is taken."""
        held = self.steps.get(step)
        return held is not None and bool(held.seen_R[column])

    def arrived_s(self, rank_count: int) -> float:
        """Return when so many ranks had gone past all steps that are handed out; infinity where they have not."""
        return min((held.arrived_s(rank_count) for held in self.steps.values()), default=float("inf"))

    def hand_out(self) -> HeldStep | None:
        """Give the oldest step away and go on to the next; None where nobody reported it."""
        assert self.base is not None
        held = self.steps.pop(self.base, None)
        self.base += 1
        self._is_open = False
        return held

    def widened(self, columns: "NDArray[np.intp]", rank_count: int, policy: "TimelinePolicy") -> "Window":
        """Return a window of `rank_count` ranks; the present ones move to `columns`."""
        wide = Window(rank_count, policy)
        wide.base, wide._is_open = self.base, self._is_open
        wide.last_step_R[columns] = self.last_step_R
        if self.base is not None:
            last = self.base + wide.length
            wide.steps = {n: held.widened(columns, rank_count) for n, held in self.steps.items() if n < last}
        return wide
