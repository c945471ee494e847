"""How an exception ended a process, as stored in the ring's ending (`ring.ENDING_OFFSET`, JSON)."""

from dataclasses import dataclass, fields
from typing import Any

from lockstep.contracts.bounds import MonotonicNs, Name, unannotated, violation
from lockstep.contracts.errors import MalformedError


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedEnding:
    """The exception that ended a process: its type, the innermost frame of the training's own code, and the time."""

    exception: Name
    frame: Name
    monotonic_ns: MonotonicNs


def raised_from_json(value: Any, *, where: str) -> RaisedEnding:
    """Return the ending in a blob, with every field checked.

    Raises
    ------
    MalformedError
        A field is missing, unknown, of the wrong type or out of bounds.
    """
    names = [field.name for field in fields(RaisedEnding)]
    if not isinstance(value, dict) or sorted(value) != sorted(names):
        raise MalformedError("ending", where=where, got=repr(value)[:200], expected=f"an object of {', '.join(names)}")
    for field in fields(RaisedEnding):
        content, kind = value[field.name], unannotated(field.type)[0]
        expected = violation(content, field.type) if type(content) is kind else kind.__name__
        if expected:
            raise MalformedError(f"ending's {field.name}", where=where, got=repr(content)[:200], expected=expected)
    return RaisedEnding(**value)
