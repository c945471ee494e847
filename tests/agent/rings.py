"""A reader of ring files for tests, straight from the contract: blocks of marks, and the steps that they are built to."""

from dataclasses import dataclass
from pathlib import Path

from lockstep.accounting.step_builder import StepBuilder
from lockstep.contracts import ring as layout
from lockstep.contracts.blob import read_blob
from lockstep.contracts.marks import BLOCK_BYTES, MarkBlock, unpack_block
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, RECORD_FIELDS, RECORD_STRUCT


@dataclass
class RingFile:
    """What a ring holds; `records` are the steps of its blocks, `builder` what has built them.

    `incomplete` has the numbers of the steps some of whose marks are lost.
    """

    header: layout.RingHeader
    heartbeat_ns: int
    state: int
    failures: int
    blocks: list[MarkBlock]
    torn: int
    groups: list | None
    answer: dict | None
    issues: list[tuple[int, int]]
    flags: int
    facts: dict | None
    builder: StepBuilder
    records: list[dict[str, int]]
    incomplete: list[int]

    @property
    def step_count(self) -> int:
        """Steps that have ended."""
        return len(self.records)


def read_ring(path: Path) -> RingFile:
    """Return everything that a ring file holds; torn blocks are counted, not returned."""
    data = path.read_bytes()
    header = layout.unpack_header(data, where=str(path), file_bytes=len(data))
    words = memoryview(data).cast("Q")
    issues = words[layout.WORD_ISSUES : layout.WORD_ISSUES + layout.WORDS_PER_ISSUE_SLOT * layout.ISSUE_SLOTS]
    slots = [data[at : at + BLOCK_BYTES] for at in range(layout.BLOCKS_OFFSET, len(data), BLOCK_BYTES)]
    blocks = sorted(filter(None, map(unpack_block, slots)), key=lambda block: block.sequence)
    torn = sum(any(slot) and unpack_block(slot) is None for slot in slots)
    groups = read_blob(memoryview(data), layout.GROUPS_OFFSET, layout.GROUPS_BYTES)
    answer = read_blob(memoryview(data), layout.ANSWER_OFFSET, layout.ANSWER_BYTES)
    facts = read_blob(memoryview(data), layout.FACTS_OFFSET, layout.FACTS_BYTES)
    builder = StepBuilder()
    built = [step for block in blocks for step in builder.add(block)]
    records = [dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(step.record), strict=True)) for step in built]
    return RingFile(
        header,
        words[layout.WORD_HEARTBEAT],
        words[layout.WORD_STATE],
        words[layout.WORD_FAILURES],
        blocks,
        torn,
        groups[1] if groups else None,
        answer[1] if answer else None,
        list(zip(issues[::2], issues[1::2], strict=True)),
        words[layout.WORD_FLAGS],
        facts[1] if facts else None,
        builder,
        records,
        [record["step"] for record, step in zip(records, built, strict=True) if step.is_incomplete],
    )


def unaccounted_ns(record: dict[str, int]) -> int:
    """Return step time less all its parts: 0 by contract."""
    return record["end_ns"] - record["start_ns"] - self_ns(record) - wait_ns(record)


def self_ns(record: dict[str, int]) -> int:
    return record["data_ns"] + record["compute_ns"] + record["host_ns"] + record["gc_ns"]


def wait_ns(record: dict[str, int]) -> int:
    return sum(record[f"{kind}_wait_ns"] for kind in DOMAIN_KINDS if record[f"{kind}_wait_ns"] != MISSING)
