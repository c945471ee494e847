"""The form of an answer."""

from dataclasses import dataclass

OK, WARN, FAIL, UNKNOWN = ("ok", "warn", "fail", "unknown")
"""WARN costs time or may cost it; FAIL stops jobs or makes their results wrong; UNKNOWN could not be read here."""

ORDER = (FAIL, WARN, UNKNOWN, OK)
"""Worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of a check: what was found, why it matters (`source`), and what to do about it (empty if nothing)."""

    name: str
    verdict: str
    found: str
    advice: str = ""
    source: str = ""
