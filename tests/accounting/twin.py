"""Today's recorder and the marks of a buffer, driven by the same events under one clock of the test's own."""

import tempfile
from contextlib import ExitStack
from threading import get_ident
from unittest import mock

from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.marks import FLOPS_UNITS, OPERATORS, UNKNOWN_DOMAIN, flops_argument, pack_call_site
from lockstep.contracts.records import MISSING, RECORD_FIELDS, RECORD_STRUCT
from tests.accounting.oracle import garbage, recorder, running_step
from tests.accounting.oracle.account import UNKNOWN_NS, Collective
from tests.accounting.oracle.recorder import Recorder
from tests.accounting.oracle.traffic import bus_bytes
from tests.agent.mark_buffers import Ring

OPTIMIZERS = [object() for _ in range(4)]
QUANTITIES = ("samples", "tokens", "work", "flops")


def flops_of(samples, _tokens):
    return MISSING if samples == MISSING else 6 * samples


class Twin:
    """Each method is one event; `records` are those of today's recorder, `built()` what the marks give."""

    def __init__(self, writer="Python", block_count=512):
        self._stack = ExitStack()
        directory = self._stack.enter_context(tempfile.TemporaryDirectory())
        clocks = [(module, "monotonic_ns", self._now_ns) for module in (recorder, running_step)]
        clocks += [(running_step, "thread_time_ns", self._cpu_ns), (garbage, "_full_collections", self._full_count)]
        for module, name, clock in clocks:
            self._stack.enter_context(mock.patch.object(module, name, clock))
        self.full_collections = self.graphs = self.boundary_flags = self.boundary_ns = 0
        self.adoption = 0
        self.ring = Ring(directory, writer, block_count=block_count, adopt=lambda: self.adoption)
        self._stack.callback(self.ring.close)
        self.buffer = self.ring.buffer
        self.records = []
        self._in_flight = []
        self.recorder = Recorder(lambda record: self.records.append(bytes(record)), self._at_boundary, lambda: False)
        self.recorder.compilations = lambda: self.graphs
        self.recorder.garbage = garbage.CollectionLog()
        self.recorder.begin_attempt(self.ring.now, lambda _now_ns: None)
        self.recorder.thread = get_ident()
        self.buffer.begin()
        self.buffer.compiled(0)
        self.buffer.model_flops(FLOPS_UNITS.index("sample"), flops_argument(6.0))
        self.recorder.flops = flops_of

    def _now_ns(self):
        return self.ring.now

    def _cpu_ns(self):
        return self.ring.now // 2

    def _full_count(self):
        return self.full_collections

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stack.close()

    def _at_boundary(self, _step):
        self.sleep(self.boundary_ns)
        return self.boundary_flags

    def sleep(self, ns):
        self.ring.now += ns

    def _both(self, ours, theirs, *arguments):
        """Call both. What is done at the end of a step flags the next one, and costs it thread time.

        The marks know of neither by themselves: today's agent measures both where it acts, and so will a writer.
        """
        before = len(self.records)
        getattr(self.buffer, theirs)(*arguments)
        ended_cpu_ns = self._cpu_ns()
        result = getattr(self.recorder, ours)(*arguments)
        if len(self.records) > before:
            if self.boundary_flags:
                self.buffer.flag(self.boundary_flags)
            if self.boundary_ns:
                self.buffer.spend(self._cpu_ns() - ended_cpu_ns)
        return result

    def data_begin(self):
        self._both("enter_data", "data_begin")

    def data_end(self, counts=None):
        """End the wait for a batch, count it as the hook does: None is an evaluation's batch."""
        if self._both("leave_data", "data_end"):
            if counts is None:
                self.recorder.flag(4)
            else:
                self.recorder.quantities.add_batch(*counts)
        if counts is None:
            self.buffer.batch_evaluated()
        else:
            self.buffer.batch(*counts)

    def backward_begin(self):
        self._both("enter_backward", "backward_begin")

    def backward_end(self):
        self._both("leave_backward", "backward_end")

    def optimizer_begin(self, index):
        self._both("enter_optimizer", "optimizer_begin", OPTIMIZERS[index])

    def optimizer_end(self):
        self._both("leave_optimizer", "optimizer_end")

    def scaler_begin(self, index, optimizer):
        self._both("enter_scaler", "scaler_begin", OPTIMIZERS[index], OPTIMIZERS[optimizer])

    def scaler_end(self, index):
        self._both("leave_scaler", "scaler_end", OPTIMIZERS[index])

    def closure_begin(self):
        self._both("enter_closure", "closure_begin")

    def closure_end(self):
        self._both("leave_closure", "closure_end")

    def phase_begin(self, phase):
        self._both("enter_phase", "phase_begin", phase)

    def phase_end(self, phase):
        self._both("leave_phase", "phase_end", phase)

    def explicit(self):
        self._both("begin_explicit", "begin_explicit")

    def step_end(self):
        self._both("end_explicit", "step_end")

    def issue(self, operator, domain, size, payload, *, synchronous, ending="later"):
        """Issue a collective whose end is noted "later", by the next wait ("expect"), or "unknown"."""
        name = OPERATORS[operator]
        site = pack_call_site(name, synchronous=synchronous, domain=domain, slot=domain, group_size=size)
        moved = bus_bytes(name, payload, size)
        collective = Collective(self.ring.now, domain, payload, moved, synchronous=synchronous)
        self.recorder.issue(collective, domain)
        ordinal = self.buffer.issue(site, payload)
        if ending == "expect":
            self.recorder.expect(collective)
            self.buffer.expect(ordinal)
        elif ending == "unknown":
            collective.done_ns = UNKNOWN_NS
            self.buffer.done_unknown(ordinal)
        else:
            self._in_flight.append((collective, ordinal))

    def done(self, index):
        """Note the end of a collective in flight, if there is one, of whatever step."""
        if self._in_flight:
            collective, ordinal = self._in_flight.pop(index % len(self._in_flight))
            collective.done_ns = self.ring.now
            self.buffer.done(ordinal)

    def wait(self, *events):
        """Wait for communication while `events` (method, arguments) happen."""
        began_ns = self.recorder.begin_block()
        self.buffer.wait_begin()
        for method, *arguments in events:
            getattr(self, method)(*arguments)
        self.recorder.block(began_ns, self.ring.now)
        self.buffer.wait_end()

    def collect(self, generation, took_ns):
        events = self.recorder.garbage.events
        events.append((self.ring.now, get_ident(), True, None))
        self.buffer.collect("start", {"generation": generation})
        self.sleep(took_ns)
        self.full_collections += generation == 2
        events.append((self.ring.now, get_ident(), False, None))
        self.buffer.collect("stop", {"generation": generation})

    def change_thread(self):
        """Let another thread become the training thread: collections of garbage before it are none of that thread's."""
        log = self.recorder.garbage
        log.take_full_count()
        log.events = type(log.events)((at, -1, begins, counts) for at, _, begins, counts in log.events)
        self.recorder.change_thread()
        self.buffer.change_thread()

    def unmeasured(self, traffic):
        """Carry out collectives, by domain, that are not dispatched; None where it is not known which."""
        self.recorder.note_unmeasured(traffic)
        if traffic is None:
            self.buffer.unmeasured(UNKNOWN_DOMAIN, 0, 0, 0)
        for domain, counts in (traffic or {}).items():
            self.buffer.unmeasured(domain, *counts)

    def fused_step(self):
        """Let a thread of autograd's step an optimizer."""
        optimizer = object()
        self.adoption = 2
        for side in (self.recorder, self.buffer):
            side.thread += 1  # the calling thread is another one for a moment
        self._both("enter_optimizer", "optimizer_begin", optimizer)
        self._both("leave_optimizer", "optimizer_end")
        for side in (self.recorder, self.buffer):
            side.thread -= 1
        self.adoption = 0

    def annotate(self, quantity, value):
        self.recorder.annotate(QUANTITIES[quantity], value)
        self.buffer.annotate(quantity, value)

    def flag(self, flags):
        self._both("flag", "flag", flags)

    def spend(self, cost_ns):
        self._both("spend", "spend", cost_ns)

    def compile(self, graphs):
        self.graphs += graphs
        self.buffer.compiled(self.graphs)

    def capture(self, flags, took_ns=0):
        """From now on, flag each step and take so long at its beginning."""
        self.boundary_flags = flags
        self.boundary_ns = took_ns

    def blocks(self):
        self.buffer.flush()
        return self.ring.blocks()

    def built(self):
        builder = StepBuilder()
        steps = [step for block in self.blocks() for step in builder.add(block)]
        assert not any(step.is_incomplete for step in steps)
        assert (builder.counts.lost_marks, builder.counts.malformed_marks) == (0, 0)
        return [step.record for step in steps]

    def check(self):
        """Both give the same records, byte for byte."""
        built = self.built()
        for ours, theirs in zip(built, self.records, strict=False):
            assert named(ours) == named(theirs)
        assert built == self.records


def named(record):
    return dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(record), strict=True))
