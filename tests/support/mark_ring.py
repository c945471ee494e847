"""Rings of marks without a training: wanted steps in, a ring file out, from which the accounting makes these steps.

The steps are named (STEP_END), so each ends where it is wanted to, and their numbers count from 0. For tests of, and
benchmarks on, what reads rings; it uses the contracts only.
"""

import fcntl
import os
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep.contracts import ring as layout
from lockstep.contracts.blob import write_blob
from lockstep.contracts.marks import (
    ANNOTATED,
    BLOCK_BYTES,
    BLOCK_MARKS,
    MARK_STRUCT,
    MarkBlock,
    MarkKind,
    pack_block,
    pack_call_site,
    pack_issue,
    unpack_block,
)
from lockstep.contracts.paths import ring_path
from lockstep.contracts.records import COMPUTE_PHASES, DOMAIN_KINDS, MISSING, RECORD_FIELDS

_LOCK = struct.Struct("hhqqi4x")  # struct flock
_GROUP_SIZE = 8
_FULL_GENERATION = 2
_END_COUNTS = {
    MarkKind.BACKWARD_END: 0,
    MarkKind.OPTIMIZER_END: 1,
    MarkKind.SCALER_END: 1,
    MarkKind.STEP_END: 2,
}
Mark = tuple[int, int, int, int, int]
"""(time ns, kind, detail, subject, argument)."""


class StepMarks:
    """Marks of the steps of one attempt; `step` is the number of the next one."""

    def __init__(self) -> None:
        self.step = 0
        self._ordinal = 0
        self._cpu_ns = self._graphs = 0

    def marks(self, wanted: Mapping[str, int]) -> list[Mark]:
        """Return the marks of the next step, whose record shall hold `wanted` (by RECORD_FIELDS, MISSING is left out).

        Its own work is `compute_ns`, or the phases where they are given; what is left of it is the host's.

        Raises
        ------
        ValueError
            Another step than the next one, or parts that are longer than it.
        """
        values = {name: value for name, value in wanted.items() if value != MISSING}
        if values["step"] != self.step:
            raise ValueError(f"step of a ring of marks: got {values['step']}, expected {self.step}, the next one")
        now_ns = values["start_ns"]
        marks: list[Mark] = []
        if self.step == 0:
            marks += [_mark(now_ns, MarkKind.BEGIN, argument=self._cpu_ns), _mark(now_ns, MarkKind.EXPLICIT)]
        for name, part_ns, made in self._parts(values, now_ns):
            if part_ns < 0:
                raise ValueError(f"{name} of a step: got {part_ns}, expected 0 or more")
            marks += made
            now_ns += part_ns
        if now_ns > values["end_ns"]:
            raise ValueError(f"parts of step {self.step}: got {now_ns - values['end_ns']} ns more than the step has")
        marks += self._facts_of(values, now_ns)
        self._cpu_ns += values.get("cpu_ns", 0)
        marks.append(
            _mark(values["end_ns"], MarkKind.STEP_END, argument=self._cpu_ns if "cpu_ns" in values else MISSING)
        )
        self.step += 1
        return marks

    def _parts(self, values: Mapping[str, int], now_ns: int) -> Iterator[tuple[str, int, list[Mark]]]:
        """Yield the parts of a step in their order, with duration and marks."""
        data_ns = values.get("data_ns", 0)
        yield (
            "data_ns",
            data_ns,
            _span(MarkKind.DATA_BEGIN, MarkKind.DATA_END, now_ns, data_ns) + self._batch(values, now_ns + data_ns),
        )
        now_ns += data_ns
        phases = {name: values[f"{name}_ns"] for name in COMPUTE_PHASES if f"{name}_ns" in values}
        for name, part_ns in (phases or {"forward": values.get("compute_ns", 0)}).items():
            detail = 1 + COMPUTE_PHASES.index(name)
            yield name, part_ns, _span(MarkKind.PHASE_BEGIN, MarkKind.PHASE_END, now_ns, part_ns, detail=detail)
            now_ns += part_ns
        for domain, kind in enumerate(DOMAIN_KINDS):
            if f"{kind}_wait_ns" in values:
                wait_ns = values[f"{kind}_wait_ns"]
                counts = max(values.get(f"{kind}_count", 1), 1), values.get(f"{kind}_bytes", 0)
                yield f"{kind}_wait_ns", wait_ns, self._collectives(domain, now_ns, wait_ns, *counts)
                now_ns += wait_ns
        gc_ns, full = values.get("gc_ns", 0), values.get("gc_full_count", 0)
        yield "gc_ns", gc_ns, _collections(now_ns, gc_ns, values.get("gc_count", int(gc_ns > 0)), full)

    def _batch(self, values: Mapping[str, int], now_ns: int) -> list[Mark]:
        marks = [
            _mark(now_ns, kind, argument=values[name])
            for kind, name in ((MarkKind.BATCH_TOKENS, "tokens"), (MarkKind.BATCH_WORK, "work"))
            if name in values
        ]
        return [*marks, _mark(now_ns, MarkKind.BATCH, argument=values.get("samples", MISSING))]

    def _collectives(self, domain: int, now_ns: int, wait_ns: int, count: int, payload_bytes: int) -> list[Mark]:
        """Return synchronous collectives; the first one is what all the time and the bytes are for."""
        site = pack_call_site("allreduce_", synchronous=True, domain=domain, slot=domain, group_size=_GROUP_SIZE)
        marks = []
        for index in range(count):
            if index == 1:
                now_ns, wait_ns, payload_bytes = now_ns + wait_ns, 0, 0
            detail, argument = pack_issue(site, payload_bytes)
            marks.append(_mark(now_ns, MarkKind.ISSUE, detail, self._ordinal, argument))
            marks.append(_mark(now_ns + wait_ns, MarkKind.DONE, subject=self._ordinal))
            self._ordinal += 1
        return marks

    def _facts_of(self, values: Mapping[str, int], now_ns: int) -> list[Mark]:
        marks = []
        if values.get("flags", 0):
            marks.append(_mark(now_ns, MarkKind.FLAGS, argument=values["flags"]))
        if "model_flops" in values:
            marks.append(_mark(now_ns, MarkKind.ANNOTATION, ANNOTATED.index("flops"), argument=values["model_flops"]))
        if "recompilations" in values:
            self._graphs += values["recompilations"]
            marks.append(_mark(now_ns, MarkKind.COMPILED, argument=self._graphs))
        if values.get("agent_ns", 0):
            marks.append(_mark(now_ns, MarkKind.AGENT_COST, argument=values["agent_ns"]))
        return marks


def _mark(time_ns: int, kind: int, detail: int = 0, subject: int = 0, argument: int = 0) -> Mark:
    return time_ns, kind, detail, subject, argument


def _span(begin: int, end: int, now_ns: int, part_ns: int, *, detail: int = 0) -> list[Mark]:
    return [_mark(now_ns, begin, detail), _mark(now_ns + part_ns, end, detail)]


def _collections(now_ns: int, gc_ns: int, count: int, full: int) -> list[Mark]:
    marks = []
    for index in range(count):
        generation = _FULL_GENERATION if index < full else 0
        marks += _span(MarkKind.GC_BEGIN, MarkKind.GC_END, now_ns, gc_ns, detail=generation)
        now_ns, gc_ns = now_ns + gc_ns, 0
    return marks


class BlockMaker:
    """Makes the blocks of one attempt; `sequence` is that of the next one."""

    def __init__(self) -> None:
        self.sequence = 0
        self._position = 0
        self._ends = [0, 0, 0]

    def blocks(self, marks: list[Mark]) -> list[MarkBlock]:
        """Return marks in as few blocks as hold them."""
        return [self._block(marks[first : first + BLOCK_MARKS]) for first in range(0, len(marks), BLOCK_MARKS)]

    def _block(self, marks: list[Mark]) -> MarkBlock:
        packed = b"".join(MARK_STRUCT.pack(*mark) for mark in marks)
        block = MarkBlock(self.sequence, self._position, *self._ends, packed)
        self.sequence += 1
        self._position += len(marks)
        for _, kind, *_rest in marks:
            if kind in _END_COUNTS:
                self._ends[_END_COUNTS[MarkKind(kind)]] += 1
        return block


class MarkRing:
    """Writes the ring file of one attempt of a rank by pwrite, so that a test can cut it; owns its descriptor.

    `steps` makes the marks of `write`, `maker` their blocks. With `hold` it locks the file, as an agent does, until `close`.
    """

    def __init__(self, directory: Path, header: layout.RingHeader, *, now_ns: int, hold: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.header = header
        self.path = ring_path(directory, header.rank)
        self.steps = StepMarks()
        self.maker = BlockMaker()
        self._generations: dict[int, int] = {}
        temporary = directory / f".{header.rank}.tmp"
        self.file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o660)
        os.posix_fallocate(self.file, 0, header.file_bytes)
        os.pwrite(self.file, layout.pack_header(header), 0)
        if hold:
            fcntl.fcntl(self.file, fcntl.F_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            self.word(layout.WORD_HELD, 1)
        self.beat(now_ns)
        self.state(layout.STATE_RUNNING)
        temporary.rename(self.path)

    def write(self, wanted: Mapping[str, int]) -> None:
        """Write the marks of the next step (`StepMarks.marks`) in blocks of their own."""
        self.marks(self.steps.marks(wanted))

    def marks(self, marks: list[Mark]) -> None:
        """Write marks in as few blocks as hold them."""
        for block in self.maker.blocks(marks):
            self.block(block)

    def block(self, block: MarkBlock) -> None:
        """Store a block in the slot of its sequence."""
        os.pwrite(self.file, pack_block(block), self.slot_offset(block.sequence))

    def tear(self, sequence: int) -> None:
        """Damage a block that was stored."""
        offset = self.slot_offset(sequence) + 60
        (byte,) = os.pread(self.file, 1, offset)
        os.pwrite(self.file, bytes([byte ^ 0xFF]), offset)

    def slot_offset(self, sequence: int) -> int:
        """Return where in the file a block's slot begins."""
        return layout.BLOCKS_OFFSET + sequence % self.header.block_count * BLOCK_BYTES

    def lose(self, wanted: Mapping[str, int]) -> None:
        """Make the marks of the next step without storing them."""
        self.maker.blocks(self.steps.marks(wanted))

    def continue_from(self, other: "MarkRing") -> None:
        """Go on behind another file of the same attempt, without its blocks."""
        self.steps, self.maker = other.steps, other.maker

    def word(self, word: int, value: int) -> None:
        """Store one of the words."""
        os.pwrite(self.file, value.to_bytes(8, "little"), word * 8)

    def beat(self, now_ns: int) -> None:
        """Store a sign of life, CLOCK_MONOTONIC."""
        self.word(layout.WORD_HEARTBEAT, now_ns)

    def state(self, state: int) -> None:
        """Store the agent's state."""
        self.word(layout.WORD_STATE, state)

    def issue(self, slot: int, count: int, time_ns: int) -> None:
        """Store what the rank issued in a slot's group so far."""
        self.word(layout.WORD_ISSUES + slot * layout.WORDS_PER_ISSUE_SLOT, count)
        self.word(layout.WORD_ISSUES + slot * layout.WORDS_PER_ISSUE_SLOT + 1, time_ns)

    def answer(self, value: Any) -> None:
        """Store an answer to a capture request."""
        self.blob(layout.ANSWER_OFFSET, layout.ANSWER_BYTES, value)

    def groups(self, value: Any) -> None:
        """Store the process groups."""
        self.blob(layout.GROUPS_OFFSET, layout.GROUPS_BYTES, value)

    def facts(self, value: Any) -> None:
        """Store what the rank runs on."""
        self.blob(layout.FACTS_OFFSET, layout.FACTS_BYTES, value)

    def blob(self, offset: int, capacity: int, value: Any) -> None:
        """Store a value in one of the regions."""
        self._generations[offset] = self._generations.get(offset, 0) + 1
        region = bytearray(capacity)
        write_blob(memoryview(region), 0, capacity, self._generations[offset], value)
        os.pwrite(self.file, region, offset)

    def close(self) -> None:
        """Close the file, which gives its lock back."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def steps_written(path: Path) -> int:
    """Return how many steps the writer of a ring has ended, all of them named ones, as far as stored."""
    with path.open("rb") as file:
        file.seek(layout.BLOCKS_OFFSET)
        data = memoryview(file.read())
    blocks = [unpack_block(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
    newest = max((block for block in blocks if block is not None), key=lambda block: block.sequence, default=None)
    if newest is None:
        return 0
    kinds = [mark[1] for mark in MARK_STRUCT.iter_unpack(newest.marks)]
    return newest.step_ends + kinds.count(MarkKind.STEP_END)


def make_header(
    rank: int, *, world_size: int, local_rank: int | None = None, hostname: str = "node", **values: Any
) -> layout.RingHeader:
    """Return the header of a ring that this process writes, with the clocks as they are."""
    defaults: dict[str, Any] = {
        "local_rank": rank if local_rank is None else local_rank,
        "pid": os.getpid(),
        "attempt": time.time_ns(),
        "clock_offset_ns": time.time_ns() - time.monotonic_ns(),
    }
    return layout.RingHeader(rank=rank, world_size=world_size, hostname=hostname, **(defaults | values))


def wanted_step(step: int, start_ns: int, end_ns: int, **values: int) -> dict[str, int]:
    """Return a step for `MarkRing.write`.

    Raises
    ------
    ValueError
        A field that a record does not have.
    """
    if unknown := values.keys() - set(RECORD_FIELDS):
        raise ValueError(f"fields of a record: got {', '.join(sorted(unknown))}")
    return {"step": step, "start_ns": start_ns, "end_ns": end_ns, **values}
