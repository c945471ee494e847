"""Limits how long a capture may last: its memory is known only after the profiler has stopped, so time is used instead.

Measured with torch 2.13 on one core. While it runs, the profiler takes 15 to 900 bytes per event, which predicts
nothing; stopping, writing and freeing then take 1,300 to 1,550 bytes and 8 to 15 us of the training thread per event
(3,700 bytes with shapes or memory). Operators generate up to 400,000 events a second, a loop of small Python calls
1,250,000 with stacks: one second of that costs 2 GB and a stall of 19 s. So a rank's first capture assumes the maximum,
and later ones twice the rate measured before.
"""

from dataclasses import dataclass

from lockstep.contracts.capture import CaptureRequest
from lockstep.contracts.limits import PROFILE_EVENTS_MAX, PROFILE_SECONDS_MAX

STACK_EVENTS_PER_S = 1_250_000
EVENTS_PER_S = 400_000
EVENT_BYTES = 1_550
FULL_EVENT_BYTES = 3_700
FREE_MARGIN_BYTES = 256 << 20
"""Left to training: what its own steps may still allocate."""
RATE_MARGIN = 2.0
SLOWDOWN_MAX = 10
"""Stacks slow a loop of small Python calls 16 times and a usual step 1.3 times: 10 is no usual step any more."""
SLOWDOWN_FLOOR_NS = 1_000_000_000  # short steps may wait for a peer's profiler to start
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one capture.

    `step_ns` is the length of the last step before it; `events_per_s` is the assumed rate.
    """

    steps: int
    step_ns: int
    events_per_s: float
    event_bytes: int

    def obstacle(self, available_bytes: int | None) -> str:
        """Return why not even one step fits, or an empty string."""
        return self._shortage(self.step_ns, available_bytes)

    def exhausted(self, spent_ns: int, last_ns: int, available_bytes: int | None) -> str:
        """Return why the capture must end after `spent_ns`, or an empty string; `last_ns` is its last step's length."""
        if spent_ns > PROFILE_SECONDS_MAX * _NS_PER_S:
            return f"captured time: got {spent_ns / _NS_PER_S:.1f} s, expected at most {PROFILE_SECONDS_MAX} s"
        slow_ns = max(SLOWDOWN_MAX * self.steps * self.step_ns, SLOWDOWN_FLOOR_NS)
        if spent_ns > slow_ns:
            return f"captured time: got {spent_ns / _NS_PER_S:.1f} s, expected at most {slow_ns / _NS_PER_S:.1f} s"
        events = self.events_per_s * (spent_ns + last_ns) / _NS_PER_S
        if events > PROFILE_EVENTS_MAX:
            return f"events: got up to {events:.0f} with one more step, expected at most {PROFILE_EVENTS_MAX}"
        return self._shortage(spent_ns + last_ns, available_bytes)

    def _shortage(self, captured_ns: int, available_bytes: int | None) -> str:
        needed = self.events_per_s * captured_ns / _NS_PER_S * self.event_bytes + FREE_MARGIN_BYTES
        if available_bytes is None or available_bytes >= needed:
            return ""
        return f"memory: got {available_bytes} bytes available, expected at least {needed:.0f}"


class TraceSizeEstimator:
    """Event rates of this rank's captures, with and without stacks."""

    def __init__(self) -> None:
        self._events_per_s: dict[bool, float] = {}

    def budget(self, order: CaptureRequest, step_ns: int) -> Budget:
        """Return the budget of a capture that begins now."""
        most = STACK_EVENTS_PER_S if order.stacks else EVENTS_PER_S
        return Budget(
            steps=order.steps,
            step_ns=step_ns,
            events_per_s=min(most, self._events_per_s.get(order.stacks, most)),
            event_bytes=FULL_EVENT_BYTES if order.shapes or order.memory else EVENT_BYTES,
        )

    def learn(self, order: CaptureRequest, events: int, captured_ns: int) -> None:
        """Add the event count of a capture; 0 events means unknown."""
        if captured_ns > 0 and events:
            self._events_per_s[order.stacks] = RATE_MARGIN * events * _NS_PER_S / captured_ns
