"""The recipes of docs/security.md, executed: each node gets in as itself and as no one else."""

import pytest

from benchmarks.security import broker as attempts
from lockstep.contracts import topics
from lockstep.serving.messaging import BrokerError, PublishRefusedError
from lockstep.serving.mqtt import MqttBroker
from tests.serving.sessions import connected
from tests.support.secured_broker import COORDINATOR, SecuredBroker

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("title", ["Passwords", "Certificates"])
async def test_a_credential_is_good_for_its_node(tmp_path, title):
    """With the shipped configuration and access rules; another node's topics are refused."""
    broker = SecuredBroker(tmp_path, ["n1", "n2"], title)
    broker.server.start()
    try:
        for user, own in (
            ("n1", topics.run_topic("a", topics.STEPS, "n1")),
            ("n2", topics.node_topic("n2", topics.ALIVE)),
            (COORDINATOR, topics.node_topic("n1", topics.ACK)),
        ):
            async with connected(MqttBroker(broker.config(user)), f"test-{user}") as session:
                await session.publish(own, b"")
                for other in ("n0", "n3"):
                    with pytest.raises(PublishRefusedError, match="not authorized"):
                        await session.publish(topics.run_topic("a", topics.STEPS, other), b"")
                await session.close()
    finally:
        broker.server.stop()


async def test_a_password_is_of_no_use_for_another_node(tmp_path):
    """Nor is none at all."""
    broker = SecuredBroker(tmp_path, ["n1", "n2"], "Passwords")
    (tmp_path / "n1.password").write_text((tmp_path / "n2.password").read_text())
    broker.server.start()
    try:
        with pytest.raises(BrokerError, match="not authorized"):
            await connected(MqttBroker(broker.config("n1")), "test").__aenter__()
    finally:
        broker.server.stop()


def test_no_attempt_at_the_broker_succeeds(capsys):
    """`make security`: what strangers, other nodes and other tenants try is refused, and counted where the page states."""
    assert attempts.main() == 0, capsys.readouterr().out
    capsys.readouterr()
