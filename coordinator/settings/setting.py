"""What an operator may set: the annotation of a policy's field that is a setting.

A field of a policy class without it is a constant of the method, with its reason in a comment.
"""

from dataclasses import dataclass

WEEK_SECONDS = 7 * 86_400.0
DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Setting:
    """Why a setting's default is what it is, its unit, and the least and greatest value, None where it is no number.

    `is_live` is False for what is laid out in memory when a run begins: it cannot be changed while runs go on.
    """

    reason: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    is_live: bool = True
