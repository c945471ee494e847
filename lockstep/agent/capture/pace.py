"""What a rank knows of its captures before the first order: how fast its ends come, and whose request it was given."""

from collections import deque
from typing import Any

PACE_SAMPLES = 16
_REQUEST_MAX = (1 << 63) - 1

Ends = tuple[int, int, int]
"""How many ends of backwards, of optimizers and of named steps were counted."""


class EndPace:
    """When how many ends of each kind had been counted, lately."""

    def __init__(self, now_ns: int) -> None:
        self._samples: deque[tuple[int, Ends]] = deque([(now_ns, (0, 0, 0))], maxlen=PACE_SAMPLES)

    def note(self, now_ns: int, ends: Ends) -> None:
        """Note the counts if they have changed."""
        if ends != self._samples[-1][1]:
            self._samples.append((now_ns, ends))

    def step_ns(self, kind: int, ends_per_step: int, ends: int, now_ns: int) -> int:
        """Return how long a step took lately, on average; `ends` of that kind are counted now."""
        before = [(at_ns, counts[kind]) for at_ns, counts in self._samples if ends - counts[kind] >= ends_per_step]
        at_ns, count = before[-1] if before else (self._samples[0][0], 0)
        return (now_ns - at_ns) * ends_per_step // max(ends - count, 1)


def request_number(value: Any) -> int:
    """Return the number of the request in a control block, even of an order that is otherwise wrong; 0 without one."""
    request = value.get("request_id") if isinstance(value, dict) else None
    return request if type(request) is int and 0 < request <= _REQUEST_MAX else 0
