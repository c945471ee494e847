"""The notification of a stage of an incident, and when each stage is due. Pure."""

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
"""Stages of an incident; "updated" means that its function has become known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """The notification of one stage of an incident, with the incident as of that stage.

    `host` is where its ranks run, empty if unknown; `devices_lost` is None if unknown; `unix_s` is when the stage was
    noticed.
    """

    incident: "Incident"
    stage: str
    unix_s: float
    host: str = ""
    devices_lost: float | None = None

    @property
    def id(self) -> str:
        """Id of this notification: the same in every attempt, after a restart, and on both coordinators of a pair."""
        return f"{self.incident.id}-{self.stage}"

    @property
    def covers(self) -> tuple[str, ...]:
        """Stages that need not be sent after it: a notification that names the function makes an update redundant."""
        return tuple(dict.fromkeys((self.stage, *((UPDATED,) if self.incident.function else ()))))


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentLinks:
    """URLs for the reader's browser; empty if not configured."""

    incident: str = ""
    dashboard: str = ""
    runbook: str = ""


def due_stage(incident: "Incident", covered: Collection[str]) -> str:
    """Return the stage of an incident that is due and not covered yet; empty if there is none.

    If no notification was sent while an incident was open, its end is not notified either.
    """
    if OPENED not in covered:
        return "" if incident.state == CLOSED else OPENED
    if incident.state == CLOSED and ENDED not in covered:
        return ENDED
    return UPDATED if incident.function and UPDATED not in covered else ""


def devices_lost(incident: "Incident", world_size: int, baseline_step_seconds: float | None) -> float | None:
    """Return the number of devices whose work is lost while the incident lasts; None if unknown.

    Defined as in the alerts (docs/alerts.md): slowdown times ranks, or all ranks if no step ends. The ratio of a slow
    link refers to its transfers, so its excess over the usual step is used instead.
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
    """Return the links of an incident."""
    base = config.external_url.rstrip("/")
    return IncidentLinks(
        incident=f"{base}/incidents/{quote(incident.id, safe='')}" if base else "",
        dashboard=dashboard_url(incident, config),
        runbook=runbook_url(incident, config),
    )
