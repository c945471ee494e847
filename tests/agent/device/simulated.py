"""A device whose streams work off what is queued on them, on the test's own clock; nothing of Lockstep is faked.

The host queues work, events and waits and goes on; a stream begins a piece when it is queued and the stream is free.
"""

from collections import deque
from contextlib import contextmanager

from lockstep.agent.device.device_streams import Stamp
from lockstep.contracts.records import DOMAIN_KINDS
from tests.agent.rings import unaccounted_ns

MS = 1_000_000
HOME, ASIDE, COMMUNICATION = range(3)
DP = DOMAIN_KINDS.index("dp")
TP = DOMAIN_KINDS.index("tp")


class Event:
    """Where the device's own clock stood when the stream came by, and the host's."""

    def __init__(self, done_ns):
        self.done_ns = done_ns


class Device:
    """Three streams and the host that feeds them. `rate` is how fast the device's clock runs against the host's.

    With `queue_max` the host is stopped, as CUDA's is, where so many pieces of work and events wait for a stream.
    `asked` counts what the agent asked the device: questions, and distances read.
    """

    def __init__(self, now=1000 * MS, rate=1.0, grain=1, record_ns=0, queue_max=None):
        self.record_ns = record_ns
        self.queue_max = queue_max
        self.queued = [deque(), deque(), deque()]
        self.asked = 0
        self.now = now
        self.rate = rate
        self.grain = grain
        self.free_ns = [now, now, now]
        self.current = HOME
        self.capturing = False
        self.lost = False
        self.pool = []
        self.made = 0

    # What a training does.

    def host(self, took_ns):
        """Keep the host busy."""
        self.now += took_ns

    def work(self, took_ns, stream=None):
        """Queue work on the current stream."""
        stream = self.current if stream is None else stream
        self.free_ns[stream] = max(self.free_ns[stream], self.now) + took_ns
        self._queue(stream)

    def _queue(self, stream):
        if self.queue_max is not None:
            queued = self.queued[stream]
            queued.append(self.free_ns[stream])
            if len(queued) > self.queue_max:
                self.now = max(self.now, queued.popleft())

    def wait(self, waiting, awaited):
        """Queue a wait of one stream for what is queued on another one."""
        self.free_ns[waiting] = max(self.free_ns[waiting], self.free_ns[awaited])

    def synchronize(self):
        """Make the host wait for the training's stream, as `loss.item()` does."""
        self.now = max(self.now, self.free_ns[HOME])

    @contextmanager
    def on(self, stream):
        former, self.current = self.current, stream
        yield
        self.current = former

    # The protocol of lockstep.agent.device.device_streams.Stream.

    def usable(self):
        return not self.capturing

    def record(self):
        if self.lost:
            raise RuntimeError("device lost")
        if self.capturing:
            return None
        if self.pool:
            stamp = self.pool.pop()
        else:
            self.made += 1
            stamp = Stamp(None, 0)
        stamp.event = Event(max(self.free_ns[self.current], self.now))
        stamp.stream = self.current
        self._queue(self.current)
        self.now += self.record_ns
        return stamp

    def ready(self, stamp):
        if self.lost:
            raise RuntimeError("device lost")
        assert not self.capturing
        self.asked += 1
        return stamp.event.done_ns <= self.now

    def elapsed_ns(self, earlier, later):
        assert earlier.event.done_ns <= self.now
        assert later.event.done_ns <= self.now
        self.asked += 1
        exact = (later.event.done_ns - earlier.event.done_ns) * self.rate
        return round(exact / self.grain) * self.grain

    def reuse(self, stamps):
        assert not {id(stamp) for stamp in stamps} & {id(stamp) for stamp in self.pool}
        assert len({id(stamp) for stamp in stamps}) == len(stamps)
        self.pool += stamps


class Training:
    """Pieces of a training's steps, over whatever records them. Times in ns: of the host, then of the device.

    `recorder` has the methods of today's recorder, `timeline` completes collectives, `records` are as dicts.
    """

    def data(self, host_ns):
        self.recorder.enter_data()
        self.device.host(host_ns)
        self.recorder.leave_data()

    def forward(self, host_ns, device_ns):
        self.device.host(host_ns)
        self.device.work(device_ns)

    @contextmanager
    def backward(self):
        self.recorder.enter_backward()
        yield
        self.recorder.leave_backward()

    def optimize(self, host_ns, device_ns):
        self.recorder.enter_optimizer(self.optimizer)
        self.device.host(host_ns)
        self.device.work(device_ns)
        self.recorder.leave_optimizer()

    def collective(self, took_ns, *, kind=DP, synchronous=False, in_order=None, not_before_ns=0):
        """One of NCCL's: on its own stream, or on the current one where it is synchronous; others arrive when they do.

        `in_order` is whether it is on the current one, where that is not so.
        """
        in_order = synchronous if in_order is None else in_order
        collective = self.issue(kind, synchronous=synchronous)
        stream = self.device.current if in_order else COMMUNICATION
        self.device.wait(stream, self.device.current)
        self.device.free_ns[stream] = max(self.device.free_ns[stream], self.device.now, not_before_ns)
        self.device.work(took_ns, stream)
        self.timeline.completed(collective, in_order=in_order)
        return collective

    def wait(self):
        """`Work.wait` as its hook sees it: the training's stream waits, the host does not."""
        began = self.recorder.begin_block()
        self.device.wait(HOME, COMMUNICATION)
        self.device.host(1)  # no call is instant: two marks of one time would be one
        self.recorder.block(began, self.device.now)

    def wait_aside(self):
        """`Stream.wait_event` as its hook sees it."""
        began = self.recorder.begin_block()
        self.device.wait(HOME, ASIDE)
        self.device.host(1)
        self.recorder.block(began, self.device.now)

    def step(self, data_ns=MS, forward_ns=20 * MS, backward_ns=40 * MS, launch_ns=2 * MS):
        """Run a step of plain training: each phase takes the host `launch_ns`."""
        self.data(data_ns)
        self.forward(launch_ns, forward_ns)
        with self.backward():
            self.forward(launch_ns, backward_ns)
        self.optimize(launch_ns, 5 * MS)

    def finish(self):
        """Let the device work everything off, and the agent end."""
        self.device.now = max(self.device.now, *self.device.free_ns)
        self.recorder.finish()

    def check(self):
        """Assert what holds in every run: exact sums, no gap, in order."""
        for record in self.records:
            assert unaccounted_ns(record) == 0
            assert min(record[name] for name in ("data_ns", "compute_ns", "host_ns", "gc_ns")) >= 0
        for former, latter in zip(self.records, self.records[1:], strict=False):
            assert latter["start_ns"] == former["end_ns"]
            assert latter["end_ns"] >= latter["start_ns"]
        assert [record["step"] for record in self.records] == list(range(len(self.records)))
