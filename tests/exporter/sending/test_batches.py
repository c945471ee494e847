import numpy as np

from exporter.sending import batches
from exporter.sending.batches import Batcher
from lockstep.contracts import topics
from lockstep.contracts.codec import decode, encode
from lockstep.contracts.limits import MESSAGE_MAX_BYTES
from lockstep.contracts.messages import LAPPED, TORN
from lockstep.contracts.records import MISSING, RECORD_FIELDS
from tests.exporter.conftest import record, table
from tests.support.batches import columns_of, ranks_of


def test_a_batch_carries_the_measured_columns_only():
    """Values are named by field; a field that is missing throughout is left out."""
    batcher = Batcher("n")
    batcher.add("run", 3, table(record(0), record(1, tokens=5)))
    batcher.add("run", 4, table(record(0)))
    (batch,) = batcher.take(1)
    assert (batch.count, batch.sent_unix_ns, batch.lost) == (3, 1, {})
    assert ranks_of(batch).tolist() == [3, 3, 4]
    assert columns_of(batch)["step"].tolist() == [0, 1, 0]
    assert columns_of(batch)["tokens"].tolist() == [MISSING, 5, MISSING]
    assert "tp_wait_ns" not in columns_of(batch)
    assert decode(topics.run_topic("run", topics.STEPS, "n"), encode(batch)) == batch


def test_each_run_has_its_own_batch_and_nothing_sends_nothing():
    """Runs share no message; without records and losses there is none."""
    batcher = Batcher("n")
    batcher.add("a", 0, table(record(0)))
    batcher.add("b", 0, table(record(0)))
    assert [batch.run for batch in batcher.take(0)] == ["a", "b"]
    assert batcher.take(0) == []


def test_losses_are_sent_once_with_or_without_records():
    """They belong to a run and have a reason; a batch may carry nothing else."""
    batcher = Batcher("n")
    batcher.add("a", 0, table(record(0)))
    batcher.add_lost("a", LAPPED, 3)
    batcher.add_lost("b", TORN, 1)
    batcher.add_lost("b", TORN, 1)
    first, second = batcher.take(7)
    assert (first.run, first.count, first.lost) == ("a", 1, {LAPPED: 3})
    assert (second.run, second.count, second.records, second.lost) == ("b", 0, b"", {TORN: 2})
    assert decode(topics.run_topic("b", topics.STEPS, "n"), encode(second)) == second
    batcher.add("a", 0, table(record(0)))
    assert [batch.lost for batch in batcher.take(8)] == [{}]


def test_the_largest_batch_fits_a_message():
    """With every column present, a full batch stays within what a receiver takes, and the rest goes into a second one."""
    batcher = Batcher("n" * 128)
    records = np.ones((batches.RECORDS_MAX + 1, len(RECORD_FIELDS)), dtype=np.int64)
    batcher.add("r" * 128, 0, records)
    batcher.add_lost("r" * 128, LAPPED, 2**63 - 1)
    batcher.add_lost("r" * 128, TORN, 2**63 - 1)
    first, second = batcher.take(0)
    assert (first.count, second.count, second.lost) == (batches.RECORDS_MAX, 1, {})
    assert len(encode(first)) <= MESSAGE_MAX_BYTES
