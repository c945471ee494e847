"""Converts columns of 64-bit values to consecutive records and back, the format of step batches.

Consecutive records need no joining: the bytes of many nodes, concatenated, are one table. Values are moved but never
interpreted, so byte order does not matter here.
"""

from array import array
from collections.abc import Mapping
from functools import lru_cache

SEPARATOR = ","
RANK = "rank"
VALUE_BYTES = 8
_LAYOUTS_KEPT = 256  # a job's nodes send a handful; each is below LAYOUT_MAX_BYTES


@lru_cache(_LAYOUTS_KEPT)
def names_of(layout: str) -> tuple[str, ...]:
    """Return the names of a record's values in order."""
    return tuple(layout.split(SEPARATOR))


def join_columns(columns: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Return layout and records of columns of equal length, with 8 bytes per record each.

    Raises
    ------
    ValueError
        They differ in length.
    """
    width = len(columns)
    length = len(next(iter(columns.values()), b"")) // VALUE_BYTES
    joined = array("q", bytes(VALUE_BYTES * width * length))
    for place, values in enumerate(columns.values()):
        joined[place::width] = array("q", values)  # of another length: ValueError
    return SEPARATOR.join(columns), joined.tobytes()


def split_columns(layout: str, records: bytes) -> dict[str, bytes]:
    """Return the columns of records by name, `rank` among them."""
    names, joined = names_of(layout), array("q", records)
    return {name: joined[place :: len(names)].tobytes() for place, name in enumerate(names)}
