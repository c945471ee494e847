"""The dump of torch's Flight Recorder that a rank's process has left as a file, read with its stacks.

The training names the file in its environment (TORCH_FR_DUMP_TEMP_FILE, before torch 2.9
TORCH_NCCL_DEBUG_INFO_TEMP_FILE), and its rings name it to us: only a regular file of the ring's owner is opened. torch
writes it when a collective of NCCL times out, or when it is asked to.
"""

import os
import stat

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import ISSUED_MAX
from lockstep.contracts.messages import RecordedCollective
from lockstep.trace.flight_recorder import DUMP_MAX_BYTES, FlightEntry, last_of_groups, parse_dump

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_OF_GROUP = 4  # collectives of each group: what ranks are in, and what led there


def read_flight_dump(prefix: str, rank: int, *, owner_uid: int, since_unix_ns: int) -> list[RecordedCollective]:
    """Return what the dump of a rank holds of each group's last collectives; empty where there is none of its attempt.

    `prefix` is the beginning of the file's path, empty for none; `since_unix_ns` is when the attempt began.

    Raises
    ------
    MalformedError
        The file is another user's, no regular file, or no dump.
    OSError
        It cannot be read.
    """
    if not prefix.startswith("/"):
        return []
    path = f"{prefix}{rank}"
    try:
        file = os.open(path, _FLAGS)
    except FileNotFoundError:
        return []
    with os.fdopen(file, "rb") as dump:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != owner_uid:
            got = stat.filemode(status.st_mode), status.st_uid
            raise MalformedError("flight recorder", where=path, got=got, expected=f"a file of uid {owner_uid}")
        if status.st_mtime_ns < since_unix_ns:
            return []
        entries = parse_dump(dump.read(DUMP_MAX_BYTES + 1), where=path)
    found = last_of_groups(entries, groups=ISSUED_MAX // _OF_GROUP, each=_OF_GROUP)
    return [_issued(entry) for entry in found if entry.sequence >= 0]


def _issued(entry: FlightEntry) -> RecordedCollective:
    return RecordedCollective(
        group=entry.group,
        description=entry.description,
        sequence=entry.sequence,
        operation=entry.operation,
        tensors=entry.tensors,
        state="completed" if entry.is_retired else entry.state,
    )


def issued_bytes(issued: list[RecordedCollective]) -> int:
    """Return how much of a message these take at most."""
    return sum(_SPARE_BYTES + len(each.group + each.description + each.operation + each.tensors) for each in issued)


_SPARE_BYTES = 96
"""Of one on the wire, without its texts: names of fields, state, sequence."""
