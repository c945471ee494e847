import numpy as np

from exporter.sending import batches
from exporter.sending.batches import Batcher
from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.limits import MESSAGE_MAX_BYTES
from lockstep.contracts.records import MISSING
from tests.exporter.conftest import record
from tests.support.batches import columns_of, ranks_of


def table(*records: list[int]) -> np.ndarray:
    return np.array(records, dtype=np.int64)


def test_a_batch_carries_the_measured_columns_only():
    """Values are named by field; a field that is missing throughout is left out."""
    batcher = Batcher("n")
    batcher.add("run", 3, table(record(0), record(1, tokens=5)))
    batcher.add("run", 4, table(record(0)))
    (batch,) = batcher.take(1, 2)
    assert (batch.count, batch.sequence, batch.lost_records, batch.sent_unix_ns) == (3, 0, 2, 1)
    assert ranks_of(batch).tolist() == [3, 3, 4]
    assert columns_of(batch)["step"].tolist() == [0, 1, 0]
    assert columns_of(batch)["tokens"].tolist() == [MISSING, 5, MISSING]
    assert "tp_wait_ns" not in columns_of(batch)
    assert decode(topics.run_topic("run", topics.STEPS, "n"), encode(batch)) == batch


def test_sequences_count_per_run():
    """Each message of a run has the next number; runs do not share them, and nothing gathered sends nothing."""
    batcher = Batcher("n")
    seen = []
    for _ in range(3):
        batcher.add("a", 0, table(record(0)))
        batcher.add("b", 0, table(record(0)))
        seen += [(batch.run, batch.sequence) for batch in batcher.take(0, 0)]
    assert seen == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert batcher.take(0, 0) == []


def test_the_largest_batch_fits_a_message():
    """With every column present, a full batch stays within what a receiver takes, and the rest goes into a second one."""
    batcher = Batcher("n" * 128)
    records = np.ones((batches.RECORDS_MAX + 1, len(record(0))), dtype=np.int64)
    batcher.add("r" * 128, 0, records)
    assert batcher.is_full
    first, second = batcher.take(0, 0)
    assert (first.count, second.count, second.sequence) == (batches.RECORDS_MAX, 1, 1)
    assert len(encode(first)) <= MESSAGE_MAX_BYTES
