"""What a rank tracks before its first capture request: the rate of its ends, and the number of the last request."""

from collections import deque
from typing import Any

PACE_SAMPLES = 16
_REQUEST_MAX = (1 << 63) - 1

Ends = tuple[int, int, int]
"""Counts of ends of backwards, optimizers and named steps."""


class EndPace:
    """Recent times at which the counts of ends changed."""

    def __init__(self, now_ns: int) -> None:
        self._samples: deque[tuple[int, Ends]] = deque([(now_ns, (0, 0, 0))], maxlen=PACE_SAMPLES)

    def note(self, now_ns: int, ends: Ends) -> None:
        """Record the counts if they have changed."""
        if ends != self._samples[-1][1]:
            self._samples.append((now_ns, ends))

    def step_ns(self, kind: int, ends_per_step: int, ends: int, now_ns: int) -> int:
        """Return the recent mean length of a step; `ends` is the present count of that kind."""
        before = [(at_ns, counts[kind]) for at_ns, counts in self._samples if ends - counts[kind] >= ends_per_step]
        at_ns, count = before[-1] if before else (self._samples[0][0], 0)
        return (now_ns - at_ns) * ends_per_step // max(ends - count, 1)


def request_number(value: Any) -> int:
    """Return the number of the request in a control block, even if the request is otherwise invalid; 0 without one."""
    request = value.get("request_id") if isinstance(value, dict) else None
    return request if type(request) is int and 0 < request <= _REQUEST_MAX else 0
