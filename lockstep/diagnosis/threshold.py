"""A limit of a rule as data: its value, its unit and its source."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Threshold:
    """`value` in `unit` (ratio, ns, bytes, count, ...); `source` names paper and place, peer, or measurement."""

    value: float
    unit: str
    source: str
