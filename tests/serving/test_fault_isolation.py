"""A surprise costs the input that it happened to: counted, logged once a minute, and left alone when it comes back."""

import asyncio
import logging

import pytest

from lockstep.contracts.errors import MalformedError
from lockstep.serving.fault_isolation import FAILED, QUARANTINED, REFUSED, FaultIsolation


def fail(isolation: FaultIsolation, now_s: float, *, key: str = "a", error: BaseException | None = None) -> None:
    with isolation.guard("run", key, now_s):
        raise error or OverflowError("too large")


def isolation(**given) -> FaultIsolation:
    return FaultIsolation(("run", "ring"), **given)


def test_a_failure_ends_the_block_and_nothing_else(caplog):
    """What comes behind the block goes on; the failure is counted by kind."""
    made = isolation()
    fail(made, 0.0)
    assert made.dropped["run", FAILED] == 1
    assert made.dropped["ring", FAILED] == 0
    (record,) = caplog.records
    assert "run a: got OverflowError: too large, expected no exception" in record.message
    assert "in fail" in record.message  # where it was raised


def test_a_block_that_raises_nothing_is_counted_as_nothing():
    """And its value is the block's own affair."""
    made = isolation()
    with made.guard("run", "a", 0.0):
        value = 5
    assert value == 5
    assert sum(made.dropped.values()) == 0


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(2)])
def test_cancellation_and_the_end_of_the_process_pass_through(error):
    """Shutting down is no surprise."""
    with pytest.raises(type(error)):
        fail(isolation(), 0.0, error=error)


def test_failures_in_a_row_bring_a_quarantine_and_success_ends_the_row():
    """Two failures, a success and two failures are no row of three."""
    made = isolation(failures_max=3, quarantine_s=10.0)
    for now_s in (0.0, 1.0):
        fail(made, now_s)
    with made.guard("run", "a", 2.0):
        pass
    for now_s in (3.0, 4.0):
        fail(made, now_s)
    assert made.admits("run", "a", 5.0)
    fail(made, 5.0)
    assert not made.admits("run", "a", 5.0)
    assert made.dropped["run", QUARANTINED] == 1


def test_a_quarantine_keeps_one_key_away_and_ends():
    """Another run, and a ring of the same name, are not concerned; after the time one more failure is enough."""
    made = isolation(failures_max=2, quarantine_s=10.0)
    fail(made, 0.0)
    fail(made, 0.0)
    assert made.admits("run", "b", 1.0)
    assert made.admits("ring", "a", 1.0)
    assert not made.admits("run", "a", 9.9)
    assert list(made.quarantined("run", 9.9)) == ["a"]
    assert made.admits("run", "a", 10.0)
    assert list(made.quarantined("run", 10.0)) == []
    fail(made, 10.0)
    assert not made.admits("run", "a", 19.9)


def test_a_quarantine_without_end_lasts_until_the_key_is_forgotten():
    """As for a ring: a file with another inode is another ring."""
    made = isolation(failures_max=1)
    fail(made, 0.0)
    assert not made.admits("run", "a", 1e9)
    made.forget("run", "a")
    assert made.admits("run", "a", 1e9)


def test_what_a_peer_sent_is_refused_and_brings_no_quarantine(caplog):
    """A node that sends nonsense must not take its run away from the others."""
    made = isolation(failures_max=1)
    for _ in range(5):
        fail(made, 0.0, error=MalformedError("step", where="announcement", got=-1, expected="0 or more"))
    assert made.dropped["run", REFUSED] == 5
    assert made.dropped["run", FAILED] == 0
    assert made.admits("run", "a", 0.0)
    (record,) = caplog.records
    assert "step in announcement: got -1, expected 0 or more" in record.message


def test_the_log_stays_bounded(caplog):
    """A thousand failures a second of a thousand runs are a handful of lines a minute, which count the others."""
    caplog.set_level(logging.INFO)
    made = isolation(failures_max=3, quarantine_s=30.0)
    for second in range(120):
        for run in range(1000):
            fail(made, float(second), key=f"run-{run}", error=ValueError("line\nbreak" + "x" * 10_000))
    assert len(caplog.records) <= 2 * 2 * 2  # minutes, kinds of lines, and one more of each for the edges
    assert max(len(record.message) for record in caplog.records) < 4000
    assert "were not logged)" in caplog.records[-1].message
    assert "\nbreak" not in caplog.text


def test_the_memory_of_failures_is_bounded():
    """Invented names push each other out."""
    made = isolation(failures_max=1)
    for run in range(10_000):
        fail(made, 0.0, key=f"run-{run}")
    assert len(list(made.quarantined("run", 0.0))) == 4096
    assert not made.admits("run", "run-9999", 0.0)


def test_a_clock_that_steps_back_ends_quarantine_and_silence(caplog):
    """Otherwise a corrected clock would leave a run alone for as long as it was wrong."""
    made = isolation(failures_max=1, quarantine_s=60.0)
    fail(made, 1e6)
    fail(made, 0.0, key="b")
    assert made.admits("run", "a", 0.0)
    assert len(caplog.records) == 4
