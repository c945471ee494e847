"""The broker inside a process, as far as it is no other than MQTT's; the rest is in test_messaging.py."""

import asyncio

import pytest

from lockstep.serving.local_broker import LocalBroker
from tests.serving.sessions import Inbox, connected, until

pytestmark = pytest.mark.usefixtures("nothing_left")


async def test_nothing_is_delivered_within_a_call():
    """Publisher and handler never run inside each other, so neither needs to expect the other's changes."""
    broker, inbox = LocalBroker(), Inbox()
    async with connected(broker, "self", inbox) as session:
        await session.subscribe(["a"])
        assert session.send("a", b"sent")
        assert inbox.messages == []
        publishing = asyncio.create_task(session.publish("a", b"published"))
        assert inbox.messages == []
        await publishing
    assert [payload for _, payload in inbox.messages] == [b"sent", b"published"]


async def test_publishing_waits_until_the_handlers_have_returned():
    """So a publisher in a loop is as fast as its readers, and nothing piles up."""
    broker, inbox = LocalBroker(), Inbox()
    async with connected(broker, "reader", inbox) as reader, connected(broker, "writer") as writer:
        await reader.subscribe(["#"])
        for number in range(100):
            await writer.publish("a", b"%d" % number)
            assert len(inbox.messages) == number + 1
        assert broker.waiting_bytes == 0


async def test_what_waits_is_bounded_for_all_senders_together():
    """Each `send` returns false; what was accepted arrives."""
    broker, inbox = LocalBroker(), Inbox()
    async with (
        connected(broker, "reader", inbox) as reader,
        connected(broker, "a") as first,
        connected(broker, "b") as second,
    ):
        await reader.subscribe(["#"])
        await asyncio.sleep(0)
        accepted = 0
        while first.send("a", bytes(1000)):
            accepted += 1
        assert not second.send("b", b"")
        assert 1_000_000 < accepted * 1000 < 1_100_000
        await until(lambda: broker.waiting_bytes == 0)
        assert second.send("b", b"")
        await inbox.wait_for(accepted + 1)


async def test_a_session_that_ended_gets_nothing_more():
    """Not even what was published before its end."""
    broker, inbox = LocalBroker(), Inbox()
    async with connected(broker, "writer") as writer:
        async with connected(broker, "reader", inbox) as reader:
            await reader.subscribe(["#"])
            await asyncio.sleep(0)
            writer.send("a", b"")
        await writer.publish("a", b"")
    assert inbox.messages == []


async def test_a_session_that_ended_gets_no_retained_message():
    """Not even if it has just subscribed; and the broker keeps nothing of it."""
    broker, inbox = LocalBroker(), Inbox()
    async with connected(broker, "writer") as writer:
        await writer.publish("a", b"kept", retain=True)
        async with connected(broker, "reader", inbox) as reader:
            await reader.subscribe(["#"])
        for _ in range(3):
            await asyncio.sleep(0)
        assert inbox.messages == []
        assert list(broker._sessions) == ["writer"]


async def test_brokers_know_nothing_of_each_other():
    """Two machines' worth of services in one process, as tests have them."""
    inbox = Inbox()
    one, other = LocalBroker(), LocalBroker()
    async with connected(one, "reader", inbox) as reader, connected(other, "writer") as writer:
        await reader.subscribe(["#"])
        await writer.publish("a", b"", retain=True)
        await reader.publish("b", b"")
    assert inbox.messages == [("b", b"")]
