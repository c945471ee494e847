"""What is measured is a whole run: every node's ranks and groups, and budgets that can be missed."""

from dataclasses import replace

import pytest

from benchmarks import announce_cost
from benchmarks.announce_cost import announcements, forged, main, measure, report, sent_by, shapes
from coordinator.intake.topology import Membership
from lockstep.contracts.codec import decode_as
from lockstep.contracts.domains import from_degrees
from lockstep.contracts.messages import NodeAlive, NodeAnnouncement


@pytest.mark.parametrize("case", shapes(16))
def test_the_announcements_make_the_whole_job(case):
    """All ranks, and the groups that the degrees make; the heartbeats are those of these announcements."""
    degrees = shapes(16)[case]
    sent, beats = sent_by(list(announcements(16, degrees)))
    membership = Membership()
    for topic, payload in sent:
        membership.apply_announcement(decode_as(NodeAnnouncement, topic, payload), announce_cost._NOW_S)
    assert membership.is_complete
    expected = {(domain.kind, domain.ranks) for domain in from_degrees(degrees, 128).domains}
    assert {(domain.kind, domain.ranks) for domain in membership.topology().domains} == expected
    for topic, payload in beats:
        message = decode_as(NodeAlive, topic, payload)
        membership.apply_heartbeat(message.node, message.runs[0], announce_cost._NOW_S + 10)
    assert membership.last_seen_unix_s == announce_cost._NOW_S + 10


def test_a_missed_budget_is_reported(capsys):
    """Memory or time; a case without a budget misses none."""
    cost = measure(*sent_by([forged()]))
    assert not report(1, "forged", cost, announce_cost.FORGED_BUDGET_MB)
    assert report(1, "forged", replace(cost, held_mb=1.0), announce_cost.FORGED_BUDGET_MB)
    assert "1.00/0.1!" in capsys.readouterr().out
    assert report(1, "forged", replace(cost, apply_ms=1e6), announce_cost.FORGED_BUDGET_MB)
    assert not report(1, "forged", replace(cost, apply_ms=1e6), None)


def test_the_exit_code_is_the_verdict(monkeypatch):
    """A budget that nothing can meet fails the whole benchmark."""
    assert main(["--nodes", "8"]) == 0
    monkeypatch.setattr(announce_cost, "FORGED_BUDGET_MB", 0.0)
    assert main(["--nodes", "8"]) == 1
