# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""The steps of one run, laid out as step x rank, and the decision which steps are complete.

No clock and no I/O: every call carries the time. Records arrive late, twice, never, or from a rank that lies; each
is counted by reason and dropped, and the other ranks are judged without it. A step is complete when every rank has
reported it, has gone past it, or has been silent for the grace period after half of the ranks did. A rank is not silent
while it goes on with older steps, or while its node is expected to deliver what it has spooled.

Every record ends in exactly one of three ways: handed out in a row of `ready`, counted in `rejected`, or pending.

Which attempt of the run a record belongs to is decided in `attempts.py`; steps are pending in `window.py`.

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
_PATIENCE = 12  # times the grace time: where less than half of the ranks report, the others are waited for so long
_WAITS, _FLOORS, _BYTES = ({kind: f"{kind}_{what}" for kind in DOMAIN_KINDS} for what in ("wait", "floor", "bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step of all known ranks: arrays of shape (R,), seconds, NaN where not measured.

    `self_seconds` is NaN for a rank that measured no wait at all: its step does not show its own work. The row
    owns its arrays; some share their memory.
    """

    step: int
    end_unix_s: float
    """Median of the ranks' clocks: one that is wrong by years does not count."""
    ranks: "NDArray[np.int64]"
    present: "NDArray[np.bool_]"
    flags: "NDArray[np.int64]"
    duration: "Floats"
    self_seconds: "Floats"
    components: "dict[str, Floats]"
    views: "dict[str, Floats]" = field(default_factory=dict)
    """Forward, backward and optimizer of compute, and own work off the CPU (`views.py`): those that some rank knows."""
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
    flops: "Floats | None" = None
    """Model FLOPs of each rank without a work figure; None where no rank knows them."""
    model_flops: "Floats | None" = None
    """Model FLOPs of each rank; None where no rank knows them."""
    samples: "Floats | None" = None
    """Samples of each rank; None where no rank counts them."""
    full_collections: "Floats | None" = None
    """Collections of Python's oldest generation of each rank; None where no rank counts them."""


def rejections() -> Counter[str]:
    """Return an empty count of refused records, every reason in it."""
    return Counter(dict.fromkeys(REJECTED_REASONS, 0))


class StepTimeline:
    """Invariants: `rejected` only grows; a step is handed out once per generation, in ascending order.

    `rejected` may be shared by several runs. `generation` counts restarts: what was learnt of steps before is void when
    it changes.
    """

    def __init__(self, policy: "TimelinePolicy", rejected: "Counter[str] | None" = None) -> None:
        self.policy = policy
        self.ranks = np.zeros(0, dtype=np.int64)
        self.rejected = rejections() if rejected is None else rejected
        self._attempts = Attempts(self._window_steps(), self.rejected)
        self._awaited: int | None = None  # a rank that was missing when last asked: to be asked first

    @property
    def generation(self) -> int:
        """How often another attempt has begun."""
        return self._attempts.generation

    @property
    def last_steps(self) -> "NDArray[np.int64]":
        """The last step of each known rank, array of shape (R,); -1 for one without a record."""
        last_step = self._attempts.present.last_step
        return np.array([last_step.get(rank, NOTHING) for rank in self.ranks.tolist()], dtype=np.int64)

    @property
    def ranks_reporting(self) -> int:
        """Ranks that have reported and are not silent."""
        return len(self._attempts.present.last_step.keys() - self._attempts.silent)

    @property
    def pending_records(self) -> int:
        """Records that wait in memory: neither handed out nor counted in `rejected` yet."""
        return self._attempts.pending_records

    def know(self, ranks: "list[int]") -> bool:
        """Add announced ranks; return whether any was new."""
        wide = np.union1d(self.ranks, np.asarray(ranks, dtype=np.int64))
        if len(wide) == len(self.ranks):
            return False
        self.ranks = wide
        self._attempts.resize(self._window_steps())
        return True

    def restart_ranks(self, attempts: "dict[int, int]") -> None:
        """Follow the announcement of new incarnations, unix ns by rank: their next records begin another attempt.

        Without effect for ranks that have not reported, and where records of that incarnation have already arrived.
        """
        for rank, attempt_ns in attempts.items():
            self._attempts.restart(rank, attempt_ns)

    def ingest(self, batch: "StepBatch", now_s: float) -> BatchReceipt:
        """Place the records of one decoded batch, as `ingest_all`."""
        return self.ingest_all((batch,), now_s)[0]

    def ingest_all(
        self, batches: "Sequence[StepBatch]", now_s: float, owners: "Owners | None" = None
    ) -> list[BatchReceipt]:
        """Place the records of decoded batches in the order of their arrival, far cheaper together than one by one.

        What cannot be used is counted in `rejected`, so are records of ranks that, by `owners`, another node owns.
        Returned is a receipt for each batch, which holds how many of its records are pending, now and later.
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

        `may_deliver` is true for a rank whose node is expected to deliver older records.
        """
        self._attempts.expire_strays(now_s - _PATIENCE * self.policy.grace_seconds)
        rows = []
        while self._is_complete(now_s, may_deliver):
            pending = self._attempts.present.hand_out()
            if pending is not None:
                rows.append(_row(pending, self.ranks))
        return rows

    def fits(self, step: int) -> bool:
        """Whether a step lies before the end of what can be pending now."""
        return step < self._attempts.present.span.stop

    @property
    def is_idle(self) -> bool:
        """Whether no step of this attempt is pending."""
        return not self._attempts.present.steps

    def drop_pending(self) -> None:
        """Give up all pending records, and count them as late: the end of a timeline that is thrown away."""
        self._attempts.drop_pending()

    def _window_steps(self) -> int:
        """Return how many steps may be pending."""
        cells = self.policy.window_cells // max(len(self.ranks), 1)
        return max(self.policy.window_steps_min, min(self.policy.window_steps_max, cells))

    def _is_complete(self, now_s: float, may_deliver: "Callable[[int], bool]") -> bool:
        """Whether no rank is waited for in the oldest step; ranks that were waited for too long fall silent."""
        attempts, window = self._attempts, self._attempts.present
        if not window.steps:
            return False
        first, last_step, silent = window.span.start, window.last_step, attempts.silent
        grace_s = self.policy.grace_seconds
        # A few ranks that run ahead, or claim to, silence no other: half of those waited for must have reported a step.
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
    """Lay a step out by rank; `ranks` are all known ones, ascending."""
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
