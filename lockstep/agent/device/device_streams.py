"""HOT (budget 2,000 ns a record, of which most is the driver's): events on the stream that training queues work on.

May live here: what is asked of a device library, and nothing that waits for a device. Of torch only what a process has
already initialised is touched; CUDA (and ROCm, which answers to the same names) through `torch.cuda`, Ascend through
`torch.npu`.

No call below was ever run on a device: they were read against the Python sources and headers of torch 2.13 and the
sources of torch_npu. `benchmarks/device_check.py` runs them.
"""

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from lockstep.agent.boundary import warn
from lockstep.agent.device.graphs import GRAPHS

NPU_VARIABLE = "LOCKSTEP_NPU_EVENTS"
"""Set to 1 to time Ascend devices; 0 and unset are the same. Reading a time there first waits until torch_npu's launch
thread has emptied its queue (NPUEvent::elapsed_time), which costs the training thread some of its lead."""


class Stamp:
    """A timed event and the number of the stream that it was recorded on; reused, so valid until `Stream.reuse`."""

    __slots__ = ("event", "stream")

    def __init__(self, event: Any, stream: int) -> None:
        self.event = event
        self.stream = stream


class Stream(Protocol):
    """The calling thread's current stream of one device. No method waits for the device."""

    def record(self) -> Stamp | None:
        """Queue an event; None while none may be (a graph is being captured, in whatever thread)."""

    def usable(self) -> bool:
        """Whether events may be recorded and asked for at this moment."""

    def ready(self, stamp: Stamp) -> bool:
        """Whether the device has come to it."""

    def elapsed_ns(self, earlier: Stamp, later: Stamp) -> int:
        """Return the device's time between two that are ready; negative where the order is the other way round."""

    def reuse(self, stamps: list[Stamp]) -> None:
        """Take stamps back for which there will be no more queries."""


class TorchStream:
    """The current stream of the device that was current at construction, by a device module of torch.

    An event belongs to the device that first recorded it, so a training thread that changes its device goes on being
    timed on this one.
    """

    def __init__(self, module: Any) -> None:
        self._device: int = module.current_device()
        self._current_stream = module.current_stream
        self._event = module.Event
        self._is_capturing = getattr(module, "is_current_stream_capturing", _never)
        self._captures = GRAPHS.captures
        self._free: list[Stamp] = []

    def usable(self) -> bool:
        """Whether no graph is being captured: an event would become part of it, and a query would break it."""
        return not self._captures and not self._is_capturing()

    def record(self) -> Stamp | None:
        """Queue an event, one used before if there is one; creating one costs the driver more than recording it."""
        if not self.usable():
            return None
        try:
            stamp = self._free.pop()
        except IndexError:
            stamp = Stamp(self._event(enable_timing=True), 0)
        stream = self._current_stream(self._device)
        stamp.event.record(stream)
        stamp.stream = stream.stream_id
        return stamp

    def ready(self, stamp: Stamp) -> bool:
        """Ask cudaEventQuery, which returns at once."""
        return bool(stamp.event.query())

    def elapsed_ns(self, earlier: Stamp, later: Stamp) -> int:
        """Convert from the milliseconds in single precision that drivers answer: exact to 0.1 us below two seconds."""
        elapsed_ms: float = earlier.event.elapsed_time(later.event)
        return round(elapsed_ms * 1e6)

    def reuse(self, stamps: list[Stamp]) -> None:
        """Put them into the pool, which so never holds more than were in use at one time."""
        self._free += stamps


def _never() -> bool:
    return False


def find_stream(environ: Mapping[str, str]) -> TorchStream | None:
    """Return the stream of the device that this process has initialised, or None; initialises nothing itself."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if torch.cuda.is_initialized():
        return TorchStream(torch.cuda)
    npu = getattr(torch, "npu", None)
    if npu is None or not npu.is_initialized():
        return None
    wanted = environ.get(NPU_VARIABLE) or "0"
    if wanted not in ("0", "1"):
        warn(f"{NPU_VARIABLE}: got {wanted!r:.200}, expected 1 or 0; Ascend devices are not timed")
    return TorchStream(npu) if wanted == "1" else None
