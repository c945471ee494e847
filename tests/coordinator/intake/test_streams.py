"""Places in nodes' streams: in order, once, never acknowledged before they are settled and written."""

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.intake import streams as module
from coordinator.intake.streams import SETTLED, FrameVerdict, Receipt, StreamOffset, Streams
from lockstep.contracts.delivery import FrameHeader

STREAM = 77


def frame(sequence: int, records: int = 1, *, stream_id: int = STREAM) -> FrameHeader:
    return FrameHeader(stream_id, sequence, sequence, records)


def made(**known) -> Streams:
    streams = Streams("c1", 5, **known)
    for node in ("n1", "n2"):
        streams.announce(node, STREAM)
    return streams


def take(streams: Streams, sequence: int, node: str = "n1", **values) -> Receipt:
    verdict, receipt = streams.take(node, frame(sequence, **values))
    assert verdict is FrameVerdict.TAKEN
    assert receipt is not None
    receipt.outcomes = {SETTLED: 1}
    return receipt


def commit(streams: Streams) -> None:
    streams.committed(streams.settle())


def offset(streams: Streams, node: str = "n1") -> tuple[int, int]:
    acknowledgement = streams.announce(node, STREAM)
    assert acknowledgement is not None
    return acknowledgement.received, acknowledgement.committed


def test_frames_are_taken_in_order_and_once():
    """A frame before its turn is a gap, one after it a duplicate; neither moves the stream."""
    streams = made()
    take(streams, 1)
    assert streams.take("n1", frame(3)) == (FrameVerdict.GAP, None)
    assert streams.take("n1", frame(1)) == (FrameVerdict.DUPLICATE, None)
    take(streams, 2)
    take(streams, 3)
    assert offset(streams) == (3, 0)
    assert streams.frames == {"taken": 3, "duplicate": 1, "gap": 1, "ahead": 0, "refused": 0}


def test_a_frame_without_capacity_is_not_received_and_asked_for_later():
    """Its turn stays its turn; meanwhile its node is held, in every acknowledgement, and asked for nothing."""
    streams = made()
    take(streams, 1)
    assert streams.is_next("n1", frame(2))
    assert streams.take("n1", frame(2), has_capacity=False) == (FrameVerdict.AHEAD, None)
    assert streams.take("n1", frame(3), has_capacity=False) == (FrameVerdict.GAP, None)
    assert not streams.is_next("n1", frame(3))
    for answer in (streams.resend("n1", 1.0), streams.announce("n1", STREAM)):
        assert (answer.received, answer.resend, answer.hold) == (1, False, True)
    request = streams.resume("n1")
    assert (request.received, request.resend, request.hold) == (1, True, False)
    streams.take("n1", frame(2), has_capacity=False)
    take(streams, 2)
    assert not streams.announce("n1", STREAM).hold
    assert streams.frames["ahead"] == 2
    assert streams.resume("nobody") is None


def test_nothing_is_committed_before_all_before_it_is_settled_and_written():
    """One frame that waits holds back the offset, not what is received."""
    streams = made()
    first = take(streams, 1)
    take(streams, 2)
    first.hold()
    commit(streams)
    assert offset(streams) == (2, 0)
    first.settle()
    waiting = streams.settle()
    assert offset(streams) == (2, 0)
    streams.committed(waiting)
    assert offset(streams) == (2, 2)
    assert streams.ledger == {SETTLED: 2}


def test_a_commit_that_failed_is_covered_by_the_next_one():
    """What the store could not write is offered again."""
    streams = made()
    take(streams, 1)
    streams.failed(streams.settle())
    assert streams.settle().offsets["n1"] == StreamOffset(STREAM, 1)


def test_a_lost_frame_stands_for_all_that_was_dropped():
    """It jumps over the gap; one that overlaps with what was received would count records twice, and is asked for again."""
    streams = made()
    take(streams, 1)
    assert streams.take("n1", FrameHeader(STREAM, 1, 9, 40)) == (FrameVerdict.GAP, None)
    assert streams.take("n1", FrameHeader(STREAM, 2, 9, 40))[0] is FrameVerdict.TAKEN
    take(streams, 10)


def test_another_stream_of_a_node_begins_at_its_beginning():
    """A new spool is a new stream; receipts of the former one still count when they are settled."""
    streams = made()
    old = take(streams, 1)
    old.hold()
    assert streams.take("n1", frame(1, stream_id=78)) == (FrameVerdict.REFUSED, None)
    streams.announce("n1", 78)
    assert streams.take("n1", frame(1, stream_id=78))[0] is FrameVerdict.TAKEN
    assert streams.take("n1", frame(2)) == (FrameVerdict.REFUSED, None)
    assert SETTLED not in streams.settle().ledger
    old.settle()
    commit_ = streams.settle()
    assert commit_.ledger[SETTLED] == 1
    assert streams.settle().ledger[SETTLED] == 1


def test_a_restart_goes_on_where_the_store_stands():
    """Received falls back to committed: what was in memory only comes again."""
    streams = made()
    take(streams, 1)
    written = streams.settle()
    streams.committed(written)
    take(streams, 2)
    again = made(offsets=dict(written.offsets), ledger=dict(written.ledger))
    assert offset(again) == (1, 1)
    take(again, 2)
    assert again.settle().ledger == {SETTLED: 2}


def test_a_resend_is_asked_for_once_in_a_while():
    """Hundreds of frames behind a gap cause one request; one more when the gap stays, or another one opens."""
    streams = made()
    take(streams, 1)
    first = streams.resend("n1", 100.0)
    assert first is not None
    assert (first.received, first.resend) == (1, True)
    assert streams.resend("n1", 100.1) is None
    assert streams.resend("n1", 100.0 + module.RESEND_AFTER_S) is not None
    take(streams, 2)
    assert streams.resend("n1", 100.2) is not None
    assert streams.resend("unknown", 100.2) is None


def test_acknowledgements_are_due_where_a_position_moved():
    """Each change is acknowledged once, and all of them again after a reconnection."""
    streams = made()
    take(streams, 1)
    take(streams, 1, node="n2")
    assert {a.node for a in streams.acknowledgements()} == {"n1", "n2"}
    assert streams.acknowledgements() == []
    commit(streams)
    assert {(a.node, a.committed) for a in streams.acknowledgements()} == {("n1", 1), ("n2", 1)}
    streams.forget_acknowledgements()
    assert len(streams.acknowledgements()) == 2


def test_a_node_too_many_is_refused(monkeypatch):
    """Memory is bounded whatever names are invented; known nodes go on."""
    monkeypatch.setattr(module, "NODES_MAX", 2)
    streams = made()
    take(streams, 1)
    assert streams.announce("n3", STREAM) is None
    assert streams.take("n3", frame(1)) == (FrameVerdict.REFUSED, None)
    take(streams, 2)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 4), st.booleans(), st.booleans()), max_size=60))
def test_the_ledger_counts_every_sequence_once_over_any_deliveries_and_restarts(actions):
    """Whatever comes twice, early or after a crash: what is committed is a prefix, and each frame of it counted once."""
    streams, waiting = made(), []
    for sequence, settle_count, restarts, writes in actions:
        verdict, receipt = streams.take("n1", frame(sequence))
        if receipt is not None:
            assert verdict is FrameVerdict.TAKEN
            receipt.outcomes = {SETTLED: 1}
            receipt.hold()
            waiting.append(receipt)
        for own in waiting[:settle_count]:
            own.settle()
        del waiting[:settle_count]
        if writes:
            commit(streams)
        if restarts:
            stored = made()
            last = streams.settle() if writes else None
            if last is not None:
                stored = made(offsets=dict(last.offsets) or _offsets(streams), ledger=dict(last.ledger))
                streams, waiting = stored, []
    received, committed = offset(streams)
    assert committed <= received
    final = streams.settle()
    settled = final.offsets.get("n1", StreamOffset(STREAM, committed)).sequence
    assert final.ledger.get(SETTLED, 0) == settled


def _offsets(streams: Streams) -> dict[str, StreamOffset]:
    acknowledgement = streams.announce("n1", STREAM)
    assert acknowledgement is not None
    return {"n1": StreamOffset(STREAM, acknowledgement.committed)}
