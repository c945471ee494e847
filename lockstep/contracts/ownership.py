"""Node users as this process sees them: inside a user namespace, uids differ from the node's."""

from pathlib import Path

ROOT_UID = 0
EXPORTER_UID_VARIABLE = "LOCKSTEP_EXPORTER_UID"
"""Uid of the node's exporter, if it is neither root nor the user who trains."""

UID_MAX = (1 << 32) - 2
"""The kernel's uid_t has 32 bits; the highest value means no user."""

_UID_MAP = Path("/proc/self/uid_map")
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


def visible_uid(uid: int, *, uid_map: Path = _UID_MAP, overflow_uid: Path = _OVERFLOW_UID) -> int:
    """Return the uid under which this process sees user `uid` of the node.

    A user that the process's user namespace does not map appears as the kernel's overflow uid, like all other unmapped
    users. Without /proc no namespace can be known, and the node's uid is returned.
    """
    try:
        for line in uid_map.read_text().splitlines():
            inside, outside, count = map(int, line.split())
            if outside <= uid < outside + count:
                return inside + uid - outside
        return int(overflow_uid.read_text())
    except (OSError, ValueError):
        return uid
