"""What the exporter pays to build step records from marks: eight ranks at ten steps a second, 200 collectives a step.

    python -m benchmarks.accounting_cost [--steps N] [--profile]

The blocks are those that the Python writer stores for such a step, half of its collectives synchronous and half
asynchronous inside the backward, of several sizes: once on the host, and once on a device that is done with everything
at once, with the events that the agent queues and reads there. The ranks are read in turn, as the exporter reads them:
once a second, when each has ten more steps, and the records of all are built together. Thread CPU time of reading
the slots, checksums included, and of building the records, as the reference machine would take it (thread_time.py).
Exit code 1 when eight ranks take more than 3 % of a core, with events of a device or without.
"""

import argparse
import cProfile
import sys
import tempfile
from functools import partial

from benchmarks.checks import Check, equal, has_missed
from benchmarks.device_cost import HostStream
from benchmarks.thread_time import ReferenceMachine, thread_ns
from exporter.reading.attempt_steps import AttemptSteps
from lockstep.accounting.step_record import built_steps
from lockstep.agent.device.event_queue import EventQueue
from lockstep.agent.mark_buffer import MarkBuffer
from lockstep.contracts.marks import BLOCK_BYTES, pack_call_site
from lockstep.contracts.records import RECORD_FIELDS, RECORD_STRUCT

HOST, DEVICE = "host", "device"
RANKS = 8
STEPS_PER_SECOND = 10
STEPS_PER_READ = STEPS_PER_SECOND
"""The exporter reads once a second."""
COLLECTIVES = 200
CORE_BUDGET_RATIO = 0.03

STEP_NS = 10**9 // STEPS_PER_SECOND
_BLOCKS_PER_STEP = 40
_SIZES = 12


class StepMarks:
    """Writes the marks of steps under a clock of its own, so that they look as those of a job do."""

    def __init__(self, buffer_file: int, block_count: int) -> None:
        self.now_ns = 1
        self._buffer = MarkBuffer(buffer_file, 0, block_count, clock=self._clock, cpu_clock=self._clock)
        self._buffer.begin()
        self._tensor = pack_call_site("allreduce_", synchronous=True, domain=0, slot=1, group_size=8)
        self._data = pack_call_site("allreduce_", synchronous=False, domain=3, slot=2, group_size=64)

    def _clock(self) -> int:
        self.now_ns += 20_000
        return self.now_ns

    @property
    def blocks(self) -> int:
        """Number of blocks written so far."""
        return self._buffer._sequence  # noqa: SLF001  (of the writer in Python)

    def step(self) -> None:
        """Write one step."""
        began_ns, buffer = self.now_ns, self._buffer
        buffer.data_begin()
        buffer.data_end()
        for layer in range(COLLECTIVES // 2):
            self._synchronous((layer % _SIZES + 1) << 20)
        buffer.backward_begin()
        issued = [buffer.issue(self._data, (layer % _SIZES + 1) << 20) for layer in range(COLLECTIVES // 2)]
        for ordinal in issued:
            assert ordinal is not None
            self._asynchronous_end(ordinal)
        buffer.wait_begin()
        buffer.wait_end()
        buffer.backward_end()
        buffer.optimizer_begin(self)
        buffer.optimizer_end()
        self.now_ns = max(self.now_ns, began_ns + STEP_NS)

    def _synchronous(self, payload_bytes: int) -> None:
        buffer = self._buffer
        ordinal = buffer.issue(self._tensor, payload_bytes)
        assert ordinal is not None
        buffer.expect(ordinal)
        buffer.wait_begin()
        buffer.wait_end()

    def _asynchronous_end(self, ordinal: int) -> None:
        self._buffer.done(ordinal)


class DeviceStepMarks(StepMarks):
    """Writes the same steps as they are with a device, whose events lie where the clock is when they are queued."""

    def __init__(self, buffer_file: int, block_count: int) -> None:
        super().__init__(buffer_file, block_count)
        stream = HostStream(lambda: self.now_ns)
        self._queue = EventQueue(stream, self._buffer, stream.record(), cpu_clock=lambda: 0)
        self._buffer.device = self._queue.at_mark

    def _synchronous(self, payload_bytes: int) -> None:
        ordinal = self._buffer.issue(self._tensor, payload_bytes)
        assert ordinal is not None
        self._queue.completed(ordinal, in_order=True)

    def _asynchronous_end(self, ordinal: int) -> None:
        self._queue.completed(ordinal, in_order=False)


def slots_of(steps: int, kind: type[StepMarks] = StepMarks) -> bytes:
    """Return a ring that holds so many steps."""
    block_count = steps * _BLOCKS_PER_STEP
    with tempfile.TemporaryFile() as file:
        file.truncate(block_count * BLOCK_BYTES)
        marks = kind(file.fileno(), block_count)
        for _ in range(steps):
            marks.step()
        return file.read()[: marks.blocks * BLOCK_BYTES]


def fetch(slots: bytes, written: int, first: int, count: int) -> bytes:
    """Return slots of a ring in memory of which so many blocks are written, copied as `pread` copies them."""
    return slots[first * BLOCK_BYTES : min(first + count, written) * BLOCK_BYTES]


def build(slots: bytes, steps: int, ranks: int = 1) -> list[bytes]:
    """Return the records of so many steps of ranks that all left the marks in `slots`, step by step."""
    blocks = len(slots) // BLOCK_BYTES
    rings = [AttemptSteps(blocks) for _ in range(ranks)]
    records: list[bytes] = []
    for step in range(0, steps, STEPS_PER_READ):
        written = blocks * min(step + STEPS_PER_READ, steps) // steps
        ended = [step for ring in rings for step in ring.take(partial(fetch, slots, written), blocks).ended]
        records += [step.record for step in built_steps(ended)]
    return records


def measure(slots: bytes, steps: int, machine: ReferenceMachine) -> float:
    """Return the CPU time of a step's account on the reference machine, ns."""
    return machine.median(lambda: thread_ns(lambda: build(slots, steps, RANKS)) / (steps * RANKS))


def check(cost_ns: float, records: list[bytes], steps: int, where: str = HOST) -> list[Check]:
    """Return every figure of steps on the host or on a device."""
    last = dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(records[-1]), strict=True))
    share = cost_ns * RANKS * STEPS_PER_SECOND / 1e9
    return [
        equal(f"{where}: steps", len(records), steps),
        equal(f"{where}: collectives of a step", last["tp_count"] + last["dp_count"], COLLECTIVES),
        Check(f"{where}: a step's account", f"{cost_ns / 1000:,.0f} us"),
        Check(
            f"{where}: {RANKS} ranks at {STEPS_PER_SECOND} steps a second",
            f"{share:.1%} of a core",
            f"at most {CORE_BUDGET_RATIO:.0%}",
            share <= CORE_BUDGET_RATIO,
        ),
    ]


def main() -> int:
    """Measure, print, compare with the budgets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="steps of the ring that is read")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    arguments = parser.parse_args()
    missed = False
    for where, kind in ((HOST, StepMarks), (DEVICE, DeviceStepMarks)):
        slots = slots_of(arguments.steps + (kind is DeviceStepMarks), kind)  # the device's last step is not read yet
        if arguments.profile:
            cProfile.runctx("build(slots, arguments.steps, RANKS)", globals(), locals(), sort="tottime")
        machine = ReferenceMachine()
        checks = [
            *check(measure(slots, arguments.steps, machine), build(slots, arguments.steps), arguments.steps, where),
            machine.check(),
        ]
        for line in checks:
            print(line.text())
        missed |= has_missed(checks)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
