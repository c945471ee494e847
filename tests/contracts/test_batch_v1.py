"""Exporters of the version before are understood: the same records come out, and lies in them are refused by name."""

from dataclasses import replace

import msgspec
import pytest

from lockstep.contracts import codec, topics
from lockstep.contracts.batch_v1 import ColumnBatch
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.records import MISSING
from lockstep.contracts.rows import split_columns

STEPS = topics.run_topic("r", topics.STEPS, "n")


def packed(size, *values):
    return b"".join(value.to_bytes(size, "little", signed=True) for value in values)


OLD = ColumnBatch(
    run="r",
    node="n",
    sequence=7,
    sent_unix_ns=9,
    count=2,
    ranks=packed(4, 3, -1),
    columns={"step": packed(8, 5, 6), "a,b": packed(8, 0, 0), "tokens": packed(8, MISSING, 1 << 40)},
    lost_records=4,
)


def decoded(batch):
    return codec.decode(STEPS, msgspec.msgpack.encode(batch))


def test_the_same_records_come_out():
    """Ranks and values, signs and what is missing; a column that nobody knows goes."""
    batch = decoded(OLD)
    assert (batch.run, batch.node, batch.sequence, batch.sent_unix_ns) == ("r", "n", 7, 9)
    assert (batch.count, batch.lost_records, batch.version) == (2, 4, 2)
    assert split_columns(batch.layout, batch.records) == {
        "rank": packed(8, 3, -1),
        "step": OLD.columns["step"],
        "tokens": OLD.columns["tokens"],
    }


def test_a_batch_without_records_comes_out():
    """An exporter that has nothing to send still says what it lost."""
    assert decoded(replace(OLD, count=0, ranks=b"", columns={})).lost_records == 4


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"run": "other"}, "run"),
        ({"node": "other"}, "node"),
        ({"count": 10**9}, "count"),
        ({"count": -1}, "count"),
        ({"ranks": b"1234"}, "ranks bytes"),
        ({"columns": {"step": b"1234"}}, "column 'step' bytes"),
        ({"columns": {"step": 5}}, "message"),
    ],
)
def test_lies_are_refused_by_name(changed, what):
    """Topic, lengths and limits are checked as they are in the present form."""
    with pytest.raises(MalformedError) as caught:
        decoded(replace(OLD, **changed))
    assert caught.value.what == what


def test_every_truncation_is_refused():
    """A payload cut anywhere, or with bytes behind it, is refused."""
    payload = msgspec.msgpack.encode(OLD)
    for cut in [payload[:i] for i in range(len(payload))] + [payload + b"\0"]:
        with pytest.raises(MalformedError):
            codec.decode(STEPS, cut)
