"""The peak FLOP/s of a run's devices, as announced by its nodes. In-memory state, bounded by the run's nodes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.contracts.messages import NodeAnnouncement


class DevicePeaks:
    """Sums by node: each announcement of a node replaces its previous one."""

    def __init__(self) -> None:
        self._of_node: dict[str, tuple[float, int]] = {}

    def note(self, announcement: "NodeAnnouncement") -> None:
        """Apply an announcement that the run has accepted."""
        facts = (info.facts for info in announcement.ranks)
        peaks = [each.peak_flops_per_second for each in facts if each is not None and each.peak_flops_per_second]
        if peaks:
            self._of_node[announcement.node] = (sum(peaks), len(peaks))
        else:
            self._of_node.pop(announcement.node, None)

    def mean_flops_per_second(self) -> float | None:
        """Return the mean over the ranks whose device has a known peak; None if there is no such rank."""
        ranks = sum(count for _, count in self._of_node.values())
        return sum(peak for peak, _ in self._of_node.values()) / ranks if ranks else None
