"""The resources of a service's own process: the `process_*` families of every Prometheus client library.

The service reads them periodically, never in a scrape, which only renders what is in memory.
"""

from functools import cached_property

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import Metric as Family

ProcessFamilies = tuple[Family, ...]
"""CPU seconds, bytes, Unix seconds and descriptors; immutable once read."""


class OwnProcess:
    """Reads this process from /proc: three small files and the list of its descriptors."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc

    @cached_property
    def _collector(self) -> ProcessCollector:
        return ProcessCollector(proc=self._proc, registry=None)  # reads the time of boot

    def read(self) -> ProcessFamilies:
        """Return the current families, without what cannot be read. Blocking, for some tens of microseconds."""
        return tuple(self._collector.collect())
