"""What other exporters' series show of an incident's machines. Values only; `coordinator/evidence` makes them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineDeviation:
    """One query in which suspects differ from their peers and from themselves before the onset.

    `name` is the query's, `cause` what it is evidence of, `ranks` the suspects that show it. The four figures are
    medians in `unit`: of those suspects and of the peers, before and after the onset; None where no series had one.
    `text` states them, `meaning` what the series measures, `link` leads to its graph.
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
    """The result of one reading: deviations, the most specific first, and `note`, which states what was compared.

    `is_complete`: every query that was sent got an answer that could be used.
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
        It is no such form.
    """
    known = {item.name: value[item.name] for item in fields(MachineEvidence)}
    found = (MachineDeviation(**{**each, "ranks": tuple(each["ranks"])}) for each in value["deviations"])
    return MachineEvidence(**{**known, "deviations": tuple(found)})


def newer_of(known: MachineEvidence | None, read: MachineEvidence) -> MachineEvidence:
    """Return what an incident keeps after another reading: a failed one replaces no deviations."""
    if known is not None and known.deviations and not read.is_complete and not read.deviations:
        return known
    return read
