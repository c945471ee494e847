"""The exporter's counters about itself. Label values come from the catalogue, so every series exists from the start."""

import logging
from dataclasses import dataclass, field

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.metrics import BY_NAME

_log = logging.getLogger(__name__)


def _zeros(metric: str) -> dict[str, int]:
    return dict.fromkeys(BY_NAME[metric].values, 0)


@dataclass(slots=True)
class ExporterCounters:
    """Counters of one exporter process, written by its event loop only."""

    lost: dict[str, int] = field(default_factory=lambda: _zeros("lockstep_exporter_records_lost_total"))
    lost_blocks: dict[str, int] = field(default_factory=lambda: _zeros("lockstep_exporter_blocks_lost_total"))
    malformed_marks: int = 0
    incomplete_steps: int = 0
    rejected: dict[str, int] = field(default_factory=lambda: _zeros("lockstep_exporter_inputs_rejected_total"))
    profiles: dict[str, int] = field(default_factory=lambda: _zeros("lockstep_exporter_profiles_total"))
    profile_cost_ns: int = 0

    def reject(self, kind: str, reason: MalformedError | OSError | str) -> None:
        """Count a refused input and log why; of a flood, only each power of two is logged."""
        self.rejected[kind] += 1
        count = self.rejected[kind]
        if count & (count - 1) == 0:
            _log.warning("refused %s input, number %d: %s", kind, count, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryStatus:
    """The state of delivery to the coordinators at one moment.

    `spool_bytes` and `spool_messages` cover what some known coordinator has not committed. `acknowledged_unix_ns` is
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
