"""JSON objects in the answers of other services, checked: a proxy or a login page may answer in their place."""

import json
from typing import Any

from lockstep.contracts.errors import MalformedError

_SHOWN_BYTES = 50


def answered_object(body: bytes, *, where: str, expected: str) -> dict[str, Any]:
    """Return the JSON object that an answer holds; `where` is its address, `expected` what should be there.

    Raises
    ------
    MalformedError
        It is no JSON, or no object; the message has how it begins.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        got = repr(body[:_SHOWN_BYTES].decode(errors="replace"))
        raise MalformedError("answer", where=where, got=got, expected=expected)
    return answer
