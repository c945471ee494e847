"""Isolates faults by run: an exception while handling a run is counted, and resets only its detectors. No I/O."""

from typing import TYPE_CHECKING

from lockstep.contracts.errors import PeerError
from lockstep.serving.fault_isolation import FaultIsolation

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from coordinator.run import Orders, Run

HANDLE, DETECT = "handle", "detect"
"""Kinds of work isolated by run: handling its input, and evaluating a step."""
QUARANTINE_S = 600.0
"""Quarantine after three failures in a row: long enough to cost nothing, short enough to evaluate a new attempt."""


class RunIsolation:
    """`by_name` holds the runs; records whose handling failed are counted in `rejected`."""

    def __init__(self, by_name: "Mapping[str, Run]", rejected: "Counter[str]") -> None:
        self._by_name, self._rejected = by_name, rejected
        self.faults = FaultIsolation((HANDLE, DETECT), quarantine_s=QUARANTINE_S)

    def is_quarantined(self, name: str, now_s: float) -> bool:
        """Whether a run failed so often that it is skipped for now."""
        return any(self.faults.is_quarantined(kind, name, now_s) for kind in (HANDLE, DETECT))

    def run(self, kind: str, name: str, now_s: float, work: "Callable[[], Orders]", *, records: int = 0) -> "Orders":
        """Return the orders of `work` on a run; empty if it raised, or if the run is quarantined.

        `records` are counted as failed if it raised. A `PeerError` is passed on to the caller.
        """
        if not self.faults.admits(kind, name, now_s):
            self._rejected["quarantined"] += records
            return []
        orders: Orders | None = None
        refusal: PeerError | None = None
        with self.faults.guard(kind, name, now_s):
            try:
                orders = work()
            except PeerError as error:
                refusal = error
        if refusal is not None:
            raise refusal
        if orders is not None:
            return orders
        self._rejected["failed"] += records
        run = self._by_name.get(name)
        if run is not None:
            run.begin_again()
        return []
