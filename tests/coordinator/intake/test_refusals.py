"""Refused announcements are counted one by one and logged once a minute."""

import logging

from coordinator.intake.refusals import Refusals
from lockstep.contracts.metrics import REFUSAL_REASONS


def test_every_reason_is_there_from_the_start():
    """A counter that begins with its first refusal shows no increase."""
    assert dict(Refusals().counts) == dict.fromkeys(REFUSAL_REASONS, 0)


def test_a_flood_is_one_line_a_minute(caplog):
    """With the number of each reason since the line before, and the latest of each."""
    refusals = Refusals()
    with caplog.at_level(logging.WARNING):
        for now_s in range(120):
            for rank in range(100):
                refusals.add("rank_claimed", f"rank {rank} by node x")
            if now_s == 70:
                refusals.add("run", "run y")
            refusals.log(float(now_s))
    first, second = [record.getMessage() for record in caplog.records]
    assert first == "announcements refused: 100 for reason rank_claimed, most recently rank 99 by node x"
    assert second == "announcements refused: 6000 for reason rank_claimed, most recently rank 99 by node x"
    assert refusals.counts["rank_claimed"] == 12_000
    caplog.clear()
    refusals.log(120.0)
    assert "1 for reason run, most recently run y" in caplog.text
    caplog.clear()
    refusals.log(1000.0)
    assert not caplog.records
