"""What a notification is: a stage of an incident, and when each stage is due. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from coordinator.decide.incidents import CLOSED
from coordinator.detect.anomalies import CRASH, HANG, MEMORY_GROWTH, SLOW_LINK
from coordinator.page.cards import dashboard_url, runbook_url

if TYPE_CHECKING:
    from coordinator.decide.incidents import Incident
    from coordinator.settings.config import CoordinatorConfig

OPENED, UPDATED, ENDED = STAGES = ("opened", "updated", "closed")
"""Updated: its function is known now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One stage of an incident, as it was then.

    `host` is where its ranks run, empty where unknown; `devices_lost` is None where unknown; `unix_s` is when the stage
    was noticed.
    """

    incident: "Incident"
    stage: str
    unix_s: float
    host: str = ""
    devices_lost: float | None = None

    @property
    def id(self) -> str:
        """Name of this notification: the same in every try, after a restart, and on both coordinators of a pair."""
        return f"{self.incident.id}-{self.stage}"

    @property
    def covers(self) -> tuple[str, ...]:
        """Stages that are not to be sent after it: one that shows the function makes an update of it needless."""
        return tuple(dict.fromkeys((self.stage, *((UPDATED,) if self.incident.function else ()))))


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentLinks:
    """Addresses for a reader's browser; empty where the coordinator's configuration has none."""

    incident: str = ""
    dashboard: str = ""
    runbook: str = ""


def due_stage(incident: "Incident", covered: Collection[str]) -> str:
    """Return the stage of an incident's present form that is not covered yet, empty where there is none.

    An incident of which nothing was sent while it was open is not reported as closed.
    """
    if OPENED not in covered:
        return "" if incident.state == CLOSED else OPENED
    if incident.state == CLOSED and ENDED not in covered:
        return ENDED
    return UPDATED if incident.function and UPDATED not in covered else ""


def devices_lost(incident: "Incident", world_size: int, baseline_step_seconds: float | None) -> float | None:
    """Return how many devices' work is lost while it lasts, None where that is unknown.

    As the alerts have it (docs/alerts.md): slowdown times ranks, all ranks where no step ends. The ratio of a slow link
    is that of its transfers, so its excess over the usual step counts.
    """
    if not world_size:
        return None
    if incident.kind in (HANG, CRASH):
        return float(world_size)
    if incident.kind == MEMORY_GROWTH:
        return None
    if incident.kind != SLOW_LINK:
        return min(incident.slowdown_ratio, 1.0) * world_size
    if not baseline_step_seconds:
        return None
    return min(incident.excess_seconds / baseline_step_seconds, 1.0) * world_size


def links_of(incident: "Incident", config: "CoordinatorConfig") -> IncidentLinks:
    """Return where to read on."""
    base = config.external_url.rstrip("/")
    return IncidentLinks(
        incident=f"{base}/incidents/{quote(incident.id, safe='')}" if base else "",
        dashboard=dashboard_url(incident, config),
        runbook=runbook_url(incident, config),
    )
