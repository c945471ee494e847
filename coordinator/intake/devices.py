"""The UUIDs of devices, as announced by nodes. In-memory state, bounded by the known runs and their nodes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.contracts.messages import NodeAnnouncement


class DeviceTable:
    """UUIDs by run, node and rank; only of nodes for which `is_known(run, node)` is true.

    An entry may be of a rank that has moved to another node: the caller must check that the node still owns the rank.
    """

    def __init__(self, is_known: Callable[[str, str], bool]) -> None:
        self._is_known = is_known
        self._uuids: dict[tuple[str, str], dict[int, str]] = {}

    def __len__(self) -> int:
        return len(self._uuids)

    def note(self, announcement: "NodeAnnouncement") -> None:
        """Replace the UUIDs that a node announced for a run; call it after the run has accepted the announcement."""
        run, node = announcement.run, announcement.node
        if self._is_known(run, node):
            uuids = {info.rank: info.facts.device_uuid for info in announcement.ranks if info.facts}
            self._uuids[run, node] = {rank: uuid for rank, uuid in uuids.items() if uuid}

    def trim(self) -> None:
        """Drop the entries of runs and nodes that are no longer known."""
        self._uuids = {key: uuids for key, uuids in self._uuids.items() if self._is_known(*key)}

    def uuid(self, run: str, node: str, rank: int) -> str:
        """Return the UUID of a rank's device; empty if unknown."""
        return self._uuids.get((run, node), {}).get(rank, "")
