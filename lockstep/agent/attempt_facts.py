"""Collects what is known only after an attempt's first steps: its facts, its device and the FLOPs of its model.

The agent calls it at the ends of optimizer steps and of steps that the training names, outside of a backward. In most
trainings such an end is the end of a step; in the others (two optimizers) the work is done slightly early.
"""

from threading import get_ident
from typing import TYPE_CHECKING, Any

from lockstep.agent.throughput.facts import collect
from lockstep.contracts.marks import FLOPS_UNITS, flops_argument

if TYPE_CHECKING:
    from lockstep.agent.mark_buffer import MarkBuffer
    from lockstep.agent.ring import RingWriter
    from lockstep.agent.throughput.flops import ModelFlopsReporter

SETTLING_ENDS = 8
"""Ends at which the agent looks for a device: some jobs use theirs only after a first step on the host."""
_UNKNOWN = (FLOPS_UNITS.index("unknown"), 0)
REPEAT_INTERVAL_NS = 10_000_000_000
"""A reader that starts late, or after the ring's first lap, learns the model's FLOPs within this time."""


class AttemptFacts:
    """Facts of one process's current attempt. `flops` measures the model's FLOPs; None without torch."""

    def __init__(self, marks: "MarkBuffer", mark_writer: str) -> None:
        self._marks = marks
        self._mark_writer = mark_writer
        self.kernels = ("", "")
        """What the kernels in front of collectives are written in, and why not in C++ (hooks/collectives.py)."""
        self.flops: ModelFlopsReporter | None = None
        self.stacks = ""
        """What `StackDumps.fact` was when the attempt began."""
        self._ring: RingWriter | None = None
        self._ends = 0
        self._noted = _UNKNOWN
        self._repeat_ns = 0

    def begin(self, ring: "RingWriter") -> None:
        """Begin an attempt; its marks begin after this call."""
        self._ring = ring
        self._ends = self._repeat_ns = 0
        self._noted = _UNKNOWN
        self._marks.settling = SETTLING_ENDS

    @property
    def looks_for_device(self) -> bool:
        """Whether the search for a device continues."""
        return self._ends < SETTLING_ENDS

    def at_boundary(self) -> None:
        """Continue the collection unless it has ended."""
        flops = self.flops
        if self._ends >= SETTLING_ENDS and (flops is None or not flops.is_measuring):
            return
        self._ends += 1
        if flops is not None and flops.is_measuring:
            flops.measure()
            if flops.is_measuring:
                self._marks.settling = max(self._marks.settling, 1)
        self.note_flops()
        if self._ends in (1, SETTLING_ENDS) and self._ring is not None:  # more optimizers appear after the first end
            self._ring.write_facts(collect(flops, self._mark_writer, self.kernels, self.stacks))

    def meet(self, optimizer: Any) -> None:
        """Inspect an optimizer at its first step; the model's FLOPs apply from the running step on."""
        if self.flops is not None:
            self.flops.meet(optimizer)
            self.note_flops()

    def note_flops(self) -> None:
        """Mark the model's FLOPs if they have changed; from another thread, the mark is made at the next end."""
        if self.flops is None or self._marks.thread != get_ident():
            return
        unit, flops = self.flops.factor
        noted = (FLOPS_UNITS.index(unit), flops_argument(flops))
        if noted != self._noted:
            self._noted = noted
            self._marks.model_flops(*noted)

    def repeat(self, now_ns: int) -> None:
        """Repeat the mark now and then."""
        if now_ns >= self._repeat_ns:
            self._repeat_ns = now_ns + REPEAT_INTERVAL_NS
            if self._noted != _UNKNOWN:
                self._marks.model_flops(*self._noted)
