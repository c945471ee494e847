"""Cause to remedy for incidents: the rows of `remedies.toml` that name an incident's cause, in PyTorch's terms.

New matches are new rows of that file; `advice.py` only picks and orders them.
"""

from dataclasses import dataclass

from lockstep.diagnosis.remedies import EXCESS, EXPLAINED, PYTORCH, REST, UNKNOWN, table

__all__ = ["EXCESS", "EXPLAINED", "REMEDIES", "REST", "UNKNOWN", "Remedy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One row: what to do, for which cause and call path.

    It applies where `cause` is the cause and, if given, `when` is part of a name on the path and `unless` of none.
    `suggestion` may hold `{function}` and `{operator}`.
    """

    cause: str
    suggestion: str
    how: str
    removes: str
    source: str
    when: str = ""
    unless: str = ""


REMEDIES: tuple[Remedy, ...] = tuple(
    Remedy(
        cause=incident,
        suggestion=row.suggestion,
        how=row.how_in(PYTORCH),
        removes=row.removes,
        source=row.source,
        when=row.when,
        unless=row.unless,
    )
    for row in table().remedies
    for incident in row.incidents
)
