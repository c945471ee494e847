"""CUDA graphs of the process: which are being captured, and which collectives those captured hold.

While a graph is captured, in whatever thread, the agent asks the device nothing and queues no event. An event on a
stream that takes part would become part of the graph. In the mode that torch captures in unless asked otherwise
("global"), a question from any thread of the process makes the capture fail (CUDA Runtime API, stream capture modes).

A replay carries out what was captured without dispatching anything, so no hook sees its collectives wait.
"""

from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary, finalize

Traffic = tuple[int, int, int]
"""(count, payload bytes, bus bytes) of collectives of one domain."""


class _Capture:
    """One under way: the thread that began it, and what was dispatched in it."""

    def __init__(self) -> None:
        self.thread = get_ident()
        self.traffic: dict[int, Traffic] = {}


class Graphs:
    """Any thread may call; each store is a single one, atomic under the GIL."""

    def __init__(self) -> None:
        self.captures: dict[int, _Capture] = {}
        """Captures under way, by the id of their graph."""
        self._traffic: WeakKeyDictionary[Any, dict[int, Traffic] | None] = WeakKeyDictionary()

    def begin(self, graph: Any) -> None:
        """Note that the calling thread captures `graph` from now on."""
        self.captures[id(graph)] = _Capture()
        finalize(graph, self.captures.pop, id(graph), None).atexit = False

    def end(self, graph: Any, training_thread: int) -> None:
        """Note that its capture has ended; no hook saw what threads other than the training thread dispatched in it."""
        capture = self.captures.pop(id(graph), None)
        if capture is not None:
            is_seen = training_thread in (0, capture.thread)  # 0: the first collective would have begun the recording
            self._traffic[graph] = capture.traffic if is_seen else None

    def dispatched(self, domain: int, payload_bytes: int, bus_bytes: int, training_thread: int) -> None:
        """Note a collective of the training thread, which its capture holds if it has one under way.

        `domain` is an index in DOMAIN_KINDS.
        """
        for capture in list(self.captures.values()):
            if capture.thread == training_thread:
                count, payload, bus = capture.traffic.get(domain, (0, 0, 0))
                capture.traffic[domain] = (count + 1, payload + payload_bytes, bus + bus_bytes)

    def traffic(self, graph: Any) -> dict[int, Traffic] | None:
        """Return what one replay of `graph` carries out, by domain; None if that is unknown."""
        return self._traffic.get(graph)


GRAPHS = Graphs()
"""The process's own: a capture concerns all of its threads."""
