# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""Arranges the records of one run by step and rank, and decides which steps are complete.

No clock and no I/O: every call carries the time. Records may arrive late, twice, never, or with false values; bad ones
are counted by reason and dropped, and the other ranks are evaluated without them. A step is complete when every rank
has reported it, has gone past it, or has been silent for the grace period after half of the ranks did. A rank is not
silent while it reports older steps, or while its node is expected to deliver spooled records.

Every record ends in exactly one of three ways: handed out in a row of `ready`, counted in `rejected`, or pending.

`attempts.py` decides which attempt of the run a record belongs to; `window.py` holds the pending steps.

Shapes: R ranks known (columns, ascending by rank), N records.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, compress, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.intake.attempts import Attempts
from coordinator.intake.batch_table import read_batches
from coordinator.intake.columns import COMPONENTS, FULL_COLLECTIONS, OPTIONAL_FIELDS, REQUIRED_FIELDS, account
from coordinator.intake.views import VIEWS
from coordinator.intake.window import NOTHING, BatchReceipt
from lockstep.contracts.metrics import REJECTED_REASONS
from lockstep.contracts.records import DOMAIN_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from coordinator.intake.owners import Owners
    from coordinator.intake.window import PendingStep
    from coordinator.settings.policy import TimelinePolicy
    from lockstep.contracts.messages import StepBatch

    Floats = NDArray[np.float32]

_NS = 1e-9
_PATIENCE = 12  # times the grace period: how long to wait for the others if less than half of the ranks report
_WAITS, _FLOORS, _BYTES = ({kind: f"{kind}_{what}" for kind in DOMAIN_KINDS} for what in ("wait", "floor", "bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step of all known ranks: arrays of shape (R,), seconds, NaN if not measured.

    `self_seconds` is NaN for a rank that measured no wait at all, because its own work is then unknown. The row owns
    its arrays; some of them share memory.
    """

    step: int
    end_unix_s: float
    """Median over the ranks' clocks: robust against one that is wrong by years."""
    ranks: "NDArray[np.int64]"
    present: "NDArray[np.bool_]"
    flags: "NDArray[np.int64]"
    duration: "Floats"
    self_seconds: "Floats"
    components: "dict[str, Floats]"
    views: "dict[str, Floats]" = field(default_factory=dict)
    """Forward, backward and optimizer of compute, and own work off the CPU (`views.py`); only those that some rank
    has."""
    waits: "dict[str, Floats]"
    transfers: "dict[str, Floats]"
    """Upper bound of the transfers per domain kind: the wait; count x shortest for pipelines, whose waits include
    bubbles."""
    floors: "dict[str, Floats]"
    """Count x shortest operation per domain kind: an estimate of the transfers that excludes waiting for late peers."""
    moved: "dict[str, Floats]"
    """Bytes per domain kind."""
    tokens: "Floats"
    work: "Floats"
    """What compute should be proportional to (no unit): the record's work figure if it has one, else its tokens."""
    flops: "Floats | None" = None
    """Model FLOPs of each rank that has no work figure; None if no rank has them."""
    model_flops: "Floats | None" = None
    """Model FLOPs of each rank; None if no rank has them."""
    samples: "Floats | None" = None
    """Samples of each rank; None if no rank counts them."""
    full_collections: "Floats | None" = None
    """Garbage collections of Python's oldest generation, of each rank; None if no rank counts them."""


def rejections() -> Counter[str]:
    """Return a counter of rejected records with every reason at zero."""
    return Counter(dict.fromkeys(REJECTED_REASONS, 0))


class StepTimeline:
    """The timeline of one run.

    Invariants: `rejected` only grows; each step is handed out once per generation, ascending.

    Several runs may share `rejected`. `generation` counts restarts: when it changes, everything learnt from earlier
    steps is invalid.
    """

    def __init__(self, policy: "TimelinePolicy", rejected: "Counter[str] | None" = None) -> None:
        self.policy = policy
        self.ranks = np.zeros(0, dtype=np.int64)
        self.rejected = rejections() if rejected is None else rejected
        self._attempts = Attempts(self._window_steps(), self.rejected)
        self._awaited: int | None = None  # a rank that was missing at the last check: checked first

    @property
    def generation(self) -> int:
        """Return how many times a new attempt has begun."""
        return self._attempts.generation

    @property
    def last_steps(self) -> "NDArray[np.int64]":
        """Return the last step of each known rank, array of shape (R,); -1 if its records do not show that."""
        return np.array([self._attempts.last_step_of(rank) for rank in self.ranks.tolist()], dtype=np.int64)

    @property
    def ranks_reporting(self) -> int:
        """Return the number of ranks that have reported and are not silent."""
        return len(self._attempts.present.last_step.keys() - self._attempts.silent)

    @property
    def pending_records(self) -> int:
        """Return the number of records in memory, neither handed out nor counted in `rejected` yet."""
        return self._attempts.pending_records

    def know(self, ranks: "list[int]") -> bool:
        """Add announced ranks; return whether any of them was new."""
        wide = np.union1d(self.ranks, np.asarray(ranks, dtype=np.int64))
        if len(wide) == len(self.ranks):
            return False
        self.ranks = wide
        self._attempts.resize(self._window_steps())
        return True

    def restart_ranks(self, attempts: "dict[int, int]") -> None:
        """Apply announced incarnations (unix ns by rank): the next records of these ranks begin another attempt.

        Does nothing for ranks that have not reported, or if records of that incarnation have already arrived.
        """
        for rank, attempt_ns in attempts.items():
            self._attempts.restart(rank, attempt_ns)

    def ingest(self, batch: "StepBatch", now_s: float) -> BatchReceipt:
        """Place the records of one decoded batch; see `ingest_all`."""
        return self.ingest_all((batch,), now_s)[0]

    def ingest_all(
        self, batches: "Sequence[StepBatch]", now_s: float, owners: "Owners | None" = None
    ) -> list[BatchReceipt]:
        """Place the records of decoded batches in order of arrival; far cheaper together than one by one.

        Unusable records are counted in `rejected`, and so are records of ranks that belong to another node by `owners`.
        Returns one receipt per batch, which holds the number of its pending records, now and later.
        """
        receipts = [BatchReceipt() for _ in batches]
        table = read_batches(batches, REQUIRED_FIELDS, OPTIONAL_FIELDS)
        records, possible = account(table, self.policy)
        known = np.isin(records.rank, self.ranks)
        self.rejected["rank"] += int(np.count_nonzero(~known))
        if owners is not None:
            nodes, counts = [batch.node for batch in batches], [batch.count for batch in batches]
            foreign = known & owners.foreign(nodes, counts, records.rank)
            self.rejected["foreign"] += int(np.count_nonzero(foreign))
            known &= ~foreign
        good = known & possible
        self.rejected["impossible"] += int(np.count_nonzero(known & ~possible))
        receipt_of_each = chain.from_iterable(map(repeat, receipts, (batch.count for batch in batches)))
        if good.all():
            self._attempts.place(records, receipt_of_each, now_s)
        else:
            self._attempts.place(records.at(good), compress(receipt_of_each, good.tolist()), now_s)
        return receipts

    def ready(self, now_s: float, may_deliver: "Callable[[int], bool]" = lambda _: False) -> list[StepRow]:
        """Return the steps that are complete by now, oldest first; each is returned once.

        `may_deliver` returns true for a rank whose node is expected to deliver older records.
        """
        self._attempts.expire_strays(now_s - _PATIENCE * self.policy.grace_seconds)
        rows = []
        while self._is_complete(now_s, may_deliver):
            pending = self._attempts.present.hand_out()
            if pending is not None:
                rows.append(_row(pending, self.ranks))
        return rows

    def fits(self, step: int) -> bool:
        """Return whether a step lies before the end of the window."""
        return step < self._attempts.present.span.stop

    @property
    def is_idle(self) -> bool:
        """Return whether no step of this attempt is pending."""
        return not self._attempts.present.steps

    def drop_pending(self) -> None:
        """Drop all pending records and count them as late; call it before discarding a timeline."""
        self._attempts.drop_pending()

    def _window_steps(self) -> int:
        """Return how many steps may be pending."""
        cells = self.policy.window_cells // max(len(self.ranks), 1)
        return max(self.policy.window_steps_min, min(self.policy.window_steps_max, cells))

    def _is_complete(self, now_s: float, may_deliver: "Callable[[int], bool]") -> bool:
        """Return whether the oldest step waits for no rank; mark ranks as silent that it has waited for too long."""
        attempts, window = self._attempts, self._attempts.present
        if not window.steps:
            return False
        first, last_step, silent = window.span.start, window.last_step, attempts.silent
        grace_s = self.policy.grace_seconds
        # A few ranks that run ahead, or claim to, must not silence others: half of those awaited must have reported.
        half = (len(self.ranks) - len(silent) + 1) // 2
        has_waited = now_s - window.arrived_s(half) >= grace_s
        has_long_waited = now_s - window.arrived_s(1) >= _PATIENCE * grace_s

        def is_missing(rank: int) -> bool:
            return last_step.get(rank, NOTHING) < first and rank not in silent

        def is_silent(rank: int) -> bool:
            silent_s = now_s - attempts.accepted_s(rank)
            return silent_s >= (grace_s if has_waited else _PATIENCE * grace_s) and not may_deliver(rank)

        waits = has_waited or has_long_waited
        if self._awaited is not None and is_missing(self._awaited) and not (waits and is_silent(self._awaited)):
            return False
        if waits:
            attempts.silence([rank for rank in self.ranks.tolist() if is_missing(rank) and is_silent(rank)])
        self._awaited = next(filter(is_missing, self.ranks.tolist()), None)
        return self._awaited is None


def _row(pending: "PendingStep", ranks: "NDArray[np.int64]") -> StepRow:
    """Arrange a step by rank; `ranks` are all known ranks, ascending."""
    parts = pending.parts
    column_N = np.searchsorted(ranks, np.concatenate([part.rank for part in parts]))

    def spread(values: "Sequence[NDArray[Any]]", fill: float, dtype: type) -> "NDArray[Any]":
        values_R: NDArray[Any] = np.full(len(ranks), fill, dtype=dtype)
        values_R[column_N] = np.concatenate(values)
        return values_R

    fields = dict.fromkeys(name for part in parts for name in part.fields)
    value_of = {name: spread([part.value(name) for part in parts], np.nan, np.float32) for name in fields}

    def by_kind(name_of: dict[str, str]) -> "dict[str, Floats]":
        return {kind: value_of[name] for kind, name in name_of.items() if name in value_of}

    def value(name: str) -> "Floats":
        return value_of[name] if name in value_of else np.full(len(ranks), np.nan, dtype=np.float32)

    waits, tokens, work, flops = by_kind(_WAITS), value("tokens"), value_of.get("work"), value_of.get("model_flops")
    return StepRow(
        step=pending.step,
        end_unix_s=float(np.median(np.concatenate([part.end_ns for part in parts]))) * _NS,
        ranks=ranks,
        present=spread([np.ones(len(part.rank)) for part in parts], False, np.bool_),
        flags=spread([part.flags for part in parts], 0, np.int64),
        duration=value_of["duration"],
        self_seconds=value_of["self"],
        components={name: value_of[name] for name in COMPONENTS},
        views={name: value_of[name] for name in VIEWS if name in value_of},
        full_collections=value_of.get(FULL_COLLECTIONS),
        model_flops=flops,
        samples=value_of.get("samples"),
        waits=waits,
        transfers=waits | ({"pp": value(_FLOORS["pp"])} if "pp" in waits else {}),
        floors=by_kind(_FLOORS),
        moved=by_kind(_BYTES),
        tokens=tokens,
        work=tokens if work is None else np.where(np.isnan(work), tokens, work),
        flops=flops if work is None or flops is None else np.where(np.isnan(work), flops, np.float32(np.nan)),
    )
