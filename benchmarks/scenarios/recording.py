# ruff: noqa: N806, N815  (names of arrays end in their shape, see the legend below)
"""What the ranks of a generated job measured, and the step log of it.

Shapes: W rows (steps in order of time, over all attempts), R ranks.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from coordinator.record.steplog import StepLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lockstep.contracts.domains import Topology

START_UNIX_S = 1_790_000_000
RANKS_PER_NODE = 8
_NS = 1_000_000_000
_BATCH_SECONDS = 0.05  # from a step's end to the coordinator


@dataclass(kw_only=True)
class Recording:
    """Arrays of shape (W, R), seconds, float32; `step_W` is the index that the job gives each row.

    A row's duration is the same on all ranks, for they end it together: array of shape (W,).
    """

    topology: "Topology"
    step_W: "NDArray[np.int64]"
    gap_seconds_W: "NDArray[np.float64]"
    duration_W: "NDArray[np.float64]"
    parts: "dict[str, NDArray[np.float32]]"
    waits: "dict[str, NDArray[np.float32]]"
    transfers: "dict[str, NDArray[np.float32]]"
    moved: "dict[str, NDArray[np.int64]]"
    """Bytes per kind, array of shape (R,): the same in every step."""
    tokens: "NDArray[np.float32]"
    flops: "NDArray[np.float32]"
    flags: "NDArray[np.int64]"
    present: "NDArray[np.bool_]"
    late: "NDArray[np.bool_]"
    """Which records arrive two steps late; `held_seconds`, which broadcasts to (W, R), comes on top of it."""
    held_seconds: "NDArray[np.float64]"
    skew_ns_R: "NDArray[np.int64]"
    reported_step: "NDArray[np.int64]"
    """The step's index by each rank's report, and by how much its clock is ahead, ns: both broadcast to (W, R)."""
    ahead_ns: "NDArray[np.int64]"
    tokens_known: bool = True
    bytes_known: bool = True
    flops_known: bool = False
    phases: "dict[str, NDArray[np.float32]]" = field(default_factory=dict)
    """Phases of compute, empty where no one measured them."""

    @property
    def own(self) -> "NDArray[np.float32]":
        """Own work, array of shape (W, R), seconds."""
        own: NDArray[np.float32] = sum(self.parts.values(), start=np.zeros_like(self.tokens))
        return own

    def log(self, *, run: str = "run", optional: bool = True) -> StepLog:
        """Return the step log, rows in order of arrival; without `optional` only what a log must hold."""
        duration_ns_W = np.rint(self.duration_W * _NS).astype(np.int64)
        gaps_ns_W = np.rint(self.gap_seconds_W * _NS).astype(np.int64)
        end_ns_W = START_UNIX_S * _NS + np.cumsum(duration_ns_W + gaps_ns_W)
        received_ns = end_ns_W[:, None] + self.skew_ns_R + int(_BATCH_SECONDS * _NS)
        received_ns += self.late * (2 * duration_ns_W)[:, None]
        received_ns += (self.held_seconds * _NS).astype(np.int64)
        rows = np.flatnonzero(self.present)
        rows = rows[np.argsort(received_ns.ravel()[rows], kind="stable")]
        at_W, rank = np.divmod(rows, self.present.shape[1])

        def nanoseconds(values: "NDArray[np.float32]") -> "NDArray[np.int64]":
            return np.rint(values.ravel()[rows].astype(np.float64) * _NS).astype(np.int64)

        columns = {
            "rank": rank,
            "step": np.broadcast_to(self.reported_step, self.present.shape)[at_W, rank],
            "start_ns": end_ns_W[at_W]
            - duration_ns_W[at_W]
            + self.skew_ns_R[rank]
            + np.broadcast_to(self.ahead_ns, self.present.shape)[at_W, rank],
            "duration_ns": duration_ns_W[at_W],
        }
        columns |= {f"{name}_ns": nanoseconds(values) for name, values in self.parts.items() if name != "compute"}
        columns |= {f"{kind}_wait_ns": nanoseconds(values) for kind, values in self.waits.items()}
        booked = sum(values for name, values in columns.items() if name.endswith("_ns") and name not in _TIMES)
        columns["compute_ns"] = columns["duration_ns"] - booked  # the account is exact, whatever was rounded
        if optional:
            columns |= {f"{kind}_transfer_ns": nanoseconds(values) for kind, values in self.transfers.items()}
            if self.bytes_known:
                columns |= {f"{kind}_bytes": values[rank] for kind, values in self.moved.items()}
            if self.tokens_known:
                columns["tokens"] = np.rint(self.tokens.ravel()[rows]).astype(np.int64)
            if self.flops_known:
                columns["model_flops"] = np.rint(self.flops.ravel()[rows].astype(np.float64)).astype(np.int64)
            columns |= _phase_columns({name: nanoseconds(values) for name, values in self.phases.items()}, columns)
            columns["flags"] = self.flags.ravel()[rows]
            columns["received_ns"] = received_ns.ravel()[rows]
        return StepLog(run, columns)


_TIMES = ("start_ns", "duration_ns")


def _phase_columns(
    phases: "dict[str, NDArray[np.int64]]", columns: "dict[str, NDArray[np.int64]]"
) -> "dict[str, NDArray[np.int64]]":
    """Return the columns of phases, what rounding leaves of compute in the first of them."""
    if not phases:
        return {}
    first, *others = phases
    rounded = {f"{name}_ns": phases[name] for name in others}
    return {f"{first}_ns": columns["compute_ns"] - sum(rounded.values()), **rounded}
