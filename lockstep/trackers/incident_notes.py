"""Incidents as the coordinator lists them and as trackers show them. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.contracts.errors import MalformedError

_RANKS_LISTED_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentNote:
    """An incident as a tracker shows it. `host` is empty if it concerns no host, `function` before a capture named it.

    `lost_device_seconds` grows while it is open; `link` leads to its report.
    """

    id: str
    state: str
    kind: str
    cause: str
    ranks: tuple[int, ...]
    host: str
    onset_step: int | None
    opened_unix_s: float
    closed_unix_s: float | None
    slowdown_ratio: float
    lost_device_seconds: float
    function: str
    link: str

    @property
    def revision(self) -> str:
        """Identifies the reported state: a new revision is worth an event. The lost time is not part of it."""
        return f"{self.state}|{self.kind}|{self.cause}|{self.ranks_text}|{self.function}"

    @property
    def ranks_text(self) -> str:
        """Return the first ranks, and how many more there are."""
        text = ",".join(map(str, self.ranks[:_RANKS_LISTED_MAX]))
        more = len(self.ranks) - _RANKS_LISTED_MAX
        return f"{text} and {more} more" if more > 0 else text

    @property
    def title(self) -> str:
        """Return one line: what, who, where, since when."""
        where = f" on {self.host}" if self.host else ""
        who = f" of rank {self.ranks_text}" if self.ranks else ""
        since = "" if self.onset_step is None else f", from step {self.onset_step}"
        return f"{self.kind.replace('_', ' ')}{who}{where}: {self.cause}{since}, {self.state}"

    def row(self) -> dict[str, Any]:
        """Return the columns of a table of incidents."""
        return {
            "id": self.id,
            "state": self.state,
            "kind": self.kind,
            "cause": self.cause,
            "ranks": self.ranks_text,
            "host": self.host,
            "onset_step": self.onset_step,
            "slowdown_ratio": self.slowdown_ratio,
            "lost_device_seconds": self.lost_device_seconds,
            "function": self.function,
            "link": self.link,
        }


def parse_incidents(answer: Mapping[str, Any], *, base_url: str, where: str) -> list[IncidentNote]:
    """Parse the incidents of `/api/v1/incidents`, oldest first; their links begin with `base_url`.

    Raises
    ------
    MalformedError
        The response has an unexpected form.
    """
    try:
        return [_incident(each, base_url.rstrip("/")) for each in answer["incidents"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        expected = "incidents of a coordinator of this version"
        raise MalformedError("incidents", where=where, got=repr(error), expected=expected) from error


def _incident(each: Mapping[str, Any], base_url: str) -> IncidentNote:
    closed_ns = each["closed_unix_ns"]
    return IncidentNote(
        id=str(each["id"]),
        state=str(each["state"]),
        kind=str(each["kind"]),
        cause=str(each["cause"]),
        ranks=tuple(map(int, each["ranks"])),
        host=str(each.get("host", "")),
        onset_step=None if each["onset_step"] is None else int(each["onset_step"]),
        opened_unix_s=int(each["opened_unix_ns"]) * 1e-9,
        closed_unix_s=None if closed_ns is None else int(closed_ns) * 1e-9,
        slowdown_ratio=_finite_or_zero(each["slowdown_ratio"]),
        lost_device_seconds=_finite_or_zero(each["lost_device_seconds"]),
        function=str(each["function"]),
        link=f"{base_url}/incidents/{each['id']}",
    )


def _finite_or_zero(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
