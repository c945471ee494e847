"""What is measured is what it is called: whole steps, memory counted once, missed budgets reported."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import detect_cost
from benchmarks.detect_cost import (
    STAGES,
    Receiver,
    SocketTransport,
    Spent,
    array_bytes,
    batches_of,
    measure,
    recorded,
    report,
    stream_of,
)
from coordinator.intake.timeline import StepTimeline
from coordinator.settings.policy import Policy


@pytest.fixture
def receiver():
    """Return the way into a timeline of eight ranks."""
    timeline = StepTimeline(Policy().timeline)
    timeline.know(list(range(8)))
    made = Receiver(timeline)
    yield made
    assert sum(timeline.rejected.values()) == 0
    made.close()


@pytest.mark.parametrize("all_columns", [False, True])
def test_a_steps_stream_makes_the_whole_step(receiver, all_columns):
    """Every rank is there, nothing is refused, and the account is that of the recording."""
    recording = recorded(8, slow=1)
    for step in (0, 1):
        (row,) = receiver.receive(stream_of(batches_of(recording, step, step=step, all_columns=all_columns), step + 1))
        assert row.present.all()
        np.testing.assert_allclose(row.self_seconds, recording.own[step], rtol=1e-4)
        assert row.moved["dp"].tolist() == recording.moved["dp"].tolist()
    assert min(receiver.spent_ms[stage] for stage in STAGES if stage != "detect") > 0


def test_messages_cut_anywhere_are_received_whole_and_acknowledged(receiver, monkeypatch):
    """A read of the socket ends in the middle of a packet; its rest comes with the next one."""
    monkeypatch.setattr(detect_cost, "_READ_BYTES", 100)
    recording = recorded(8, slow=0)
    answers = []
    write = SocketTransport.write
    monkeypatch.setattr(SocketTransport, "write", lambda self, data: (answers.append(data), write(self, data)))
    (row,) = receiver.receive(stream_of(batches_of(recording, 0, step=0), 1))
    assert row.present.all()
    assert b"".join(answers) == bytes.fromhex("40020001")


def test_arrays_are_counted_once_and_with_what_they_keep_alive():
    """A view counts as the array that it belongs to, wherever and however often it is met."""
    table = np.zeros((4, 100), dtype=np.float32)
    plain = np.zeros(10, dtype=bool)
    inner = SimpleNamespace(view=table[1], again=[table[2], plain], more={"x": (plain,)})
    inner.itself = inner
    assert array_bytes(inner) == table.nbytes + plain.nbytes
    assert array_bytes(SimpleNamespace(nothing=None, text="text", number=3)) == 0


def test_a_missed_budget_is_printed(monkeypatch, capsys):
    """By the median, not by single steps; a case without a budget misses none."""
    monkeypatch.setattr(detect_cost, "TOTAL_BUDGET_MS", {8: 5.0})
    stages = {"transport": [1.0] * 3, "decode": [1.0] * 3, "ingest": [1.0, 1.0, 9.0], "detect": [1.5, 1.5, 9.0]}
    spent = Spent(stage_ms=stages, wall_ms=[1.0], add_ms=[0.1])
    assert not report(8, "healthy", spent, has_budget=True)
    spent.stage_ms["detect"] = [1.0, 2.5, 2.5]
    assert report(8, "healthy", spent, has_budget=True)
    assert "5.50/5!" in capsys.readouterr().out
    assert not report(8, "all columns", spent, has_budget=False)


def test_steps_after_warm_up_are_measured(monkeypatch):
    """As many as are reported, with the last rows counted apart from the state."""
    monkeypatch.setattr(detect_cost, "STEPS", 30)
    spent = measure(8, slow=1, all_columns=False)
    measured = 30 - detect_cost.WARM_UP_STEPS
    assert [len(each) for each in (*spent.stage_ms.values(), spent.wall_ms, spent.total_ms)] == [measured] * 6
    assert spent.state_bytes > 0
    assert spent.shown_bytes > 0
    assert spent.restart_ms > 0
