"""The text of the latest snapshot, rendered once and shared by all scrapes of one tick."""

from exporter.exposing.collector import NodeCollector
from exporter.exposing.snapshot import NodeSnapshot
from lockstep.contracts.metric import Level
from lockstep.serving.exposition import Form, render


class ExpositionCache:
    """Renders the latest snapshot that it was given, once per format.

    Called from worker threads. Two of them may render the same text at once, which only costs time.
    """

    def __init__(self, level: Level = "full") -> None:
        self._level = level
        self._rendered: dict[Form, tuple[NodeSnapshot, bytes]] = {}

    def text(self, snapshot: NodeSnapshot, form: Form) -> bytes:
        """Return the exposition of `snapshot`."""
        last = self._rendered.get(form)
        if last is None or last[0] is not snapshot:
            last = (snapshot, render(NodeCollector(snapshot, level=self._level), form))
            self._rendered[form] = last
        return last[1]
