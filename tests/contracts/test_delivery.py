"""The windows of all nodes fit the queue of the broker, and every shipped broker has that queue."""

import re
from pathlib import Path

import pytest

from lockstep.contracts import delivery
from lockstep.contracts.delivery import window_of

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATIONS = (
    "deploy/compose/mosquitto.conf",
    "deploy/systemd/mosquitto.conf",
    "helm/lockstep/templates/_broker.tpl",
)


@pytest.mark.parametrize(
    ("nodes", "messages"), [(0, 64), (1, 64), (1250, 40), (5000, 10), (12_500, 4), (25_000, 2), (200_000, 2)]
)
def test_windows_share_half_of_the_queue(nodes, messages):
    """Up to 25,000 nodes; each has at least twice what it sends between two acknowledgements."""
    assert window_of(nodes)[0] == messages
    assert nodes > 25_000 or nodes * window_of(nodes)[0] <= delivery.BROKER_QUEUE_MESSAGES // 2
    assert nodes * window_of(nodes)[1] <= delivery.BROKER_QUEUE_BYTES // 2


@pytest.mark.parametrize("path", CONFIGURATIONS)
def test_the_shipped_brokers_queue_what_the_windows_are_shares_of(path):
    """In messages and in bytes, for each subscriber."""
    limits = dict(re.findall(r"^(max_queued_\w+) (\d+)$", (ROOT / path).read_text(), re.MULTILINE))
    assert limits == {
        "max_queued_messages": str(delivery.BROKER_QUEUE_MESSAGES),
        "max_queued_bytes": str(delivery.BROKER_QUEUE_BYTES),
    }
