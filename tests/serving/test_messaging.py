"""What every broker must do, held by the one of MQTT on a real mosquitto and by the one inside the process."""

import asyncio
import itertools
import random
import time

import pytest

from lockstep.serving import local_broker, mqtt, mqtt_session
from lockstep.serving.messaging import BrokerError, PublishRefusedError, Will, backoff_seconds
from tests.serving.sessions import Inbox, connected, fence, open_files, until

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_backoff_doubles_is_capped_and_jittered():
    """Half of each wait is chance; none is longer than the cap."""

    def wait(failures, jitter):
        return backoff_seconds(failures, jitter, first_seconds=0.2, longest_seconds=15.0)

    assert wait(1, 0.0) == pytest.approx(0.1)
    assert wait(1, 1.0) == pytest.approx(0.2)
    assert wait(4, 1.0) == pytest.approx(1.6)
    assert wait(10_000, 1.0) == 15.0


async def test_each_publishers_messages_arrive_in_order(broker):
    """Acknowledged and not, from two publishers at once."""
    inbox = Inbox()
    async with (
        connected(broker, "reader", inbox) as reader,
        connected(broker, "a") as first,
        connected(broker, "b") as second,
    ):
        await reader.subscribe(["from/+"])

        async def publish(session, name):
            for number in range(0, 200, 2):
                await session.publish(f"from/{name}", b"%d" % number)
                assert session.send(f"from/{name}", b"%d" % (number + 1))

        await asyncio.gather(publish(first, "a"), publish(second, "b"))
        await inbox.wait_for(400)
    for name in "ab":
        numbers = [int(payload) for topic, payload in inbox.messages if topic == f"from/{name}"]
        assert numbers == list(range(200))


async def test_a_retained_message_comes_with_the_subscription(broker):
    """The latest one of its topic; an empty one clears it; one that was not retained is gone."""
    inbox = Inbox()
    async with connected(broker, "writer") as writer, connected(broker, "reader", inbox) as reader:
        await writer.publish("state/a", b"old", retain=True)
        await writer.publish("state/a", b"new", retain=True)
        await writer.publish("state/a", b"passing")
        await writer.publish("state/b", b"gone", retain=True)
        await writer.publish("state/b", b"", retain=True)
        await reader.subscribe(["state/+", "fence"])
        await fence(writer, inbox)
    assert inbox.messages == [("state/a", b"new"), ("fence", b"")]


def expire_after(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    for module in (local_broker, mqtt, mqtt_session):
        monkeypatch.setattr(module, "RETAINED_EXPIRY_SECONDS", seconds)


async def retained(broker, pattern: str) -> dict[str, bytes]:
    """Return what a new subscriber gets of the past."""
    inbox = Inbox()
    async with connected(broker, "newcomer", inbox) as newcomer, connected(broker, "marker") as marker:
        await newcomer.subscribe([pattern, "fence"])
        await fence(marker, inbox)
    return dict(message for message in inbox.messages if message[0] != "fence")


async def test_retained_messages_expire_unless_they_are_renewed(broker, monkeypatch):
    """Of nodes and runs that are gone for good nothing stays at the broker, a last will neither."""
    inbox = Inbox()
    async with connected(broker, "reader", inbox) as reader, connected(broker, "writer") as writer:
        await reader.subscribe(["node/#", "fence"])
        expire_after(monkeypatch, 1)
        async with connected(broker, "dying", will=Will(topic="node/will", payload=b"away")):
            await writer.publish("node/gone", b"there", retain=True)
            await writer.publish("node/renewed", b"old", retain=True)
        await until(lambda: ("node/will", b"away") in inbox.messages)
        assert ("node/gone", b"there") in inbox.messages
        expire_after(monkeypatch, 3600)
        await writer.publish("node/renewed", b"new", retain=True)
        async with asyncio.timeout(60):
            while (left := await retained(broker, "node/#")) != {"node/renewed": b"new"}:
                assert left["node/renewed"] == b"new"
                assert set(left) <= {"node/renewed", "node/gone", "node/will"}


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("a/b", {"a/b"}),
        ("a/+", {"a/", "a/b", "a/é"}),
        ("+/b", {"/b", "a/b"}),
        ("a/#", {"a", "a/", "a/b", "a/b/c", "a/é"}),
        ("+/+/c", {"a/b/c"}),
        ("+", {"a"}),
        ("#", {"a", "a/", "a/b", "/b", "a/b/c", "a/é", "$own/b"} - {"$own/b"}),
        ("$own/+", {"$own/b"}),
    ],
)
async def test_wildcards_match_as_mqtt_specifies(broker, pattern, topics):
    """One level for +, all that follow and the parent for #, and none of them a first level with $."""
    inbox = Inbox()
    async with connected(broker, "reader", inbox) as reader:
        await reader.subscribe([pattern, "fence"])
        for topic in ("a", "a/", "a/b", "/b", "a/b/c", "a/é", "$own/b"):
            await reader.publish(topic, b"")
        await fence(reader, inbox)
    assert {topic for topic, _ in inbox.messages} - {"fence"} == topics


async def test_the_will_goes_out_when_the_connection_breaks(broker):
    """Retained, so that who subscribes later has it too; a session that is closed leaves none."""
    inbox, late = Inbox(), Inbox()
    async with connected(broker, "reader", inbox) as reader:
        await reader.subscribe(["will/+"])
        async with connected(broker, "broken", will=Will(topic="will/broken", payload=b"away")):
            pass
        await inbox.wait_for(1)
        async with connected(broker, "closed", will=Will(topic="will/closed", payload=b"away")) as session:
            await session.publish("will/fence", b"before")
            await session.close()
        await inbox.wait_for(2)
        async with connected(broker, "late", late) as other:
            await other.subscribe(["will/+", "fence"])
            await fence(other, late)
    assert inbox.messages == [("will/broken", b"away"), ("will/fence", b"before")]
    assert late.messages == [("will/broken", b"away"), ("fence", b"")]


async def test_closing_amid_a_flood_sends_no_will(broker):
    """What still comes in when a session closes does not cut its goodbye short."""
    inbox = Inbox()
    async with connected(broker, "reader", inbox) as reader, connected(broker, "writer") as writer:
        await reader.subscribe(["will/+", "fence"])
        for turn in range(20):
            async with connected(broker, "closing", will=Will(topic="will/closing", payload=b"away")) as closing:
                await closing.subscribe(["flood"])
                for _ in range(100 + turn):
                    writer.send("flood", bytes(1000))
                await closing.close()
        await fence(writer, inbox)
    assert inbox.messages == [("fence", b"")]


async def test_what_was_sent_before_the_close_arrives(broker):
    """Closing lets go out what is on its way."""
    inbox = Inbox()
    async with connected(broker, "reader", inbox) as reader, connected(broker, "writer") as writer:
        await reader.subscribe(["last/+"])
        accepted = sum(writer.send(f"last/{number}", bytes(500)) for number in range(500))
        await writer.close()
        assert accepted == 500
        await inbox.wait_for(500)
    assert [topic for topic, _ in inbox.messages] == [f"last/{number}" for number in range(500)]


async def test_a_full_buffer_takes_no_more_until_it_is_emptied(served):
    """`send` returns false instead of growing the buffer; afterwards the session works in both directions."""
    inbox = Inbox()
    async with connected(served.broker, "writer", inbox) as writer:
        await writer.subscribe(["fence"])
        with served.stalled():
            accepted = list(itertools.takewhile(bool, (writer.send("any", bytes(60_000)) for _ in range(2000))))
            assert 0 < len(accepted) < 1000, "60 MB without a word"
            assert not writer.send("any", b"small")
        await until(lambda: writer.send("any", b"small"))
        await fence(writer, inbox)


async def test_a_burst_is_delivered_to_a_slow_handler(broker):
    """10,000 messages, as many as allowed under way at a time, while the handler takes its time."""
    inbox = Inbox()

    def handle(topic, payload):
        time.sleep(0.0001)
        inbox(topic, payload)

    async with connected(broker, "reader", handle) as reader, connected(broker, "writer") as writer:
        await reader.subscribe(["burst"])
        await asyncio.gather(*(writer.publish("burst", b"%d" % number) for number in range(10_000)))
        await inbox.wait_for(10_000)
    assert [int(payload) for _, payload in inbox.messages] == list(range(10_000))


async def test_a_handler_that_fails_ends_nothing(broker, caplog):
    """Its bug is logged with the traceback, once in a while, and the messages after it arrive."""
    inbox = Inbox()

    def handle(topic, payload):
        inbox(topic, payload)
        if topic == "bad":
            raise RuntimeError("a bug of the caller")

    async with connected(broker, "reader", handle) as reader:
        await reader.subscribe(["bad", "good"])
        for topic in ("bad", "bad", "good"):
            await reader.publish(topic, b"")
        await inbox.wait_for(3)
        await reader.publish("good", b"")
        await inbox.wait_for(4)
    (record,) = [one for one in caplog.records if one.name.startswith("lockstep")]
    assert "handler failed on bad: RuntimeError('a bug of the caller')" in record.message
    assert 'raise RuntimeError("a bug of the caller")' in record.message


async def test_a_handler_may_send_and_is_not_entered_twice(broker):
    """What it sends to itself is handled after it has returned."""
    inbox, sessions, calls = Inbox(), [], []

    def handle(topic, payload):
        calls.append("enter")
        if int(payload) < 20:
            assert sessions[0].send("echo", b"%d" % (int(payload) + 1))
        inbox(topic, payload)
        calls.append("return")

    async with connected(broker, "self", handle) as session:
        sessions.append(session)
        await session.subscribe(["echo"])
        await session.publish("echo", b"0")
        await inbox.wait_for(21)
    assert [int(payload) for _, payload in inbox.messages] == list(range(21))
    assert calls == ["enter", "return"] * 21


async def test_a_message_beyond_the_readers_limit_is_kept_back(broker):
    """The reader's session goes on without it; another reader gets it."""
    small, large = Inbox(), Inbox()
    async with (
        connected(broker, "small", small, packet_max_bytes=1000) as one,
        connected(broker, "large", large) as other,
    ):
        await one.subscribe(["size/+"])
        await other.subscribe(["size/+"])
        await other.publish("size/large", bytes(2000))
        await other.publish("size/small", bytes(500))
        await small.wait_for(1)
        await large.wait_for(2)
    assert [topic for topic, _ in small.messages] == ["size/small"]
    assert [topic for topic, _ in large.messages] == ["size/large", "size/small"]


async def test_a_second_session_of_a_name_takes_over(broker):
    """The first one ends, with its will, and the second one works."""
    inbox = Inbox()
    async with connected(broker, "reader", inbox) as reader:
        await reader.subscribe(["will", "work"])
        async with (
            connected(broker, "same", will=Will(topic="will", payload=b"first")) as first,
            connected(broker, "same") as second,
        ):
            with pytest.raises(BrokerError):
                await first.wait_closed()
            await inbox.wait_for(1)
            await second.publish("work", b"second")
            await inbox.wait_for(2)
    assert inbox.messages == [("will", b"first"), ("work", b"second")]


@pytest.mark.parametrize("end", ["close", "leave"])
async def test_nothing_works_after_the_end(broker, end):
    """Each call names the reason."""
    async with connected(broker, "ended") as session:
        waiter = asyncio.create_task(session.wait_closed())
        await asyncio.sleep(0)
        if end == "close":
            await session.close()
    with pytest.raises(BrokerError, match="by this service"):
        await waiter
    for call in (
        session.subscribe(["a"]),
        session.publish("a", b""),
        session.wait_closed(),
        session.close(),
    ):
        with pytest.raises(BrokerError, match="by this service"):
            await call
    with pytest.raises(BrokerError, match="by this service"):
        session.send("a", b"")


@pytest.mark.parametrize(
    "pattern", ["a/#/b", "a+", "+#", "t" * 70_000, "\ud800"], ids=["#", "+", "+#", "long", "surrogate"]
)
async def test_a_filter_that_is_none_is_refused(broker, pattern):
    """By name, like one that the broker does not grant."""
    async with connected(broker, "reader") as reader:
        with pytest.raises(BrokerError, match="subscription"):
            await reader.subscribe(["fine", pattern])


@pytest.mark.parametrize("topic", ["", "a/+", "a/#", "t" * 70_000, "\ud800"], ids=["", "+", "#", "long", "surrogate"])
async def test_a_topic_that_is_none_is_refused_for_good(broker, topic):
    """Only this message; the session goes on."""
    async with connected(broker, "writer") as writer:
        with pytest.raises(PublishRefusedError) as refused:
            await writer.publish(topic, b"")
        assert refused.value.is_permanent
        with pytest.raises(PublishRefusedError):
            writer.send(topic, b"")
        await writer.publish("fine", b"")


@pytest.mark.parametrize("seed", range(8))
async def test_cancellation_at_any_point_leaves_nothing(broker, seed):
    """A service that stops in whatever moment ends with its cancellation, and its connection with it."""
    random_ = random.Random(seed)
    files = open_files()
    inbox = Inbox()

    async def serve(number):
        async with connected(broker, f"serve-{number}", inbox, will=Will(topic="will", payload=b"")) as session:
            await session.subscribe(["a/+"])
            await asyncio.gather(*(session.publish("a/b", bytes(2000)) for _ in range(100)))
            session.send("a/c", b"")
            if number % 2:
                await session.close()
            else:
                await session.wait_closed()

    for number in range(25):
        task = asyncio.create_task(serve(number))
        for _ in range(random_.randrange(400)):
            await asyncio.sleep(0)
        was_done = task.done()
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert was_done or isinstance(ended, asyncio.CancelledError) or (number % 2 and ended is None)
        await until(lambda: open_files() == files)
