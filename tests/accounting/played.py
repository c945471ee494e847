"""A training played into a mark buffer under a clock of its own, with a log of what was played, and its records."""

import tempfile
from contextlib import ExitStack

from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts.marks import FLOPS_UNITS, OPERATORS, UNKNOWN_DOMAIN, flops_argument, pack_call_site
from lockstep.contracts.records import RECORD_FIELDS, RECORD_STRUCT
from tests.agent.mark_buffers import Ring

OPTIMIZERS = [object() for _ in range(4)]


class PlayedTraining:
    """Each method is one event, `tick_ns` after the one before. `records` are what a builder makes of all marks.

    `log` has (time ns, event, arguments) of what a record counts: its truth, by the limits of a step.
    """

    def __init__(self, writer="Python", block_count=512, tick_ns=0):
        self._stack = ExitStack()
        directory = self._stack.enter_context(tempfile.TemporaryDirectory())
        self.tick_ns = tick_ns
        self.claim = 0
        self.ring = Ring(directory, writer, block_count=block_count, claim_thread=lambda _steps: self.claim)
        self._stack.callback(self.ring.close)
        self.buffer = self.ring.buffer
        self.graphs = 0
        self.log = []
        self._in_flight = []
        self.buffer.begin()
        self.buffer.compiled(0)
        self.buffer.model_flops(FLOPS_UNITS.index("sample"), flops_argument(6.0))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stack.close()

    @property
    def now_ns(self):
        return self.ring.now

    def sleep(self, ns):
        self.ring.now += ns

    def _mark(self, name, *arguments):
        self.sleep(self.tick_ns)
        return getattr(self.buffer, name)(*arguments)

    def _note(self, event, *arguments):
        self.log.append((self.ring.now, event, arguments))

    def data_begin(self):
        self._mark("data_begin")

    def data_end(self, counts=None):
        """End the wait for a batch, count it as the hook does: None is an evaluation's batch."""
        self._mark("data_end")
        if counts is None:
            self.buffer.batch_evaluated()
        else:
            self.buffer.batch(*counts)

    def backward_begin(self):
        self._mark("backward_begin")

    def backward_end(self):
        self._mark("backward_end")

    def optimizer_begin(self, index):
        self._mark("optimizer_begin", OPTIMIZERS[index])

    def optimizer_end(self):
        self._mark("optimizer_end")

    def scaler_begin(self, index, optimizer):
        self._mark("scaler_begin", OPTIMIZERS[index], OPTIMIZERS[optimizer])

    def scaler_end(self, index):
        self._mark("scaler_end", OPTIMIZERS[index])

    def closure_begin(self):
        self._mark("closure_begin")

    def closure_end(self):
        self._mark("closure_end")

    def phase_begin(self, phase):
        self._mark("phase_begin", phase)

    def phase_end(self, phase):
        self._mark("phase_end", phase)

    def explicit(self):
        self._mark("begin_explicit")

    def step_end(self):
        self._mark("step_end")

    def issue(self, operator, domain, size, payload, *, synchronous, ending="later"):
        """Issue a collective whose end is noted "later", by the next wait ("expect"), or "unknown"."""
        name = OPERATORS[operator]
        site = pack_call_site(name, synchronous=synchronous, domain=domain, slot=domain, group_size=size)
        ordinal = self._mark("issue", site, payload)
        self._note("issue", domain, payload)
        if ending == "expect":
            self.buffer.expect(ordinal)
        elif ending == "unknown":
            self.buffer.done_unknown(ordinal)
        else:
            self._in_flight.append(ordinal)

    def done(self, index):
        """Note the end of a collective in flight, if there is one, of whatever step."""
        if self._in_flight:
            self._mark("done", self._in_flight.pop(index % len(self._in_flight)))

    def wait(self, *events):
        """Wait for communication while `events` (method, arguments) happen."""
        self._mark("wait_begin")
        began_ns = self.now_ns
        for method, *arguments in events:
            getattr(self, method)(*arguments)
        self._mark("wait_end")
        self._note("wait", began_ns)

    def collect(self, generation, took_ns):
        self.sleep(self.tick_ns)
        self.buffer.collect("start", {"generation": generation})
        self.sleep(took_ns)
        self.buffer.collect("stop", {"generation": generation})
        self._note("collect", generation, took_ns)

    def change_thread(self):
        """Let another thread become the training thread."""
        self._mark("change_thread")
        self._note("change_thread")

    def unmeasured(self, traffic):
        """Carry out collectives, by domain, that are not dispatched; None where it is not known which."""
        if traffic is None:
            self._mark("unmeasured", UNKNOWN_DOMAIN, 0, 0, 0)
        for domain, counts in (traffic or {}).items():
            self._mark("unmeasured", domain, *counts)
            self._note("unmeasured", domain, *counts)

    def fused_step(self):
        """Let a thread of autograd's step an optimizer."""
        self.claim = 2
        self.buffer.thread += 1  # the calling thread is another one for a moment
        self._mark("optimizer_begin", object())
        self._mark("optimizer_end")
        self.buffer.thread -= 1
        self.claim = 0

    def annotate(self, quantity, value):
        self._mark("annotate", quantity, value)

    def flag(self, flags):
        self._mark("flag", flags)
        self._note("flag", flags)

    def spend(self, cost_ns):
        self._mark("spend", cost_ns)
        self._note("spend", cost_ns)

    def compile(self, graphs):
        self.graphs += graphs
        self._mark("compiled", self.graphs)
        self._note("compile", graphs)

    def blocks(self):
        self.buffer.flush()
        return self.ring.blocks()

    @property
    def records(self):
        """Return the records of all steps that have ended, as dicts: what no lost mark, reader or restart may change."""
        builder = StepBuilder()
        steps = [step for block in self.blocks() for step in builder.add(block)]
        assert not any(step.is_incomplete for step in steps)
        assert (builder.counts.lost_marks, builder.counts.malformed_marks) == (0, 0)
        return [named(step.record) for step in steps]


def named(record):
    return dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(record), strict=True))
