"""Values shared by many events of a trace, stored once each: names, threads, categories.

Fields are read in comprehensions, here and in `blocks` and `arguments`: half the time of an `attrgetter`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.interned import Codes
from lockstep.trace.kineto import categories


class Kinds:
    """Codes of names, of threads (process and thread id) and of categories, all as the file has them."""

    def __init__(self) -> None:
        self.names = Codes()
        self.threads = Codes()
        self.categories = Codes()

    def names_of(self, events: Sequence[Any]) -> NDArray[np.int32]:
        """Return the codes of events' names, array of shape (n_events,)."""
        return np.fromiter(map(self.names.__getitem__, [event.name for event in events]), np.int32, len(events))

    def threads_of(self, events: Sequence[Any]) -> NDArray[np.int32]:
        """Return the codes of events' threads, array of shape (n_events,)."""
        ids = zip([event.pid for event in events], [event.tid for event in events], strict=True)
        return np.fromiter(map(self.threads.__getitem__, ids), np.int32, len(events))

    def categories_of(self, events: Sequence[Any]) -> NDArray[np.int32]:
        """Return the codes of the categories of events that name theirs, array of shape (n_events,)."""
        return np.fromiter(map(self.categories.__getitem__, [event.cat for event in events]), np.int32, len(events))

    def readings(self, category: NDArray[np.int32]) -> NDArray[np.int8]:
        """Return the `categories.Reading` of events of these categories."""
        readings: NDArray[np.int8] = np.array([_reading(each) for each in self.categories], np.int8)[category]
        return readings


@lru_cache(maxsize=1024)
def _reading(category: str) -> int:
    return categories.reading(categories.today(category))
