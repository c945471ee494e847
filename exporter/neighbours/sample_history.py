"""Stores the needed series of one page, another exporter's or the Inspector's, for a few minutes. Pure.

All series of the page share its times; values are arrays of doubles, NaN where a series had no sample. 2,000 series
over 30 minutes take 2 MB.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from threading import Lock
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from lockstep.contracts.neighbour_series import NEIGHBOUR_METRICS, ONLY_WITH

SERIES_MAX = 2_000
"""Series of one page; node_exporter on 192 cores with eight ports has 300 of those that are needed."""
_LABELS_MAX, _TEXT_MAX = 32, 256

Labels = tuple[tuple[str, str], ...]


class SampleHistory:
    """Samples of one address; `instance` is the default of that label. Thread-safe."""

    def __init__(self, instance: str, *, samples_max: int) -> None:
        self._instance = instance
        self._lock = Lock()
        self._samples_max = samples_max
        self._times_s: array[float] = array("d")
        self._values: dict[Labels, array[float]] = {}

    @property
    def series_count(self) -> int:
        """How many series are kept."""
        return len(self._values)

    def add(self, text: str, unix_s: float) -> tuple[int, int]:
        """Add a page read at a given time; return the numbers of malformed needed lines, and of series too many.

        A time that is not later than the last one adds nothing, because clocks can be set back.
        """
        found, malformed = parse_page(text, self._instance)
        omitted = self.add_samples(found, unix_s)
        return (0, 0) if omitted is None else (malformed, omitted)

    def add_samples(self, found: Mapping[Labels, float], unix_s: float) -> int | None:
        """Add samples read at a given time; return how many series were too many, None if no later than the last."""
        with self._lock:
            if self._times_s and unix_s <= self._times_s[-1]:
                return None
            return self._append(found, unix_s)

    def _append(self, found: Mapping[Labels, float], unix_s: float) -> int:
        self._times_s.append(unix_s)
        omitted = 0
        for labels, value in found.items():
            known = self._values.get(labels)
            if known is None:
                if len(self._values) >= SERIES_MAX:
                    omitted += 1
                    continue
                known = self._values[labels] = array("d", [math.nan] * (len(self._times_s) - 1))
            known.append(value)
        self._trim()
        return omitted

    def _trim(self) -> None:
        too_many = max(0, len(self._times_s) - self._samples_max)
        del self._times_s[:too_many]
        count = len(self._times_s)
        for labels, values in list(self._values.items()):
            if len(values) < count + too_many:
                values.append(math.nan)
            del values[:too_many]
            if all(math.isnan(value) for value in values):
                del self._values[labels]

    def between(self, start_s: float, end_s: float) -> dict[str, Any]:
        """Return times and series from `start_s` to `end_s`, ready for JSON; null marks a missing sample."""
        with self._lock:
            first, end = bisect_left(self._times_s, start_s), bisect_right(self._times_s, end_s)
            times_s = list(self._times_s[first:end])
            kept = [(labels, values[first:end]) for labels, values in self._values.items()]
        series = ((labels, [value if math.isfinite(value) else None for value in values]) for labels, values in kept)
        return {
            "times_s": times_s,
            "series": [
                {"labels": dict(labels), "values": values}
                for labels, values in series
                if any(value is not None for value in values)
            ],
        }


def parse_page(text: str, instance: str) -> tuple[dict[Labels, float], int]:
    """Parse a page in Prometheus' text format; return the needed series, and how many of their lines are malformed."""
    found: dict[Labels, float] = {}
    malformed = 0
    for line in text.splitlines():
        name = line.partition("{")[0].split(" ", 1)[0]
        if name not in NEIGHBOUR_METRICS:
            continue
        only = ONLY_WITH.get(name)
        if only is not None and f'{only[0]}="{only[1]}"' not in line:
            continue
        try:
            [family] = text_string_to_metric_families(line + "\n")
            [sample] = family.samples
        except (ValueError, KeyError, IndexError):
            malformed += 1
            continue
        labels = {"instance": instance} | sample.labels | {"__name__": name}
        if len(labels) > _LABELS_MAX or any(len(part) > _TEXT_MAX for pair in labels.items() for part in pair):
            malformed += 1
        elif math.isfinite(sample.value):
            found[tuple(sorted(labels.items()))] = sample.value
    return found, malformed
