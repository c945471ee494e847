"""Maps incident causes to remedies: the rows of `remedies.toml` that name the cause, in PyTorch's terms.

To add a remedy, add a row to that file; `advice.py` only selects and orders them.
"""

from dataclasses import dataclass

from lockstep.diagnosis.remedies import EXCESS, EXPLAINED, PYTORCH, REST, UNKNOWN, table

__all__ = ["EXCESS", "EXPLAINED", "REMEDIES", "REST", "UNKNOWN", "Remedy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One row: a remedy, and the cause and call path to which it applies.

    It applies to `cause` if `when`, where given, is part of a name on the path and `unless` is part of none.
    `suggestion` may contain `{function}` and `{operator}`.
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
