"""The one operation of RFC 6902 that the webhook uses, applied as the API server does."""

import copy
import json


def apply_patch(document, operations):
    """Return `document` with each member added or replaced; a parent that is not there is an error."""
    result = copy.deepcopy(document)
    for operation in operations:
        assert operation["op"] == "add"
        *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        at = result
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        assert isinstance(at, dict), operation["path"]
        at[last] = json.loads(json.dumps(operation["value"]))
    return result
