"""A reader of ring files for tests, straight from the contract."""

from dataclasses import dataclass
from pathlib import Path

from lockstep.contracts import ring as layout
from lockstep.contracts.blob import read_blob
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, RECORD_FIELDS, RECORD_STRUCT


@dataclass
class RingFile:
    header: layout.RingHeader
    head: int
    heartbeat_ns: int
    state: int
    failures: int
    records: list[dict[str, int]]
    torn: int
    groups: list | None
    answer: dict | None
    issues: list[tuple[int, int]]
    flags: int


def read_ring(path: Path) -> RingFile:
    """Return everything that a ring file says; torn slots are counted, not returned."""
    data = path.read_bytes()
    header = layout.unpack_header(data, where=str(path), file_bytes=len(data))
    words = memoryview(data).cast("Q")
    head = words[layout.WORD_HEAD]
    issues = words[layout.WORD_ISSUES : layout.WORD_ISSUES + layout.WORDS_PER_ISSUE_SLOT * layout.ISSUE_SLOTS]
    records, torn = [], 0
    for index in range(max(0, head - header.slot_count), head):
        offset = layout.SLOTS_OFFSET + index % header.slot_count * layout.SLOT_BYTES
        slot = layout.unpack_slot(data[offset : offset + layout.SLOT_BYTES])
        if slot is None or slot[0] != index:
            torn += 1
            continue
        records.append(dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(slot[1]), strict=True)))
    groups = read_blob(memoryview(data), layout.GROUPS_OFFSET, layout.GROUPS_BYTES)
    answer = read_blob(memoryview(data), layout.ANSWER_OFFSET, layout.ANSWER_BYTES)
    return RingFile(
        header,
        head,
        words[layout.WORD_HEARTBEAT],
        words[layout.WORD_STATE],
        words[layout.WORD_FAILURES],
        records,
        torn,
        groups[1] if groups else None,
        answer[1] if answer else None,
        list(zip(issues[::2], issues[1::2], strict=True)),
        words[layout.WORD_FLAGS],
    )


def unaccounted_ns(record: dict[str, int]) -> int:
    """Return step time less all its parts: 0 by contract."""
    return record["end_ns"] - record["start_ns"] - self_ns(record) - wait_ns(record)


def self_ns(record: dict[str, int]) -> int:
    return record["data_ns"] + record["compute_ns"] + record["host_ns"] + record["gc_ns"]


def wait_ns(record: dict[str, int]) -> int:
    return sum(record[f"{kind}_wait_ns"] for kind in DOMAIN_KINDS if record[f"{kind}_wait_ns"] != MISSING)
