"""What the exporter counts about itself; label values come from the catalogue, so each is there from the start."""

import logging
from dataclasses import dataclass, field

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.metrics import BY_NAME

_log = logging.getLogger(__name__)


def _zeros(metric: str) -> dict[str, int]:
    return dict.fromkeys(BY_NAME[metric].values, 0)


@dataclass(slots=True)
class Counts:
    """Counters of one exporter process, written by its event loop only."""

    lost: dict[str, int] = field(default_factory=lambda: _zeros("lockstep_exporter_records_lost_total"))
    lost_blocks: dict[str, int] = field(default_factory=lambda: _zeros("lockstep_exporter_blocks_lost_total"))
    malformed_marks: int = 0
    incomplete_steps: int = 0
    rejected: dict[str, int] = field(default_factory=lambda: _zeros("lockstep_exporter_inputs_rejected_total"))
    profiles: dict[str, int] = field(default_factory=lambda: _zeros("lockstep_exporter_profiles_total"))
    profile_cost_ns: int = 0

    def reject(self, kind: str, reason: MalformedError | OSError | str) -> None:
        """Count an input that was refused, and log why; a flood is logged at each power of two only."""
        self.rejected[kind] += 1
        count = self.rejected[kind]
        if count & (count - 1) == 0:
            _log.warning("refused %s input, number %d: %s", kind, count, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryStatus:
    """How delivery to the coordinators stands at one moment.

    `spool_bytes` and `spool_messages` are what not every known coordinator has committed; `acknowledged_unix_ns` is
    None before the first acknowledgement.
    """

    connected: bool
    spool_bytes: int
    spool_messages: int
    spool_limit_bytes: int
    published: int
    resent: int
    coordinators: int
    acknowledged_unix_ns: int | None
