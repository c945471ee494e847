"""The form of an answer."""

from dataclasses import dataclass

OK, WARN, FAIL, UNKNOWN = ("ok", "warn", "fail", "unknown")
"""WARN costs time or may cost it; FAIL stops jobs or makes them wrong; UNKNOWN could not be read here."""

ORDER = (FAIL, WARN, UNKNOWN, OK)
"""Worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: what was found, why that matters, and what to do about it (empty where all is well)."""

    name: str
    verdict: str
    found: str
    advice: str = ""
    source: str = ""
