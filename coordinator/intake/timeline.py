# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""The steps of one run, laid out as step x rank, and the judgement of which steps are complete.

No clock and no I/O: every call carries the time. Records arrive late, twice, never, or from a rank that lies; each
is counted by reason and dropped, and the other ranks are judged without it. A step is complete when every rank has
reported it, has gone past it, or has been silent for the grace period after half of the ranks did.

Which attempt of the run a record belongs to is decided in `attempts.py`, where the steps lie until then in `window.py`.

Shapes: R ranks known (columns, ascending by rank).
"""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.intake.attempts import Attempts
from coordinator.intake.columns import COMPONENTS, Columns, account
from coordinator.intake.joined import apart
from coordinator.intake.seats import seats_of
from lockstep.contracts.records import DOMAIN_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from coordinator.intake.joined import Sent
    from coordinator.intake.window import HeldStep
    from coordinator.settings.policy import TimelinePolicy
    from lockstep.contracts.messages import StepBatch

    Floats = NDArray[np.float32]

REJECTION_REASONS = ("rank", "late", "duplicate", "impossible")
_NS = 1e-9
_BLOCK_RECORDS = 32_768  # taken together: 8 ms; half as many cost a tenth more a record, twice as many hardly less
_PATIENCE = 12  # times the grace time: where less than half of the ranks report, the others are waited for so long
_WAITS, _FLOORS, _BYTES = ({kind: f"{kind}_{what}" for kind in DOMAIN_KINDS} for what in ("wait", "floor", "bytes"))
_SAMPLE_RANKS = 1024  # ranks whose clocks say when a step ended


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step of all known ranks: arrays of shape (R,), seconds, NaN where not measured.

    `self_seconds` is NaN for a rank that measured no wait at all: its step says nothing about its own work. The row
    owns its arrays; some share their memory.
    """

    step: int
    end_unix_s: float
    """Median of the ranks' clocks: one that lies by years says nothing."""
    ranks: "NDArray[np.int64]"
    present: "NDArray[np.bool_]"
    flags: "NDArray[np.int64]"
    duration: "Floats"
    self_seconds: "Floats"
    components: "dict[str, Floats]"
    waits: "dict[str, Floats]"
    transfers: "dict[str, Floats]"
    """Per domain kind, what may be transfer: the wait, for pipelines count x shortest (their waits hold bubbles)."""
    floors: "dict[str, Floats]"
    """Per domain kind, count x shortest operation: a bound of the transfers that holds no waiting for late peers."""
    moved: "dict[str, Floats]"
    """Bytes per domain kind."""
    tokens: "Floats"
    work: "Floats"
    """What compute should be proportional to (no unit): the record's work figure, else its tokens."""


def rejections() -> Counter[str]:
    """Return an empty count of refused records, every reason in it."""
    return Counter(dict.fromkeys(REJECTION_REASONS, 0))


class Timeline:
    """Invariants: `rejected` only grows; a step is handed out once per generation, in ascending order.

    `rejected` may be shared by several runs. `generation` counts restarts: whoever keeps memory of steps must begin
    anew when it changes.
    """

    def __init__(self, policy: "TimelinePolicy", rejected: "Counter[str] | None" = None) -> None:
        self.policy = policy
        self.ranks = np.zeros(0, dtype=np.int64)
        self.rejected = rejections() if rejected is None else rejected
        self._attempts = Attempts(0, policy, self.rejected)
        self._waited_for = 0  # a column that had not gone past the oldest step when last asked: a hint, to ask it first

    @property
    def generation(self) -> int:
        """How often another attempt has begun."""
        return self._attempts.generation

    @property
    def last_steps(self) -> "NDArray[np.int64]":
        """The last step of each known rank, array of shape (R,); -1 for one without a record."""
        return self._attempts.present.last_step_R

    @property
    def ranks_reporting(self) -> int:
        """Ranks that have reported and are not silent."""
        return int((self._attempts.present.reported_R & ~self._attempts.silent_R).sum())

    def know(self, ranks: "list[int]") -> bool:
        """Take announced ranks; return whether any was new."""
        wide = np.union1d(self.ranks, np.asarray(ranks, dtype=np.int64))
        if len(wide) == len(self.ranks):
            return False
        self._attempts.widen(np.searchsorted(wide, self.ranks), len(wide))
        self.ranks = wide
        return True

    def restart_ranks(self, attempts: "dict[int, int]") -> None:
        """Take the announcement of new incarnations, unix ns by rank: their next records begin another attempt.

        Without effect for ranks that are not known, and where records of that incarnation have already arrived.
        """
        column, known = self._columns_of(np.fromiter(attempts, dtype=np.int64, count=len(attempts)))
        attempt_ns = np.fromiter(attempts.values(), dtype=np.int64, count=len(attempts))
        self._attempts.restart(column[known], attempt_ns[known])

    def ingest(self, batch: "StepBatch", now_s: float) -> None:
        """Take a decoded batch; what cannot be used is counted in `rejected`."""
        self.ingest_all((batch,), now_s)

    def ingest_all(self, batches: "Iterable[StepBatch]", now_s: float) -> None:
        """Take decoded batches in the order of their arrival, far cheaper together than one by one."""
        for block in _blocks(batches):
            columns = Columns(block)
            place, known = self._columns_of(columns.rank)
            records, possible = account(columns, seats_of(place, len(self.ranks)), self.policy)
            good = known & possible
            if np.count_nonzero(good) == len(good):
                self._attempts.place(records, now_s)
                continue
            self.rejected["rank"] += int((~known).sum())
            self.rejected["impossible"] += int((known & ~possible).sum())
            self._attempts.place(records.at(good), now_s)

    def _columns_of(self, rank: "NDArray[np.int64]") -> "tuple[NDArray[np.intp], NDArray[np.bool_]]":
        """Return the column of each record's rank, any column where the rank is unknown, and which are known."""
        count = len(self.ranks)
        if not count:
            return np.zeros(len(rank), dtype=np.intp), np.zeros(len(rank), dtype=bool)
        if self.ranks[-1] == count - 1:  # ranks 0 to R - 1, as in nearly every job: nothing to search
            known = rank.view(np.uint64) < count
            return rank.copy() if np.count_nonzero(known) == len(rank) else np.where(known, rank, 0), known
        place = np.minimum(np.searchsorted(self.ranks, rank), count - 1)
        return place, self.ranks[place] == rank

    def ready(self, now_s: float) -> list[StepRow]:
        """Return the steps that are complete by now, oldest first; each is returned once."""
        rows = []
        while self._is_complete(now_s):
            held = self._attempts.present.hand_out()
            if held is not None:
                rows.append(_row(held, self.ranks))
        return rows

    def _is_complete(self, now_s: float) -> bool:
        window, silent_R = self._attempts.present, self._attempts.silent_R
        if window.base is None or not window.steps:
            return False
        grace_s = self.policy.grace_seconds
        # A few ranks that run ahead, or say so, silence nobody: half of those waited for must have gone past the step.
        half = (len(silent_R) - int(np.count_nonzero(silent_R)) + 1) // 2
        has_waited = now_s - window.arrived_s(half) >= grace_s
        has_long_waited = now_s - window.arrived_s(1) >= _PATIENCE * grace_s
        hint = self._waited_for
        if not has_waited and not has_long_waited and window.last_step_R[hint] < window.base and not silent_R[hint]:
            return False
        decided_R = (window.last_step_R >= window.base) | silent_R
        if has_long_waited and not has_waited:
            silent_R |= ~decided_R & (now_s - self._attempts.heard_s_R >= _PATIENCE * grace_s)
            decided_R |= silent_R
        if has_waited:
            silent_R |= ~decided_R
            return True
        self._waited_for = int(decided_R.argmin())
        return bool(decided_R[self._waited_for])


def _row(held: "HeldStep", ranks: "NDArray[np.int64]") -> StepRow:
    value_of = held.value_of()

    def by_kind(name_of: dict[str, str]) -> "dict[str, Floats]":
        return {kind: value_of[name] for kind, name in name_of.items() if name in value_of}

    def value(name: str) -> "Floats":
        return value_of[name] if name in value_of else np.full(len(ranks), np.nan, dtype=np.float32)

    waits, tokens = by_kind(_WAITS), value("tokens")
    return StepRow(
        step=held.step,
        end_unix_s=_end_unix_s(held),
        ranks=ranks,
        present=held.seen_R,
        flags=held.flags_R,
        duration=value_of["duration"],
        self_seconds=value_of["self"],
        components={name: value_of[name] for name in COMPONENTS},
        waits=waits,
        transfers=waits | ({"pp": value(_FLOORS["pp"])} if "pp" in waits else {}),
        floors=by_kind(_FLOORS),
        moved=by_kind(_BYTES),
        tokens=tokens,
        work=_first_known(value_of.get("work"), tokens),
    )


def _blocks(batches: "Iterable[StepBatch]") -> "Iterator[Sent]":
    """Yield batches that hold records, so many together as are worth it."""
    sent = apart(batches)
    if sum(sent.count_B) <= _BLOCK_RECORDS:
        if sent.count_B:
            yield sent
        return
    before_B = np.cumsum([0, *sent.count_B])
    first = 0
    while first < len(sent.count_B):
        last = max(first + 1, int(np.searchsorted(before_B, before_B[first] + _BLOCK_RECORDS, side="right")) - 1)
        yield sent.at(slice(first, last))
        first = last


def _end_unix_s(held: "HeldStep") -> float:
    """Return when the step ended by the median of some clocks, so that asking is cheap."""
    seen_R = held.seen_R
    end_ns_R = held.end_ns_R if np.count_nonzero(seen_R) == len(seen_R) else held.end_ns_R[seen_R]
    ordered = np.sort(end_ns_R[:: 1 + len(end_ns_R) // _SAMPLE_RANKS])
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return (float(low) + float(high)) / 2 * _NS


def _first_known(work: "Floats | None", tokens: "Floats") -> "Floats":
    if work is None:
        return tokens
    return np.where(np.isnan(work), tokens, work) if np.isnan(work.sum()) else work
