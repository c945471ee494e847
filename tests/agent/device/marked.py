"""A training on the simulated device as marks: an event queue in the process, a step builder outside of it."""

import os
import tempfile

from lockstep.accounting.block_reader import BlockReader
from lockstep.accounting.step_builder import StepBuilder
from lockstep.agent.device.event_queue import EventQueue
from lockstep.contracts.marks import BLOCK_BYTES, UNKNOWN_DOMAIN, MarkKind, pack_call_site
from lockstep.contracts.records import RECORD_FIELDS, RECORD_STRUCT
from tests.agent.device.simulated import Device, Training
from tests.agent.mark_buffers import Ring

GROUP_SIZE = 4  # of an all-reduce of 100 bytes, 150 cross the slowest link


class DeviceRing(Ring):
    """A ring whose clock is the device's host."""

    def __init__(self, directory, writer, device, block_count, claim_thread):
        self._device = device
        super().__init__(directory, writer, block_count=block_count, claim_thread=claim_thread)

    def _clock(self):
        return self._device.now

    def _cpu_clock(self):
        return self._device.now // 2


class Marks:
    """What today's recorder is called, as marks."""

    def __init__(self, scene):
        self._scene = scene
        buffer = self._buffer = scene.buffer
        self.enter_data, self.leave_data = buffer.data_begin, buffer.data_end
        self.enter_backward, self.leave_backward = buffer.backward_begin, buffer.backward_end
        self.enter_optimizer, self.leave_optimizer = buffer.optimizer_begin, buffer.optimizer_end
        self.enter_closure, self.leave_closure = buffer.closure_begin, buffer.closure_end
        self.enter_phase, self.leave_phase = buffer.phase_begin, buffer.phase_end
        self.end_explicit, self.begin_explicit = buffer.step_end, buffer.begin_explicit
        self.enter_scaler, self.leave_scaler = buffer.scaler_begin, buffer.scaler_end
        self.expect, self.flag = buffer.expect, buffer.flag

    def begin_block(self):
        self._buffer.wait_begin()
        return self._scene.device.now

    def block(self, _began_ns, _ended_ns):
        self._buffer.wait_end()

    def note_unmeasured(self, traffic):
        mark = self._buffer.device_mark  # it appends what it is given
        if traffic is None:
            mark(MarkKind.UNMEASURED, UNKNOWN_DOMAIN, 0, 0)
            return
        for domain, (count, payload_bytes, bus_bytes) in traffic.items():
            mark(MarkKind.UNMEASURED, domain, count, payload_bytes)
            mark(MarkKind.UNMEASURED_BUS, domain, 0, bus_bytes)

    def finish(self):
        self._scene.timeline.finish()
        self._buffer.finish()


class MarkedScene(Training):
    """The same interface as RecordedScene has.

    `issued` collectives and `position` marks came before it in the attempt, of a writer in Python.
    """

    def __init__(self, device=None, writer="Python", block_count=4096, claim_thread=None, *, issued=0, position=0):
        self.device = device or Device()
        with tempfile.TemporaryDirectory() as directory:  # the file lives as long as it is open
            self.ring = DeviceRing(directory, writer, self.device, block_count, claim_thread)
        self.buffer = self.ring.buffer
        self._reader = BlockReader(block_count)
        self.builder = StepBuilder()
        if issued or position:
            self.buffer._issued, self.buffer._position, self.builder._position = issued, position, position
        self._records = []
        self.optimizer = object()
        self.buffer.begin()
        self.timeline = EventQueue(self.device, self.buffer, self.device.record(), cpu_clock=lambda: 0)
        self.buffer.device = self.timeline.at_mark
        self.recorder = Marks(self)
        self.poll = self.timeline._read_segments

    def __del__(self):
        self.ring.close()

    def _fetch(self, first, count):
        return os.pread(self.ring.file, count * BLOCK_BYTES, first * BLOCK_BYTES)

    def blocks(self):
        """Return the blocks since the last call."""
        self.buffer.flush()
        read = self._reader.read(self._fetch, limit=1 << 20)
        assert read.overwritten == read.torn == 0
        return read.blocks

    @property
    def records(self):
        for block in self.blocks():
            for step in self.builder.add(block):
                assert not step.is_incomplete
                self._records.append(dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(step.record), strict=True)))
        assert (self.builder.counts.lost_marks, self.builder.counts.malformed_marks) == (0, 0)
        return self._records

    def issue(self, kind, *, synchronous):
        site = pack_call_site("allreduce_", synchronous=synchronous, domain=kind, slot=kind, group_size=GROUP_SIZE)
        return self.buffer.issue(site, 100)

    def batch(self, counts):
        """End the wait for a batch of (samples, tokens, work); None is an evaluation's."""
        self.buffer.data_end()
        if counts is None:
            self.buffer.batch_evaluated()
        else:
            self.buffer.batch(*counts)

    def annotate(self, quantity, value):
        self.buffer.annotate(quantity, value)

    def change_thread(self):
        """Let another thread become the training thread."""
        self.buffer.device_mark(MarkKind.THREAD, 0, 0, self.device.now // 2)  # it appends what it is given

    def done_unknown(self, collective):
        self.buffer.done_unknown(collective)

    def done(self, collective):
        self.buffer.done(collective)

    def collect_garbage(self, host_ns, *, full):
        """As the collector calls the buffer, which queues nothing on the device."""
        self.buffer.collect("start", {"generation": 2 * full})
        self.device.host(host_ns)
        self.buffer.collect("stop", {"generation": 2 * full})
