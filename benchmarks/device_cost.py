"""What the agent's device timeline costs the training thread for each collective, without a driver behind it.

    python -m benchmarks.device_cost [--collectives N ...]

Steps of synchronous collectives on the training's stream are recorded on a device that is done with everything at once.
Prints CPU time of the training thread: for a collective in all, and for its part of the step's end.
"""

import argparse
import statistics
from threading import get_ident
from time import monotonic_ns, thread_time_ns

from lockstep.agent.account import Collective
from lockstep.agent.device.streams import Stamp
from lockstep.agent.device.timeline import Timeline
from lockstep.agent.recorder import Recorder

COLLECTIVES = (64, 512, 2048, 8192)
STEPS = 20
WARM_UP_STEPS = 3


class HostStream:
    """A stream that does what is queued before the call that queues it returns."""

    def __init__(self) -> None:
        self.free: list[Stamp] = []
        self.made = 0

    def record(self) -> Stamp:
        """Note the host's time as the event's."""
        if self.free:
            stamp = self.free.pop()
        else:
            self.made += 1
            stamp = Stamp(0, 0)
        stamp.event = monotonic_ns()
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


def measure(collectives: int) -> tuple[float, float, int]:
    """Return CPU time of a collective and of its part of the step's end, medians in us, and the events made."""
    recorder = Recorder(lambda _record: None, lambda _step: 0, lambda: False)
    recorder.begin_attempt(monotonic_ns(), lambda _now_ns: None)
    recorder.thread = get_ident()
    stream, optimizer = HostStream(), object()
    timeline = recorder.timeline = Timeline(stream, stream.record())
    whole_us, end_us = [], []
    for _ in range(STEPS + WARM_UP_STEPS):
        began = thread_time_ns()
        recorder.enter_backward()
        for _ in range(collectives):
            collective = Collective(monotonic_ns(), 0, 100, 100, True)
            recorder.issue(collective)
            timeline.completed(collective, in_order=True)
        recorder.leave_backward()
        recorder.enter_optimizer(optimizer)
        ends = thread_time_ns()
        recorder.leave_optimizer()
        done = thread_time_ns()
        whole_us.append((done - began) / collectives / 1e3)
        end_us.append((done - ends) / collectives / 1e3)
    return statistics.median(whole_us[WARM_UP_STEPS:]), statistics.median(end_us[WARM_UP_STEPS:]), stream.made


def main() -> None:
    """Print a line for each number of collectives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collectives", type=int, nargs="+", default=COLLECTIVES, help="in a step")
    print(f"{'a step':>8}{'us each':>10}{'of it at the end':>18}{'events made':>13}")
    for collectives in parser.parse_args().collectives:
        whole_us, end_us, made = measure(collectives)
        print(f"{collectives:>8}{whole_us:>10.2f}{end_us:>18.2f}{made:>13}")


if __name__ == "__main__":
    main()
