"""What events on a device cost the training thread, by both writers of marks, without a driver behind it.

    python setup.py build_ext --inplace   # once, where the C extension is not installed
    python -m benchmarks.device_cost [--collectives N ...]

Steps of synchronous collectives on the training's stream are recorded on a device that is done with everything at once,
first without it (marks alone), then with it (marks, events, and the distances between them). Prints CPU time of the
training thread: of a step of six marks, and of a collective more, of which a part falls on the step's end; and the
bytes of marks that a collective leaves in the ring. The account in the training process, which marks replaced, took 51
us for a step of one collective and 5.6 to 7.1 us for each of 64 to 8,192 (three runs, four busy cores).
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic_ns, thread_time_ns

from benchmarks.mark_cost import buffer_of
from lockstep.agent.device.device_streams import Stamp
from lockstep.agent.device.event_queue import EventQueue
from lockstep.agent.mark_buffer import MarkBuffer
from lockstep.agent.mark_writer import C_EXTENSION, PURE_PYTHON, mark_buffer_type
from lockstep.contracts.marks import MARK_BYTES, pack_call_site

COLLECTIVES = (64, 512, 2048, 8192)
STEPS = 20
WARM_UP_STEPS = 3
_SITE = pack_call_site("allreduce_", synchronous=True, domain=0, slot=0, group_size=2)


class HostStream:
    """A stream that does what is queued before the call that queues it returns, at the time that `clock` shows, ns."""

    def __init__(self, clock: Callable[[], int] = monotonic_ns) -> None:
        self._clock = clock
        self.free: list[Stamp] = []
        self.made = 0

    def record(self) -> Stamp:
        """Note the host's time as the event's."""
        if self.free:
            stamp = self.free.pop()
        else:
            self.made += 1
            stamp = Stamp(0, 0)
        stamp.event = self._clock()
        return stamp

    def usable(self) -> bool:
        """Answer that no graph is captured."""
        return True

    def ready(self, _stamp: Stamp) -> bool:
        """Answer that all is done."""
        return True

    def elapsed_ns(self, earlier: Stamp, later: Stamp) -> int:
        """Return the host's time between the two."""
        return int(later.event - earlier.event)

    def reuse(self, stamps: list[Stamp]) -> None:
        """Take them back."""
        self.free += stamps


@dataclass(frozen=True)
class DeviceCost:
    """CPU time of the training thread in us: of a step in all, and of its end."""

    step_us: float
    end_us: float
    events_made: int
    marks: float
    """Of a step."""


def measure(kind: type[MarkBuffer], collectives: int, *, has_device: bool) -> DeviceCost:
    """Return the medians of steps of so many collectives."""
    stream, optimizer = HostStream(), object()
    whole_us, end_us, positions = [], [], []
    with buffer_of(kind) as buffer:
        queue = None
        if has_device:
            queue = EventQueue(stream, buffer, stream.record())
            buffer.device = queue.at_mark
        for _ in range(STEPS + WARM_UP_STEPS):
            began = thread_time_ns()
            buffer.data_begin()
            buffer.data_end()
            buffer.backward_begin()
            for _ in range(collectives):
                ordinal = buffer.issue(_SITE, 4096)
                assert ordinal is not None
                if queue is None:
                    buffer.done_unknown(ordinal)
                else:
                    queue.completed(ordinal, in_order=True)
            buffer.backward_end()
            buffer.optimizer_begin(optimizer)
            ends = thread_time_ns()
            buffer.optimizer_end()
            done = thread_time_ns()
            whole_us.append((done - began) / 1e3)
            end_us.append((done - ends) / 1e3)
            positions.append(buffer.device_mark(0, 0, 0, 0))  # a mark of no kind, for its ordinal
    return DeviceCost(
        statistics.median(whole_us[WARM_UP_STEPS:]),
        statistics.median(end_us[WARM_UP_STEPS:]),
        stream.made,
        (positions[-1] - positions[0]) / (len(positions) - 1) - 1,
    )


def lines(kind: type[MarkBuffer], counts: list[int]) -> Iterator[str]:
    """Return a line for a step of no collective, and one for each number of them."""
    for has_device in (False, True):
        plain = measure(kind, 0, has_device=has_device)
        device = "with a device" if has_device else "marks alone"
        yield f"{device:>14}{'a step':>12}{plain.step_us:>10.2f}{plain.end_us:>14.2f}{plain.events_made:>14}"
        for count in counts:
            cost = measure(kind, count, has_device=has_device)
            each_us = (cost.step_us - plain.step_us) / count
            ends_us = (cost.end_us - plain.end_us) / count
            size = (cost.marks - plain.marks) / count * MARK_BYTES
            yield f"{device:>14}{f'of {count}':>12}{each_us:>10.2f}{ends_us:>14.2f}{cost.events_made:>14}{size:>14.0f}"


def main() -> None:
    """Print a table for each writer that there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collectives", type=int, nargs="+", default=COLLECTIVES, help="in a step")
    counts = list(parser.parse_args().collectives)
    chosen, writer = mark_buffer_type()
    kinds = {PURE_PYTHON: MarkBuffer} | ({C_EXTENSION: chosen} if writer == C_EXTENSION else {})
    for name, kind in kinds.items():
        print(f"{name}\n{'':>26}{'us each':>10}{'at the end':>14}{'events made':>14}{'bytes each':>14}")
        for line in lines(kind, counts):
            print(line)


if __name__ == "__main__":
    main()
