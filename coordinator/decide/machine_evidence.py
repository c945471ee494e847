"""Evidence from other exporters' series about an incident's machines.

Values only; `coordinator/evidence` makes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineDeviation:
    """One query in which suspects differ from their peers and from their own past before the onset.

    `name` is that of the query, `cause` what it is evidence of, `ranks` the suspects that show it. The four figures are
    medians in `unit`: over those suspects and over the peers, before and after the onset; None if no series had one.
    `text` states them, `meaning` explains what the series measures, `link` leads to its graph.
    """

    name: str
    cause: str
    title: str
    ranks: tuple[int, ...]
    unit: str
    suspects_before: float | None
    suspects_after: float
    peers_before: float | None
    peers_after: float
    text: str
    meaning: str
    advice: str
    source: str
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineEvidence:
    """The result of one reading: deviations, the most specific first, and a `note` on what was compared.

    `is_complete`: every query that was sent returned a usable result.
    """

    read_unix_ns: int
    note: str
    is_complete: bool
    deviations: tuple[MachineDeviation, ...] = ()


def machine_evidence_from_json(value: Mapping[str, Any]) -> MachineEvidence:
    """Return the evidence of the JSON form that `dataclasses.asdict` makes.

    Raises
    ------
    KeyError, TypeError
        The value has another form.
    """
    known = {item.name: value[item.name] for item in fields(MachineEvidence)}
    found = (MachineDeviation(**{**each, "ranks": tuple(each["ranks"])}) for each in value["deviations"])
    return MachineEvidence(**{**known, "deviations": tuple(found)})


def newer_of(known: MachineEvidence | None, read: MachineEvidence) -> MachineEvidence:
    """Return the evidence that an incident keeps after another reading: a failed one replaces no deviations."""
    if known is not None and known.deviations and not read.is_complete and not read.deviations:
        return known
    return read
