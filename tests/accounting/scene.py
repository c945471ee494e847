"""Marks under a clock of the test's own, and the steps that they are built to."""

import os
from itertools import pairwise
from tempfile import TemporaryFile
from threading import Thread

from lockstep.accounting.step_builder import StepBuilder
from lockstep.agent.mark_buffer import MarkBuffer
from lockstep.contracts.marks import BLOCK_BYTES, pack_call_site, unpack_block
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, RECORD_FIELDS, RECORD_STRUCT
from tests.agent.rings import unaccounted_ns

OPTIMIZER = object()
DATA = (("data_begin", 1), ("data_end", 10))
BATCH = (*DATA, ("batch", 0, 4, 32, MISSING))
BACKWARD = (("backward_begin", 20), ("backward_end", 40))
STEP = (("optimizer_begin", 2, OPTIMIZER), ("optimizer_end", 5))
_BLOCKS = 4096


class Scene:
    """A mark buffer of this thread, its clock, and what a builder makes of its marks."""

    def __init__(self):
        self.now = 100
        self.claims = self.claim = 0
        self.cpu_ns = lambda: self.now // 2
        self._file = TemporaryFile()  # noqa: SIM115  (closed by `close`)
        os.ftruncate(self._file.fileno(), _BLOCKS * BLOCK_BYTES)
        self.marks = MarkBuffer(
            self._file.fileno(),
            0,
            _BLOCKS,
            claim_thread=self._claim_thread,
            clock=lambda: self.now,
            cpu_clock=lambda: self.cpu_ns(),  # noqa: PLW0108  (tests set another)
        )
        self.marks.begin()

    def _claim_thread(self, _steps):
        self.claims += 1
        return self.claim

    def run(self, *what):
        """Play (method, time it takes) pairs: the time passes before the method is called."""
        for name, took, *arguments in what:
            self.now += took
            getattr(self.marks, name)(*arguments)

    def run_elsewhere(self, *what):
        """Do the same on another thread."""
        thread = Thread(target=self.run, args=what)
        thread.start()
        thread.join()

    def issue(self, took, kind, payload_bytes, *, synchronous=False):
        """Issue an all-reduce of four ranks after a time; return its ordinal."""
        self.now += took
        site = pack_call_site(
            "allreduce_", synchronous=synchronous, domain=DOMAIN_KINDS.index(kind), slot=0, group_size=4
        )
        return self.marks.issue(site, payload_bytes)

    @property
    def blocks(self):
        self.marks.flush()
        data = os.pread(self._file.fileno(), _BLOCKS * BLOCK_BYTES, 0)
        slots = (data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES))
        return [block for block in map(unpack_block, slots) if block is not None]

    @property
    def records(self):
        """Steps that have ended."""
        builder = StepBuilder()
        built = [step for block in self.blocks for step in builder.add(block)]
        assert not any(step.is_incomplete for step in built)
        return [dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(step.record), strict=True)) for step in built]

    def check(self):
        """Every record's parts are its whole, and each step begins where the one before ended."""
        records = self.records
        for record in records:
            assert unaccounted_ns(record) == 0
        for former, latter in pairwise(records):
            assert latter["start_ns"] == former["end_ns"]

    def close(self):
        self._file.close()
