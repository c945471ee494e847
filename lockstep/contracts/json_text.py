"""Parses JSON objects in other services' responses: a proxy or a login page may answer in their place."""

import json
from typing import Any

from lockstep.contracts.errors import MalformedError

_SHOWN_BYTES = 50


def answered_object(body: bytes, *, where: str, expected: str) -> dict[str, Any]:
    """Return the JSON object in a response; `where` is its address, `expected` what should be there.

    Raises
    ------
    MalformedError
        It is not JSON, or not an object; the message quotes its beginning.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        got = repr(body[:_SHOWN_BYTES].decode(errors="replace"))
        raise MalformedError("answer", where=where, got=got, expected=expected)
    return answer
