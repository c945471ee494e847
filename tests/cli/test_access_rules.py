"""The shipped access rules in a real mosquitto: each node and coordinator does its own, and nothing of another's."""

import itertools
import subprocess
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from lockstep.cli import access_rules
from lockstep.contracts import topics
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.messaging import BrokerError, PublishRefusedError
from lockstep.serving.mqtt import MqttBroker
from tests.serving.sessions import Inbox, connected
from tests.support.servers import Mosquitto, program

pytestmark = pytest.mark.servers
COORDINATOR, NODES = access_rules.COORDINATOR_USER, ("n1", "n2")
NUMBERS = itertools.count()


def topics_of(node):
    """Return every topic that the node writes, and every topic that it reads."""
    writes = [
        topics.run_topic("a", one, node) for one in (topics.STEPS, topics.ANNOUNCE, topics.ANSWER, topics.SUMMARY)
    ]
    writes += [topics.node_topic(node, one) for one in (topics.ALIVE, topics.LOST)]
    return writes, [topics.run_topic("a", topics.REQUEST, node), topics.node_topic(node, topics.ACK)]


HEARTBEAT = topics.coordinator_topic("c1")
WRITTEN = {node: topics_of(node)[0] for node in NODES}
READ = {node: topics_of(node)[1] for node in NODES}
EVERYTHING = [*itertools.chain(*WRITTEN.values(), *READ.values()), HEARTBEAT]
WRITERS = {
    **WRITTEN,
    COORDINATOR: [*READ["n1"], *READ["n2"], HEARTBEAT],
}
READERS = {
    **READ,
    COORDINATOR: [*WRITTEN["n1"], *WRITTEN["n2"], HEARTBEAT],
}


@pytest.fixture
def broker(tmp_path):
    """Run mosquitto with the rules, and a password for each user."""
    passwords, rules = tmp_path / "passwords", tmp_path / "acl"
    rules.write_text(access_rules.render())
    passwords.write_text("".join(f"{user}:{user}\n" for user in WRITERS))
    passwords.chmod(0o600)
    subprocess.run([program("mosquitto_passwd"), "-U", passwords], check=True, capture_output=True)
    server = Mosquitto(tmp_path, f"password_file {passwords}\nacl_file {rules}\n")
    configuration = tmp_path / "mosquitto.conf"
    configuration.write_text(configuration.read_text().replace("allow_anonymous true", "allow_anonymous false"))
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def signed_in(broker, directory, user, on_message=lambda *_: None):
    """Connect as a user."""
    password = directory / f"password-{user}"
    password.write_text(user)
    config = BrokerConfig(broker_port=broker.port, broker_username=user, broker_password_file=str(password))
    async with connected(MqttBroker(config), f"test-{user}-{next(NUMBERS)}", on_message) as session:
        yield session
        await session.close()


async def is_refused(session, topic):
    """Whether the broker refuses a message on the topic because of its rules."""
    try:
        await session.publish(topic, b"")
    except PublishRefusedError as error:
        return "not authorized" in str(error)
    return False


@pytest.mark.parametrize("user", WRITERS)
async def test_a_user_publishes_its_own_topics_only(broker, tmp_path, user):
    """A node nothing as another node or as a coordinator; a coordinator nothing as a node."""
    attempts = [*EVERYTHING, "lockstep/v1/else", "other"]
    async with signed_in(broker, tmp_path, user) as session:
        refused = {topic for topic in attempts if await is_refused(session, topic)}
    assert refused == set(attempts) - set(WRITERS[user])


async def test_a_subscription_to_everything_delivers_ones_own(broker, tmp_path):
    """Mosquitto grants any subscription and filters what it delivers, retained messages included."""
    inboxes = {user: Inbox() for user in READERS}
    last = {READ["n1"][0]: COORDINATOR, READ["n2"][0]: COORDINATOR, WRITTEN["n1"][0]: "n1"}
    async with AsyncExitStack() as stack:
        writers = {user: await stack.enter_async_context(signed_in(broker, tmp_path, user)) for user in WRITERS}
        for user, written in WRITERS.items():
            for topic in written:
                await writers[user].publish(topic, b"retained", retain=True)
        for user, inbox in inboxes.items():
            session = await stack.enter_async_context(signed_in(broker, tmp_path, user, inbox))
            await session.subscribe(["#"])
        for user, written in WRITERS.items():
            for topic in written:
                await writers[user].publish(topic, b"live")
        for topic, user in last.items():  # the broker keeps the order, so nothing comes later
            await writers[user].publish(topic, b"last")
        for user, inbox in inboxes.items():
            await inbox.wait_for(2 * len(READERS[user]) + 1)
            expected = [(topic, payload) for topic in READERS[user] for payload in (b"live", b"retained")]
            assert sorted(inbox.messages[:-1]) == sorted(expected), user
            assert inbox.messages[-1][1] == b"last"


async def test_a_stranger_does_not_get_in(broker, tmp_path):
    """Without a name, with an unknown one, and with a node's name and another one's password."""
    (tmp_path / "password").write_text("n2")
    for user in ("", "n3", "n1"):
        config = BrokerConfig(
            broker_port=broker.port,
            broker_username=user,
            broker_password_file=str(tmp_path / "password") if user else "",
        )
        with pytest.raises(BrokerError, match="not authorized"):
            await connected(MqttBroker(config), "stranger").__aenter__()
