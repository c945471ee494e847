"""Users of a node as this process sees them: inside a user namespace numbers of users differ from the node's."""

from pathlib import Path

ROOT_UID = 0
EXPORTER_UID_VARIABLE = "LOCKSTEP_EXPORTER_UID"
"""Number of the user that the node's exporter runs as, where that is neither root nor the user who trains."""

_UID_MAP = Path("/proc/self/uid_map")
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


def visible_uid(uid: int, *, uid_map: Path = _UID_MAP, overflow_uid: Path = _OVERFLOW_UID) -> int:
    """Return the number under which this process sees user `uid` of the node.

    A user that the process's user namespace does not map is seen as the kernel's overflow uid, with all others of that
    kind. Without a /proc there is no namespace to know of, and the number is the node's.
    """
    try:
        for line in uid_map.read_text().splitlines():
            inside, outside, count = map(int, line.split())
            if outside <= uid < outside + count:
                return inside + uid - outside
        return int(overflow_uid.read_text())
    except (OSError, ValueError):
        return uid
