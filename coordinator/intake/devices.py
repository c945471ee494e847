"""The UUIDs of devices that nodes announced. State of the coordinator; bounded by what it knows of its runs."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.contracts.messages import NodeAnnouncement


class DeviceTable:
    """UUIDs by run, node and rank. `is_known` is true if a run knows a node: others are not kept.

    A node's ranks count only while they are its own, which the caller has to know.
    """

    def __init__(self, is_known: Callable[[str, str], bool]) -> None:
        self._is_known = is_known
        self._uuids: dict[tuple[str, str], dict[int, str]] = {}

    def __len__(self) -> int:
        return len(self._uuids)

    def note(self, announcement: "NodeAnnouncement") -> None:
        """Replace what a node announced of a run, once the run has taken the announcement."""
        run, node = announcement.run, announcement.node
        if self._is_known(run, node):
            uuids = {info.rank: info.facts.device_uuid for info in announcement.ranks if info.facts}
            self._uuids[run, node] = {rank: uuid for rank, uuid in uuids.items() if uuid}

    def trim(self) -> None:
        """Drop what is of runs and nodes that are not known any more."""
        self._uuids = {key: uuids for key, uuids in self._uuids.items() if self._is_known(*key)}

    def uuid(self, run: str, node: str, rank: int) -> str:
        """Return the UUID of a rank's device, empty where unknown."""
        return self._uuids.get((run, node), {}).get(rank, "")
