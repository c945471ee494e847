"""The history of subjects that incidents named: how often, for which causes, in which runs. Pure; calls carry the time.

Bounded: sightings older than `KEPT_S` are dropped, as are the oldest beyond `SIGHTINGS_MAX` of a subject, and the
subjects named longest ago beyond `SUBJECTS_MAX`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

NODE, DEVICE, LINK = SUBJECT_KINDS = ("node", "device", "link")
RECENT_DAYS = 14
RECENT_S = RECENT_DAYS * 86_400.0
KEPT_S = 90 * 86_400.0
SUBJECTS_MAX, SIGHTINGS_MAX = 1024, 32
_RUNS_NAMED = 4


class Subject(NamedTuple):
    """A node (its exporter's name), a device (its UUID), or a link (the names of the two nodes that it connects)."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """An incident that named a subject. Kind and cause are those of the incident's latest form."""

    subject: Subject
    incident_id: str
    run: str
    incident_kind: str
    cause: str
    opened_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectRecord:
    """A subject with its sightings, the newest first, and the number of recent ones."""

    subject: Subject
    sightings: tuple[Sighting, ...]
    recent: int

    @property
    def runs(self) -> tuple[str, ...]:
        """The runs in which it was named, the newest first."""
        return tuple(dict.fromkeys(each.run for each in self.sightings))


class FleetHistory:
    """Sightings by subject. Invariant: one sighting for each subject and incident."""

    def __init__(self, sightings: Iterable[Sighting] = (), now_s: float = 0.0) -> None:
        self._of: dict[Subject, dict[str, Sighting]] = {}
        for sighting in sorted(sightings, key=lambda each: each.opened_unix_s):
            self.add(sighting)
        self.trim(now_s)

    def add(self, sighting: Sighting) -> None:
        """Add a sighting, or replace that of the same incident."""
        own = self._of.setdefault(sighting.subject, {})
        own[sighting.incident_id] = sighting
        if len(own) > SIGHTINGS_MAX:
            del own[min(own, key=lambda name: (own[name].opened_unix_s, name))]

    def trim(self, now_s: float) -> None:
        """Drop old sightings and surplus subjects."""
        for subject in list(self._of):
            own = {name: each for name, each in self._of[subject].items() if now_s - each.opened_unix_s <= KEPT_S}
            if own:
                self._of[subject] = own
            else:
                del self._of[subject]
        if len(self._of) > SUBJECTS_MAX:
            newest = sorted(self._of, key=lambda subject: -_last_s(self._of[subject].values()))
            self._of = {subject: self._of[subject] for subject in newest[:SUBJECTS_MAX]}

    def earlier(self, subject: Subject, incident_id: str, opened_unix_s: float) -> list[Sighting]:
        """Return the sightings of a subject in the `RECENT_S` before an incident, the newest first."""
        own = self._of.get(subject, {}).values()
        since_s = opened_unix_s - RECENT_S
        found = [
            each for each in own if each.incident_id != incident_id and since_s <= each.opened_unix_s <= opened_unix_s
        ]
        return sorted(found, key=lambda each: -each.opened_unix_s)

    def records(self, now_s: float) -> list[SubjectRecord]:
        """Return all subjects, ordered by the number of recent sightings, then by the latest sighting."""
        made = [
            SubjectRecord(
                subject=subject,
                sightings=tuple(sorted(own.values(), key=lambda each: -each.opened_unix_s)),
                recent=sum(now_s - each.opened_unix_s <= RECENT_S for each in own.values()),
            )
            for subject, own in self._of.items()
        ]
        return sorted(made, key=lambda record: (-record.recent, -record.sightings[0].opened_unix_s, record.subject))


def _last_s(sightings: Iterable[Sighting]) -> float:
    return max(each.opened_unix_s for each in sightings)


def history_line(subject: Subject, run: str, earlier: Sequence[Sighting]) -> str:
    """Return the evidence line for a subject that earlier incidents named."""
    others = list(dict.fromkeys(each.run for each in earlier if each.run != run))
    causes = Counter(f"{each.incident_kind.replace('_', ' ')} by {each.cause.replace('_', ' ')}" for each in earlier)
    times = ", ".join(f"{count} x {what}" if count > 1 else what for what, count in causes.most_common())
    runs = f"in {len(others)} other {'run' if len(others) == 1 else 'runs'} ({_listed(others)})"
    named = f"named for the {_ordinal(len(earlier) + 1)} time in {RECENT_DAYS} days"
    return f"{subject.kind} {subject.name} is {named}, {runs if others else 'in this run'}: {times}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_RUNS_NAMED]) + (" and others" if len(names) > _RUNS_NAMED else "")


def _ordinal(number: int) -> str:
    teens = 10 <= number % 100 <= 20  # noqa: PLR2004  (eleventh, twelfth, ...)
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
