"""The training thread's step on the clock of its device, so that what hides behind device work costs nothing.

    streams.py      events: the only place that talks to a device library
    axis.py         host times to device times: arithmetic
    graphs.py       CUDA graphs: no event in a capture, no wait seen in a replay
    moments.py      the events of one step, read as the device passes them
    reading.py      what they say of a finished step
    timeline.py     which steps are still on their way, and where the device's time lies on the host's

docs/devices.md has the reasoning.
"""

import os
from typing import TYPE_CHECKING

from lockstep.agent.device.streams import find_stream

if TYPE_CHECKING:
    from lockstep.agent.device.timeline import Timeline


def make_timeline() -> "Timeline | None":
    """Return the timeline of the device that this process uses, from now on; None where it has initialised none.

    To be called where a step has just begun.
    """
    stream = find_stream(os.environ)
    if stream is None:
        return None
    from lockstep.agent.device.timeline import Timeline  # noqa: PLC0415  (most hosts have no device)

    start = stream.record()
    return None if start is None else Timeline(stream, start)
