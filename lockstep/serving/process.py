"""What a service's own process takes: the `process_*` families that every client library of Prometheus has.

Read now and then by the service itself, never in a scrape: a page is made of what is in memory.
"""

from functools import cached_property

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import Metric as Family

ProcessFamilies = tuple[Family, ...]
"""CPU seconds, bytes, Unix seconds and descriptors; read once and not changed after."""


class OwnProcess:
    """Reads this process from /proc, three small files and the list of its descriptors."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc

    @cached_property
    def _collector(self) -> ProcessCollector:
        return ProcessCollector(proc=self._proc, registry=None)  # reads the time of boot

    def read(self) -> ProcessFamilies:
        """Return the families as they are now; what cannot be read is left out. Blocking, for some ten microseconds."""
        return tuple(self._collector.collect())
