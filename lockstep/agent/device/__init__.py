"""The device of the training thread: events behind its marks, so that what hides behind device work costs nothing.

    device_streams.py      events: the only place that talks to a device library
    graphs.py       CUDA graphs: no event in a capture, no wait seen in a replay
    event_queue.py  events queued behind marks, and read as marks when the device has passed them

Where device time lies on the host's clock is worked out by lockstep/accounting (device_*.py). docs/devices.md has the
reasoning.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.agent.device.device_streams import find_stream

if TYPE_CHECKING:
    from lockstep.agent.device.event_queue import EventQueue
    from lockstep.agent.mark_buffer import MarkBuffer


def make_event_queue(
    buffer: "MarkBuffer", guard: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> "EventQueue | None":
    """Return the event queue of the device that this process uses, from now on; None where it has initialised none.

    To be called on the training thread, where a step may have just begun. `buffer` calls it behind its marks, through
    `guard` (boundary.Boundary).
    """
    stream = find_stream(os.environ)
    if stream is None:
        return None
    from lockstep.agent.device.event_queue import EventQueue  # noqa: PLC0415  (most hosts have no device)

    start = stream.record()
    if start is None:
        return None
    queue = EventQueue(stream, buffer, start)
    buffer.device = guard(queue.at_mark)
    return queue
