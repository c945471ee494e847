"""A training on the simulated device as today's agent records it: recorder and timeline, in the training process."""

from threading import get_ident

from lockstep.contracts.marks import ANNOTATED
from lockstep.contracts.records import RECORD_FIELDS, RECORD_STRUCT, Flag
from tests.accounting.oracle import recorder, running_step
from tests.accounting.oracle.account import UNKNOWN_NS, Collective
from tests.accounting.oracle.garbage import CollectionLog
from tests.accounting.oracle.recorder import Recorder
from tests.accounting.oracle.timeline import Timeline
from tests.agent.device.simulated import Device, Training


class Garbage(CollectionLog):
    """The log of a collector that runs when the test says so."""

    def __init__(self):
        super().__init__()
        self.full = 0

    def take_full_count(self):
        full, self.full = self.full, 0
        return full


class RecordedScene(Training):
    """A recorder and a timeline on such a device, and the records that came out."""

    def __init__(self, monkeypatch, device=None):
        self.device = device or Device()
        self.records = []
        for module in (recorder, running_step):
            monkeypatch.setattr(module, "monotonic_ns", lambda: self.device.now)
        monkeypatch.setattr(running_step, "thread_time_ns", lambda: self.device.now // 2)
        self.recorder = Recorder(self._store, lambda _step: 0, lambda: False)
        self.recorder.begin_attempt(self.device.now, lambda _now: None)
        self.recorder.thread = get_ident()
        self.optimizer = object()
        self.timeline = Timeline(self.device, self.device.record(), clock=lambda: self.device.now)
        self.recorder.timeline = self.timeline
        self.garbage = self.recorder.garbage = Garbage()
        self.poll = self.timeline.ready

    def issue(self, kind, *, synchronous):
        collective = Collective(self.device.now, kind, 100, 150, synchronous)
        self.recorder.issue(collective)
        return collective

    def batch(self, counts):
        if self.recorder.leave_data():
            if counts is None:
                self.recorder.flag(int(Flag.EVALUATION))
            else:
                self.recorder.quantities.add_batch(*counts)

    def annotate(self, quantity, value):
        self.recorder.annotate(ANNOTATED[quantity], value)

    def change_thread(self):
        self.garbage.full = 0
        self.garbage.events.clear()
        self.recorder.change_thread()

    def done_unknown(self, collective):
        collective.done_ns = UNKNOWN_NS

    def done(self, collective):
        collective.done_ns = self.device.now

    def _store(self, record):
        self.records.append(dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(record), strict=True)))

    def collect_garbage(self, host_ns, *, full):
        """As the collector's callback notes it, which queues nothing on the device."""
        self.garbage.events.append((self.device.now, get_ident(), True, None))
        self.device.host(host_ns)
        self.garbage.events.append((self.device.now, get_ident(), False, None))
        self.garbage.full += full
