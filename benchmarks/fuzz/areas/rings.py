"""Ring files, as hostile ranks or damaged memory may leave them, through the exporter's reader into its messages."""

import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.fuzz import mutate, seeds
from benchmarks.fuzz.harness import ACCEPTED, SurpriseError
from benchmarks.fuzz.node import node_snapshot
from exporter.counts import ExporterCounters
from exporter.exposing.collector import NodeCollector
from exporter.reading.heartbeats import run_heartbeat
from exporter.reading.rings import RingReading, Rings
from exporter.reading.silence import announcement, watch
from lockstep.contracts import ring as layout
from lockstep.contracts import topics
from lockstep.contracts.blob import HEAD_BYTES
from lockstep.contracts.codec import Message, decode, encode
from lockstep.contracts.marks import BLOCK_BYTES, OTHER_THREAD, MarkBlock, MarkKind, pack_block
from lockstep.contracts.paths import ring_path
from lockstep.serving.exposition import render
from tests.support.mark_ring import BlockMaker, Mark, StepMarks, wanted_step

_WORLD, _BLOCKS = 128, 16
_RANKS = 4  # at first; others come and go
_FILES_MAX = 12  # at a time: more only take longer
_SECOND_NS = 10**9
_LOOK_SHARE = 0.01
_WORDS = (
    *range(layout.WORD_HEARTBEAT, layout.WORD_HELD + 1),
    *range(layout.WORD_ISSUES, layout.WORD_ISSUES + 4 * layout.WORDS_PER_ISSUE_SLOT),
)
_STEP_NS = 10**9 // 4
_WANTED = ("data_ns", "compute_ns", "dp_wait_ns", "tokens")
_KIND = 1
_MARK_FIELDS = ((0, 64), (0, 16), (0, 16), (0, 32), (-(1 << 63), 64))
"""Least value and bits of each field of a mark."""
_REGIONS = {
    layout.ANSWER_OFFSET: (layout.ANSWER_BYTES, seeds.ANSWER_JSON),
    layout.GROUPS_OFFSET: (layout.GROUPS_BYTES, seeds.GROUPS_JSON),
    layout.FACTS_OFFSET: (layout.FACTS_BYTES, seeds.FACTS_JSON),
}


class FuzzedRing:
    """The bytes of one rank's ring, valid until something changes them."""

    def __init__(self, rank: int, attempt: int) -> None:
        self.header = layout.RingHeader(
            rank=rank,
            local_rank=rank,
            world_size=_WORLD,
            pid=1,
            attempt=attempt,
            clock_offset_ns=seeds.UNIX_NS,
            hostname="host-1",
            block_count=_BLOCKS,
        )
        self.data = bytearray(self.header.file_bytes)
        packed = layout.pack_header(self.header)
        self.data[: len(packed)] = packed
        self._steps, self._maker = StepMarks(), BlockMaker()
        self._generation = 0
        self.word(layout.WORD_STATE, layout.STATE_RUNNING)

    def word(self, word: int, value: int) -> None:
        """Store a word."""
        struct.pack_into("<Q", self.data, 8 * word, value % (1 << 64))

    def step(self, random: Random) -> None:
        """Store the marks of the next step, some of them changed, in blocks of which some are changed."""
        step = self._steps.step
        values = {name: seeds.RECORD[name] for name in _WANTED}
        marks = self._steps.marks(wanted_step(step, step * _STEP_NS, (step + 1) * _STEP_NS, **values))
        if random.random() < 0.3:
            at = random.randrange(len(marks))
            marks[at] = _changed_mark(random, marks[at])
        for block in self._maker.blocks(marks):
            self.block(_changed_block(random, block) if random.random() < 0.1 else block)

    def block(self, block: MarkBlock) -> None:
        """Store a block."""
        data = pack_block(block)
        offset = layout.BLOCKS_OFFSET + block.sequence % _BLOCKS * BLOCK_BYTES
        self.data[offset : offset + len(data)] = data

    def blob(self, offset: int, payload: bytes) -> None:
        """Store a payload whole, whatever it is."""
        capacity = _REGIONS[offset][0]
        payload = payload[: capacity - HEAD_BYTES]
        self._generation += 1
        crc = zlib.crc32(payload, zlib.crc32(struct.pack("<QI", self._generation, len(payload))))
        head = struct.pack("<QII", self._generation, len(payload), crc)
        self.data[offset : offset + HEAD_BYTES + len(payload)] = head + payload


class RingFiles:
    """One run of four ranks; in each case one ring changes, and the exporter reads all of them."""

    name = "rings"

    def begin(self, _: Random) -> None:
        """Make a directory of valid rings, and a reader."""
        shared = Path("/dev/shm")  # noqa: S108  (where rings are)
        self._root = Path(tempfile.mkdtemp(prefix="lockstep-fuzz-", dir=shared if shared.is_dir() else None))
        self._directory = self._root / seeds.RUN
        self._directory.mkdir()
        self._counts = ExporterCounters()
        self._rings = Rings(self._root, self._counts, {})
        self._now_ns = 10**12
        self._surprises: list[BaseException] = []
        self._listen()
        self._written = {rank: self._fresh(rank) for rank in range(_RANKS)}

    def close(self) -> None:
        """Close and remove everything."""
        self._rings.close()
        shutil.rmtree(self._root)

    def run(self, randoms: Sequence[Random]) -> Iterator[str | BaseException]:
        """Change one ring in each case."""
        for random in randoms:
            before = dict(self._counts.rejected)
            try:
                self._change(random)
                self._read(random)
            except Exception as error:  # noqa: BLE001  (whatever it is, it is the finding)
                yield error
                continue
            if self._surprises:
                yield self._surprises.pop()
                self._surprises.clear()
            else:
                refused = [kind for kind, count in self._counts.rejected.items() if count > before[kind]]
                yield refused[0] if refused else ACCEPTED

    def _fresh(self, rank: int) -> FuzzedRing:
        ring = FuzzedRing(rank, self._now_ns)
        for offset, (_, value) in _REGIONS.items():
            ring.blob(offset, mutate.as_json(Random(0), value))  # noqa: S311
        self._write(ring)
        return ring

    def _restart(self, random: Random) -> None:
        """Begin another attempt of a rank, known or not; another rank may end or go."""
        rank = random.choice((random.choice(list(self._written)), random.randrange(_WORLD)))
        self._written[rank] = self._fresh(rank)
        other = random.choice(list(self._written))
        if random.random() < 0.3:
            self._written[other].word(layout.WORD_STATE, layout.STATE_FINISHED)
            self._write(self._written[other], in_place=True)
            self._read(random)
        if other != rank and (random.random() < 0.3 or len(self._written) > _FILES_MAX):
            self._written.pop(other)
            ring_path(self._directory, other).unlink(missing_ok=True)

    def _write(self, ring: FuzzedRing, data: bytes | None = None, *, in_place: bool = False) -> None:
        path = ring_path(self._directory, ring.header.rank)
        if in_place and path.is_file():
            with path.open("r+b") as file:
                file.write(ring.data if data is None else data)
                file.truncate()
            return
        temporary = path.with_name(f".{path.name}")
        temporary.write_bytes(ring.data if data is None else data)
        temporary.replace(path)

    def _change(self, random: Random) -> None:
        self._now_ns += random.choice((_SECOND_NS // 5, _SECOND_NS, 30 * _SECOND_NS, 0))
        kind = random.random()
        if kind < 0.10:
            self._restart(random)
            return
        rank = random.choice(list(self._written))
        ring = self._written[rank]
        ring.word(layout.WORD_HEARTBEAT, self._now_ns)
        if kind < 0.30:
            for _ in range(random.choice((1, 2, 20))):
                ring.step(random)
        elif kind < 0.45:
            ring.word(random.choice(_WORDS), random.choice(mutate.INTEGERS) + random.choice((0, 1, -1)))
        elif kind < 0.75:
            offset = random.choice(list(_REGIONS))
            value = mutate.changed_value(random, _REGIONS[offset][1], random.choice((1, 1, 2, 4)))
            payload = mutate.as_json(random, value)
            ring.blob(offset, mutate.changed_bytes(random, payload) if random.random() < 0.2 else payload)
        else:
            self._damage(random, ring)
            return
        self._write(ring, in_place=random.random() < 0.9)

    def _damage(self, random: Random, ring: FuzzedRing) -> None:
        """Write other bytes than a ring's in its place; the ring itself stays as it was."""
        path = ring_path(self._directory, ring.header.rank)
        match random.randrange(6):
            case 0:
                data = mutate.changed_bytes(random, bytes(ring.data[: layout.WORDS_OFFSET]))
                self._write(ring, (data + bytes(ring.data[layout.WORDS_OFFSET :]))[: len(ring.data)])
            case 1:
                self._write(ring, mutate.changed_bytes(random, bytes(ring.data), random.choice((1, 8))), in_place=True)
            case 2:
                with path.open("r+b") as file:
                    file.truncate(random.choice((0, 100, 600, layout.BLOCKS_OFFSET, len(ring.data) - 1, 5 << 20)))
            case 3:
                path.unlink()
            case 4:
                path.unlink()
                random.choice((path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")))()
            case _:
                self._write(ring, random.randbytes(random.choice((0, 64, 4096))), in_place=random.random() < 0.5)
        if not path.is_file() or path.is_symlink():
            try:
                self._read(random)
            finally:
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
                self._write(ring)

    def _read(self, random: Random) -> None:
        """Do what a tick does, as far as rings go, and check that a coordinator takes what comes of it."""
        self._rings.scan(self._now_ns)
        for reading in self._rings.read():
            self._send_answer(reading)
        for run in (*self._rings.runs.values(), *self._rings.take_gone()):
            watch(run, self._now_ns)
            _check(topics.run_topic(run.name, topics.ANNOUNCE, seeds.NODE), announcement(run, seeds.NODE))
        heartbeats = [run_heartbeat(run, self._now_ns) for run in self._rings.runs.values()]
        _check(topics.alive_topic(seeds.NODE), replace(seeds.ALIVE, runs=heartbeats))
        self._rings.offsets()
        if random.random() < _LOOK_SHARE:
            self._look()

    def _send_answer(self, reading: RingReading) -> None:
        if reading.answer is not None:
            answer = replace(reading.answer, run=reading.run.name, node=seeds.NODE, rank=reading.rank)
            _check(topics.run_topic(reading.run.name, topics.ANSWER, seeds.NODE), answer)

    def _look(self) -> None:
        snapshot = node_snapshot(self._rings, self._counts, self._now_ns)
        render(NodeCollector(snapshot), "openmetrics").decode()

    def _listen(self) -> None:
        isolation = self._rings.isolation
        original = isolation.fail

        def fail(kind: str, key: str, now_s: float, error: Exception) -> None:
            original(kind, key, now_s, error)
            isolation.succeed(kind, key)  # no quarantine: the next case wants its turn
            self._surprises.append(error)

        isolation.fail = fail  # type: ignore[method-assign]


def _check(topic: str, message: Message) -> None:
    """Refuse a message that its receiver refuses, or that comes back as another one."""
    if decode(topic, encode(message)) != message:
        raise SurpriseError(f"{topic}: what was sent is not what came back")


def _changed_mark(random: Random, mark: Mark) -> Mark:
    """Return a mark with another value in one of its fields, or of another kind."""
    values = list(mark)
    at = random.randrange(len(values))
    if at == _KIND and random.random() < 0.7:
        values[at] = random.choice([int(kind) for kind in MarkKind]) | random.choice((0, OTHER_THREAD))
    else:
        low, bits = _MARK_FIELDS[at]
        values[at] = (random.choice(mutate.INTEGERS) - low) % (1 << bits) + low
    time_ns, kind, detail, subject, argument = values
    return time_ns, kind, detail, subject, argument


def _changed_block(random: Random, block: MarkBlock) -> MarkBlock:
    """Return a block with another value in its header, as whole as before."""
    name = random.choice(("sequence", "position", "backward_ends", "optimizer_ends", "step_ends"))
    near = getattr(block, name) + random.choice((-1, 1, 7, 40))
    return replace(block, **{name: random.choice((near, random.choice(mutate.INTEGERS))) % (1 << 64)})
