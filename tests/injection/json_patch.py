"""The one operation of RFC 6902 that webhook and policy use, applied as the API server does."""

import json


def apply_patch(document, operations):
    """Return `document` with each member added or replaced; a parent that is not there is an error.

    A list gets an element before the given index, or at its end for `-` (RFC 6902, 4.1).
    """
    result = json.loads(json.dumps(document))  # no list is shared
    for operation in operations:
        assert operation["op"] == "add"
        *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        at = result
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        value = json.loads(json.dumps(operation["value"]))
        if isinstance(at, list):
            index = len(at) if last == "-" else int(last)
            assert index <= len(at), operation["path"]
            at.insert(index, value)
        else:
            at[last] = value
    return result
