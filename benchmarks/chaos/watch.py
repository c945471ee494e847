"""Scrapes every service once a second, through all its deaths, and notes counters that fall."""

import threading
from typing import TYPE_CHECKING, Self

from benchmarks.services import Samples, Service, total

if TYPE_CHECKING:
    from collections.abc import Iterable

_EVERY_S = 1.0
_COUNTERS = ("_total{", "_bucket{", "_count{", "_sum{")


class Lifetimes:
    """What one service has exported, process after process. Used under the watch's lock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.falls: list[str] = []
        self._start = 0
        self._last: Samples = {}
        self._ended: Samples = {}

    def take(self, start: int, samples: Samples) -> None:
        """Take a page of the process that was started as number `start`."""
        counters = {series: value for series, value in samples.items() if any(mark in series for mark in _COUNTERS)}
        if start != self._start:
            self._close()
            self._start = start
        for series, value in counters.items():
            before = self._last.get(series, value)
            if value < before:
                self.falls.append(f"{self.name}: {series} fell from {before:g} to {value:g}")
        self._last |= counters

    def _close(self) -> None:
        for series, value in self._last.items():
            self._ended[series] = self._ended.get(series, 0.0) + value
        self._last = {}

    def total(self, name: str, labels: str = "") -> float:
        """Return the sum of a counter over all processes; what one counted in its last second is not in it."""
        return total(self._ended, name, labels) + total(self._last, name, labels)


class Watch:
    """A context: one thread for each service, so that a suspended one delays no other."""

    def __init__(self, services: "Iterable[Service]") -> None:
        self._services = list(services)
        self._lifetimes = {service.name: Lifetimes(service.name) for service in self._services}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(service,)) for service in self._services]

    def __enter__(self) -> Self:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def falls(self) -> list[str]:
        """Counters that fell within the life of a process."""
        with self._lock:
            return [fall for each in self._lifetimes.values() for fall in each.falls]

    def total(self, name: str, labels: str = "") -> float:
        """Return the sum of a counter over all services and their processes."""
        with self._lock:
            return sum(each.total(name, labels) for each in self._lifetimes.values())

    def _run(self, service: Service) -> None:
        while not self._stop.wait(_EVERY_S):
            start = service.starts
            samples = service.scrape()
            if samples is not None and service.starts == start:
                with self._lock:
                    self._lifetimes[service.name].take(start, samples)
