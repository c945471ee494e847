"""The MQTT client against a real mosquitto that refuses, and against servers that are broken, slow or hostile."""

import asyncio
import contextlib
import shlex
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import mqtt5
import pytest

from benchmarks.services import SHIPPED_BROKER
from lockstep.serving import mqtt, mqtt_session
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.messaging import RETAINED_EXPIRY_SECONDS, BrokerError, PublishRefusedError, Will
from lockstep.serving.mqtt import MqttBroker
from tests.serving.mqtt_server import serving
from tests.serving.sessions import Inbox, connected, fence, until
from tests.support.servers import Mosquitto, program

CERTIFICATES = Path(__file__).parent / "certificates"
CA = str(CERTIFICATES / "ca.crt")
pytestmark = pytest.mark.usefixtures("nothing_left")


def reach(port, **settings):
    return MqttBroker(BrokerConfig(broker_port=port, **settings))


def run(name, *arguments):
    """Run a program that is installed with the servers."""
    subprocess.run([program(name), *arguments], check=True, capture_output=True)


async def hold(client):
    """Accept the session and do no more."""
    await client.accept()
    await client.gone()


async def never(_):
    """Do nothing at all."""
    await asyncio.Event().wait()


@pytest.fixture
def mosquitto(tmp_path):
    """Return a function that starts mosquitto with further lines of configuration."""
    servers = []

    def start(extra=""):
        server = Mosquitto(tmp_path, extra)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


# What a real broker refuses


@pytest.mark.servers
async def test_a_wrong_password_is_named(mosquitto, tmp_path):
    """And a rotated one is used at the next connection, without a restart."""
    run("mosquitto_passwd", "-b", "-c", tmp_path / "users", "node", "right")
    (tmp_path / "users").chmod(0o600)
    server = mosquitto(f"password_file {tmp_path / 'users'}\n")
    password = tmp_path / "password"
    broker = reach(server.port, broker_username="node", broker_password_file=str(password))
    with pytest.raises(BrokerError, match=r"broker_password_file: .*No such file"):
        await connected(broker, "node").__aenter__()
    password.write_text("wrong\n")
    with pytest.raises(BrokerError, match=rf"127\.0\.0\.1:{server.port}: refused the session: not authorized"):
        await connected(broker, "node").__aenter__()
    password.write_text("right\n")
    async with connected(broker, "node") as session:
        await session.publish("a", b"")


@pytest.mark.servers
async def test_what_an_access_rule_refuses_is_named(mosquitto, tmp_path):
    """A message is refused alone, and not for good: rules change. Mosquitto has no such rules for subscriptions."""
    (tmp_path / "acl").write_text("topic readwrite allowed/#\n")
    server = mosquitto(f"acl_file {tmp_path / 'acl'}\n")
    inbox = Inbox()
    async with connected(reach(server.port), "node", inbox) as session:
        await session.subscribe(["+/a"])
        with pytest.raises(PublishRefusedError, match=r"message on denied/a: .*not authorized") as refused:
            await session.publish("denied/a", b"")
        assert not refused.value.is_permanent
        await session.publish("allowed/a", b"fine")
        await inbox.wait_for(1)


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        (["GRANTED_QOS_AT_LEAST_ONCE", "NOT_AUTHORIZED"], "refused the subscription to b: not authorized"),
        (["GRANTED_QOS_AT_MOST_ONCE", "GRANTED_QOS_AT_LEAST_ONCE"], "refused the subscription to a: .*at most once"),
        (["GRANTED_QOS_AT_LEAST_ONCE"], "answered 1 subscriptions, expected 2"),
    ],
)
async def test_a_subscription_that_is_not_granted_is_named(codes, words):
    """Each filter has its own answer; less than QoS 1 is none."""

    async def serve(client):
        await client.accept()
        packet = await client.packet()
        client.send(mqtt5.SubAckPacket(packet.packet_id, [getattr(mqtt5.SubAckReasonCode, code) for code in codes]))
        await client.gone()

    async with serving(serve) as port, connected(reach(port), "node") as session:
        with pytest.raises(BrokerError, match=words):
            await session.subscribe(["a", "b"])


@pytest.mark.servers
async def test_a_message_beyond_the_brokers_limit_is_refused_for_good(mosquitto):
    """Mosquitto's `message_size_limit` answers with a reason that MQTT does not list for a PUBACK."""
    server = mosquitto("message_size_limit 1000\n")
    async with connected(reach(server.port), "node") as session:
        with pytest.raises(PublishRefusedError, match="packet too large") as refused:
            await session.publish("a", bytes(1001))
        assert refused.value.is_permanent
        await session.publish("a", bytes(1000))


@pytest.mark.servers
async def test_a_packet_beyond_the_brokers_limit_is_never_sent(mosquitto):
    """The broker would end the session; its `max_packet_size` is known from the start."""
    server = mosquitto("max_packet_size 1000\n")
    async with connected(reach(server.port), "node") as session:
        exact = 1000 - len(mqtt5.PublishPacket("a", b"", packet_id=1, qos=mqtt5.QoS.AT_LEAST_ONCE).write()) - 1
        await session.publish("a", bytes(exact))
        with pytest.raises(PublishRefusedError, match="got 1001 bytes, expected at most 1000") as refused:
            await session.publish("a", bytes(exact + 1))
        assert refused.value.is_permanent
        with pytest.raises(PublishRefusedError):
            session.send("a", bytes(2000))
        await session.publish("a", b"fine")


@pytest.mark.servers
async def test_nothing_is_lost_of_a_burst_that_is_read_late(mosquitto):
    """10,000 messages wait for a reader that stands still: beyond our receive maximum, within the queue that we ship."""
    limits = SHIPPED_BROKER.read_text().splitlines()
    server = mosquitto("".join(f"{line}\n" for line in limits if line.startswith("max_")))
    inbox = Inbox()
    broker = reach(server.port)
    async with connected(broker, "reader", inbox) as reader, connected(broker, "writer") as writer:
        await reader.subscribe(["burst"])
        reader._transport.pause_reading()
        await asyncio.gather(*(writer.publish("burst", b"%d" % number) for number in range(10_000)))
        reader._transport.resume_reading()
        await inbox.wait_for(10_000)
    assert [int(payload) for _, payload in inbox.messages] == list(range(10_000))


@pytest.mark.servers
async def test_a_broker_killed_amid_a_burst_ends_everything(mosquitto):
    """Every waiter gets the reason; the next session works once the broker is back."""
    server = mosquitto()
    broker = reach(server.port)
    async with connected(broker, "writer") as session:
        publishing = [asyncio.create_task(session.publish("burst", bytes(2000))) for _ in range(5000)]
        waiting = asyncio.create_task(session.wait_closed())
        await asyncio.wait(publishing, return_when=asyncio.FIRST_COMPLETED)
        server.kill()
        ended = await asyncio.gather(waiting, *publishing, return_exceptions=True)
        assert isinstance(ended[0], BrokerError)
        assert {type(one) for one in ended} <= {BrokerError, type(None)}
        assert sum(isinstance(one, BrokerError) for one in ended) > 1000
        with pytest.raises(BrokerError):
            await session.subscribe(["a"])
        with pytest.raises(BrokerError):
            session.send("a", b"")
    with pytest.raises(BrokerError, match="cannot connect"):
        await connected(broker, "writer").__aenter__()
    server.start()
    async with connected(broker, "writer") as session:
        await session.publish("burst", b"")


# TLS


@pytest.mark.servers
async def test_tls_with_a_client_certificate(mosquitto):
    """In with the certificate that the authority signed; out without, with plain TCP, or with another authority."""
    server = mosquitto(
        f"cafile {CA}\ncertfile {CERTIFICATES / 'server.crt'}\nkeyfile {CERTIFICATES / 'server.key'}\n"
        "require_certificate true\nuse_identity_as_username true\n"
    )
    certificate = {
        "broker_cert_file": str(CERTIFICATES / "prometheus.crt"),
        "broker_key_file": str(CERTIFICATES / "prometheus.key"),
    }
    async with connected(reach(server.port, broker_ca_file=CA, **certificate), "node") as session:
        await session.publish("a", bytes(100_000))
        await session.close()
    for settings in (
        {},
        {"broker_ca_file": CA},
        {"broker_ca_file": str(CERTIFICATES / "stranger.crt"), **certificate},
        {"broker_ca_file": CA, "broker_host": "127.0.0.2", **certificate},
    ):
        with pytest.raises(BrokerError, match=str(server.port)):
            await connected(reach(server.port, **settings), "node").__aenter__()


@pytest.mark.servers
async def test_a_session_over_tls_carries_what_one_over_tcp_does(mosquitto):
    """Large messages both ways, back-pressure, and a broken connection that is noticed."""
    server = mosquitto(f"cafile {CA}\ncertfile {CERTIFICATES / 'server.crt'}\nkeyfile {CERTIFICATES / 'server.key'}\n")
    inbox = Inbox()
    broker = reach(server.port, broker_ca_file=CA)
    async with connected(broker, "node", inbox, packet_max_bytes=8 << 20) as session:
        await session.subscribe(["#"])
        for number in range(3):
            await session.publish("large", bytes([number]) * (2 << 20))
        await inbox.wait_for(3)
        assert [(payload[0], len(payload)) for _, payload in inbox.messages] == [(n, 2 << 20) for n in range(3)]
        waiting = asyncio.create_task(session.wait_closed())
        server.kill()
        with pytest.raises(BrokerError):
            await waiting


@pytest.mark.parametrize(
    ("key", "made_of"),
    [("broker_ca_file", "ca.crt"), ("broker_cert_file", "prometheus.crt"), ("broker_key_file", "prometheus.key")],
)
@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "directory"])
async def test_a_file_that_cannot_be_used_is_named(tmp_path, key, made_of, damage):
    """At the connection, which is tried again: a rotation may be under way. No server is asked."""
    files = {
        "broker_ca_file": "ca.crt",
        "broker_cert_file": "prometheus.crt",
        "broker_key_file": "prometheus.key",
    }
    for name in files.values():
        shutil.copy(CERTIFICATES / name, tmp_path / name)
    target = tmp_path / made_of
    target.unlink()
    if damage == "directory":
        target.mkdir()
    elif damage != "missing":
        target.write_text("" if damage == "empty" else "no PEM at all\n")
    broker = reach(1, **{name: str(tmp_path / file) for name, file in files.items()})
    with pytest.raises(BrokerError, match=key):
        await connected(broker, "node").__aenter__()


CONNECT = """
import asyncio, sys
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.mqtt import MqttBroker

async def connect(ca, certificate, key):
    config = BrokerConfig(broker_port=1, broker_ca_file=ca, broker_cert_file=certificate, broker_key_file=key)
    connection = MqttBroker(config).connect(client_id="node", on_message=print, packet_max_bytes=1000)
    await connection.__aenter__()

asyncio.run(connect(*sys.argv[1:]))
"""


@pytest.mark.servers
def test_a_key_with_a_passphrase_asks_no_terminal(tmp_path):
    """OpenSSL would prompt where there is one, and the service would wait for it."""
    key, code = tmp_path / "key", tmp_path / "connect.py"
    run("openssl", "pkey", "-aes256", "-passout", "pass:word", "-in", CERTIFICATES / "prometheus.key", "-out", key)
    code.write_text(CONNECT)
    command = shlex.join(map(str, [sys.executable, code, CA, CERTIFICATES / "prometheus.crt", key]))
    done = subprocess.run(
        [program("script"), "--quiet", "--command", command, "/dev/null"],  # gives it a terminal
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert f"broker_key_file {key}: " in done.stdout
    assert "pass phrase" not in done.stdout


# What cannot be sent in the first place


@pytest.mark.parametrize("host", ["", ".", "no.such.host.invalid", "a" * 64 + ".b", "\udce4", "a\0b"])
async def test_a_host_that_is_not_there_is_an_error_of_the_broker(host):
    """Whatever is in its name."""
    with pytest.raises(BrokerError):
        await connected(MqttBroker(BrokerConfig(broker_host=host or "::%", broker_port=1)), "node").__aenter__()


async def test_a_will_or_name_that_mqtt_cannot_carry_is_an_error_of_the_broker(tmp_path):
    """Not an end of the service."""
    with pytest.raises(BrokerError, match="will"):
        await connected(reach(1), "node", will=Will(topic="a", payload=bytes(70_000))).__aenter__()
    with pytest.raises(BrokerError, match="user name"):
        await connected(reach(1, broker_username="u" * 70_000), "node").__aenter__()


async def test_a_payload_beyond_all_of_mqtt_is_refused():
    """Before mqtt5 sees it, which panics."""
    async with serving(hold) as port, connected(reach(port), "node") as session:
        payload = bytes(1 << 28)
        with pytest.raises(PublishRefusedError, match="packet too large"):
            await session.publish("a", payload)
        with pytest.raises(PublishRefusedError, match="packet too large"):
            session.send("a", payload)


# What the session asks of the broker


async def test_the_session_asks_for_what_it_needs():
    """A clean session, a receive maximum on the wire, a packet limit, keep-alive, and the will."""
    asked = []

    async def serve(client):
        asked.append(await client.accept())
        await client.gone()

    will = Will(topic="will", payload=b"away")
    async with serving(serve) as port, connected(reach(port), "node", will=will, packet_max_bytes=12_345):
        (packet,) = asked
        assert packet.clean_start
        assert packet.session_expiry_interval == 0
        assert packet.receive_max == mqtt_session.RECEIVE_MAX
        assert b"\x21\x00\x40" in packet.write(), "the receive maximum is left out of the packet"
        assert packet.max_packet_size == 12_345
        assert packet.keep_alive == mqtt_session.KEEP_ALIVE_S
        assert (packet.will.topic, packet.will.payload, packet.will.retain) == ("will", b"away", True)
        assert packet.will.message_expiry_interval == RETAINED_EXPIRY_SECONDS
        assert packet.will.qos == mqtt5.QoS.AT_LEAST_ONCE


async def test_only_retained_messages_expire():
    """What coordinators lack they get however late; what the broker keeps for newcomers is renewed or goes."""
    published = []

    async def serve(client):
        await client.accept()
        while True:
            published.append(packet := await client.packet())
            client.send(mqtt5.PubAckPacket(packet.packet_id))

    async with serving(serve) as port, connected(reach(port), "node") as session:
        await session.publish("kept", b"", retain=True)
        await session.publish("passing", b"")
    assert [packet.message_expiry_interval for packet in published] == [RETAINED_EXPIRY_SECONDS, None]


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"max_qos": mqtt5.QoS.AT_MOST_ONCE}, "QoS 1"),
        ({"retain_available": False}, "retained messages"),
        ({"wildcard_subscription_available": False}, "wildcard subscriptions"),
        ({"reason_code": mqtt5.ConnAckReasonCode.SERVER_BUSY, "reason_str": "later"}, "server busy: later"),
    ],
)
async def test_a_broker_that_cannot_serve_is_named(properties, words):
    """At the connection, with what it lacks."""

    async def serve(client):
        await client.accept(**properties)
        await client.gone()

    async with serving(serve) as port:
        with pytest.raises(BrokerError, match=words):
            await connected(reach(port), "node").__aenter__()


async def test_no_more_is_under_way_than_the_broker_takes():
    """Its receive maximum counts messages whose caller was cancelled, too; each slot is released once."""
    received, release = [], asyncio.Event()

    async def serve(client):
        await client.accept(receive_max=2)
        received.extend([await client.packet(), await client.packet()])
        await release.wait()
        client.send(*(mqtt5.PubAckPacket(packet.packet_id) for packet in received))
        while True:
            packet = await client.packet()
            received.append(packet)
            client.send(mqtt5.PubAckPacket(packet.packet_id))

    async with serving(serve) as port, connected(reach(port), "node") as session:
        tasks = [asyncio.create_task(session.publish("a", b"%d" % number)) for number in range(6)]
        await until(lambda: len(received) >= 2)
        tasks[0].cancel()
        tasks[3].cancel()
        for _ in range(50):
            await asyncio.sleep(0)
        assert [packet.payload for packet in received] == [b"0", b"1"]
        release.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [number for number, one in enumerate(ended) if isinstance(one, asyncio.CancelledError)] == [0, 3]
    assert [number for number, one in enumerate(ended) if one is None] == [1, 2, 4, 5]
    assert [packet.payload for packet in received] == [b"0", b"1", b"2", b"4", b"5"]


async def test_a_packet_id_is_used_again_only_when_it_is_free():
    """Ids wrap at 65,535; the one whose answer is still due, though its caller gave up, is left out."""
    ids = []

    async def serve(client):
        await client.accept()
        while True:
            packet = await client.packet()
            ids.append(packet.packet_id)
            if packet.topic == "answered":
                client.send(mqtt5.PubAckPacket(packet.packet_id))

    async with serving(serve) as port, connected(reach(port), "node") as session:
        given_up = asyncio.create_task(session.publish("unanswered", b""))
        await asyncio.sleep(0)
        await session.publish("answered", b"")
        given_up.cancel()
        session._packet_id = 65_533  # as after that many
        for _ in range(4):
            await session.publish("answered", b"")
    assert ids == [1, 2, 65_534, 65_535, 2, 3]


async def test_acknowledgements_of_what_came_together_go_together():
    """One write to the transport for all that one read brought, in order, after the handler has seen them."""
    inbox, got, written = Inbox(), [], []

    async def serve(client):
        await client.accept()
        packets = [mqtt5.PublishPacket("a", b"%d" % n, qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=n) for n in range(1, 301)]
        client.send(*packets, mqtt5.PublishPacket("a", b"0"))
        got.extend([(await client.packet()).packet_id for _ in packets])
        await client.gone()

    async with serving(serve) as port, connected(reach(port), "node", inbox) as session:
        write = session._transport.write

        def count(data):
            written.append((len(data), len(inbox.messages)))
            write(data)

        session._transport.write = count
        await inbox.wait_for(301)
        await until(lambda: len(got) >= 300)
        del session._transport.write
    assert got == list(range(1, 301))
    assert written == [(300 * 4, 301)]


async def test_small_packets_of_one_turn_are_one_write():
    """A coordinator's acknowledgements to a thousand nodes are not a thousand system calls."""
    written = []
    async with serving(hold) as port, connected(reach(port), "node") as session:
        write = session._transport.write
        session._transport.write = lambda data: (written.append(len(data)), write(data))
        assert all(session.send("a", bytes(100)) for _ in range(1000))
        await asyncio.sleep(0)
        del session._transport.write
    assert sum(written) > 100_000
    assert len(written) <= 3


# Keep-alive


async def test_a_ping_that_is_answered_keeps_the_session(pass_time):
    """Two in each interval that the server wants, for as long as it answers."""
    pings = []

    async def serve(client):
        await client.accept(server_keep_alive=10)
        while True:
            pings.append(await client.packet())
            client.send(mqtt5.PingRespPacket())

    async with serving(serve) as port, connected(reach(port), "node") as session:
        for count in range(1, 5):
            await pass_time(5.01)
            await until(lambda count=count: len(pings) >= count)
            for _ in range(20):
                await asyncio.sleep(0)
        assert session.send("a", b"")


@pytest.mark.parametrize("keep_alive_s", [None, 0, 10, 600])
async def test_a_broker_that_went_silent_is_noticed(pass_time, keep_alive_s):
    """Without a packet since the last ping the session ends; the server may shorten the interval, not prolong it."""

    async def serve(client):
        await client.accept(server_keep_alive=keep_alive_s)
        await client.gone()

    async with serving(serve) as port, connected(reach(port), "node") as session:
        interval_s = (10 if keep_alive_s == 10 else mqtt_session.KEEP_ALIVE_S) / 2
        waiting = asyncio.create_task(session.wait_closed())
        await pass_time(interval_s + 0.01)
        assert not waiting.done()
        await pass_time(interval_s + 0.01)
        with pytest.raises(BrokerError, match=rf"no answer to a ping within {interval_s:g} s"):
            await waiting


async def test_a_broker_that_slowly_reads_a_large_message_is_alive(pass_time):
    """The ping waits behind the message; what leaves the buffer shows that the connection works."""
    go_on = asyncio.Event()

    async def serve(client):
        await client.accept()
        for _ in range(4):
            await go_on.wait()
            go_on.clear()
            await client.reader.readexactly(4 << 20)
        await client.gone()

    async with serving(serve) as port, connected(reach(port), "node") as session:
        publishing = asyncio.create_task(session.publish("a", bytes(60 << 20)))
        waiting = asyncio.create_task(session.wait_closed())
        await asyncio.sleep(0)
        for _ in range(4):
            buffered = session._transport.get_write_buffer_size()
            go_on.set()
            await until(lambda buffered=buffered: session._transport.get_write_buffer_size() != buffered)
            await pass_time(mqtt_session.KEEP_ALIVE_S / 2 + 0.01)
            assert not waiting.done()
        while session._transport.get_write_buffer_size() != buffered and not waiting.done():
            buffered = session._transport.get_write_buffer_size()
            await pass_time(mqtt_session.KEEP_ALIVE_S / 2 + 0.01)
        await pass_time(mqtt_session.KEEP_ALIVE_S + 0.01)
        for task in (waiting, publishing):
            with pytest.raises(BrokerError, match="no answer to a ping"):
                await task


# Hostile servers

TOO_LARGE = b"\x30" + b"\xff\xff\xff\x7f"
PUBLISH = mqtt5.PublishPacket("a", b"payload", qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=7).write()
AFTER = {
    "text": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "TLS alert": b"\x15\x03\x01\x00\x02\x02\x46",
    "zeros": bytes(100),
    "packet of 256 MB": TOO_LARGE + bytes(1000),
    "length without an end": b"\x30\xff\xff\xff\xff\xff",
    "second CONNACK": mqtt5.ConnAckPacket().write(),
    "packet of a client": mqtt5.PingReqPacket().write(),
    "topic that is no UTF-8": bytes([0x30, 5, 0, 2, 0xFF, 0xFF, 0]),
    "property that is no UTF-8": bytes([0x30, 9, 0, 1, 0x61, 5, 0x03, 0, 2, 0xFF, 0xFF]),
    "QoS 3": bytes([0x36, 4, 0, 0, 0, 0]),
    "empty PUBLISH": bytes([0x30, 0]),
    "PUBACK of nothing": mqtt5.PubAckPacket(9).write(),
    "PUBACK without an id": bytes([0x40, 1, 0]),
    "SUBACK of nothing": mqtt5.SubAckPacket(9, [mqtt5.SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE]).write(),
    "unlisted DISCONNECT": bytes([0xE0, 1, 77]),
    "DISCONNECT": mqtt5.DisconnectPacket(reason_code=mqtt5.DisconnectReasonCode.SERVER_SHUTTING_DOWN).write(),
    "end": b"",
    "half a packet, then the end": PUBLISH[:-3],
}


# Of a panic Rust prints to stderr what Python's exception was; pytest takes that for one that was lost.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("data", AFTER.values(), ids=AFTER)
async def test_what_is_no_mqtt_ends_the_session(data):
    """Whole, and byte by byte; everybody who waits gets the reason, and nothing is handed over after it."""
    for pieces in (
        [data + PUBLISH * (not data.startswith(PUBLISH[:-3]))],
        [data[at : at + 1] for at in range(len(data))],
    ):
        inbox = Inbox()

        async def serve(client, pieces=pieces):
            await client.accept()
            await client.packet()  # of the calls below
            await client.packet()
            for piece in pieces:
                client.send(piece)
                await asyncio.sleep(0)

        async with serving(serve) as port, connected(reach(port), "node", inbox) as session:
            waiting = [asyncio.create_task(call) for call in (session.wait_closed(), session.subscribe(["b"]))]
            for call in (session.publish("a", b""), *waiting):
                with pytest.raises(BrokerError, match=str(port)):
                    await call
            assert data == b"" or inbox.messages == []


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "data",
    [
        *(data for name, data in AFTER.items() if name != "second CONNACK"),
        mqtt5.ConnAckPacket().write()[:3],
        bytes([0x20, 2, 0, 1]),
        bytes([0x20, 2, 0, 5]),
        PUBLISH,
    ],
    ids=[name for name in AFTER if name != "second CONNACK"] + ["half", "MQTT 3.1.1", "MQTT 3.1.1 refusal", "PUBLISH"],
)
async def test_what_is_no_mqtt_opens_no_session(data):
    """In place of the answer to CONNECT."""
    inbox = Inbox()

    async def serve(client):
        await client.packet()
        client.send(data)
        client.writer.write_eof()
        await client.gone()

    async with serving(serve) as port:
        with pytest.raises(BrokerError, match=str(port)):
            await connected(reach(port), "node", inbox).__aenter__()
    assert inbox.messages == []


@pytest.mark.parametrize("stage", ["nothing", "half a packet", "TLS"])
async def test_a_server_that_never_answers_is_given_up(monkeypatch, stage):
    """Within the time for a connection."""
    monkeypatch.setattr(mqtt, "_CONNECT_TIMEOUT_S", 0.2)

    async def serve(client):
        if stage == "half a packet":
            client.send(mqtt5.ConnAckPacket().write()[:2])
        await never(client)

    settings = {"broker_ca_file": CA} if stage == "TLS" else {}
    async with serving(serve) as port:
        with pytest.raises(BrokerError, match="no session within"):
            await connected(reach(port, **settings), "node").__aenter__()


async def test_memory_stays_bounded_whatever_a_server_sends():
    """A packet of 256 MB is refused by its header; a large one in small pieces is kept once."""
    large = mqtt5.PublishPacket("a", bytes(4 << 20)).write()
    inbox = Inbox()

    async def serve(client):
        await client.accept()
        for at in range(0, len(large), 10_000):
            client.send(large[at : at + 10_000])
            await client.writer.drain()
        await client.packet()
        client.send(TOO_LARGE)
        while True:
            client.send(bytes(1 << 20))
            await client.writer.drain()

    async with serving(serve) as port, connected(reach(port), "node", inbox, packet_max_bytes=8 << 20) as session:
        await inbox.wait_for(1)
        assert inbox.messages == [("a", bytes(4 << 20))]
        inbox.messages.clear()
        tracemalloc.start()
        try:
            waiting = asyncio.create_task(session.wait_closed())
            session.send("go", b"")
            with pytest.raises(BrokerError, match=r"got 268435460 bytes, expected at most 8388608"):
                await waiting
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


async def test_a_flood_from_a_server_that_does_not_read_is_held_off(pass_time):
    """Its messages are read no more once their acknowledgements fill the buffer, and the next pings find it dead."""
    packet = mqtt5.PublishPacket("a", b"", qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=1).write() * 10_000
    sent = 0

    async def serve(client):
        nonlocal sent
        await client.accept()
        client.writer.transport.pause_reading()
        while True:
            client.send(packet)
            await client.writer.drain()
            sent += 1

    count = 0

    def handle(*_):
        nonlocal count
        count += 1

    async with serving(serve) as port, connected(reach(port), "node", handle) as session:
        waiting = asyncio.create_task(session.wait_closed())
        await until(lambda: session._is_full)
        for _ in range(100):
            await asyncio.sleep(0)
        before = count
        for _ in range(100):
            await asyncio.sleep(0)
        assert count == before
        assert session._transport.get_write_buffer_size() < 3 << 20
        assert not session.send("a", b"")
        for _ in range(4):
            await pass_time(mqtt_session.KEEP_ALIVE_S / 2 + 0.01)
        with pytest.raises(BrokerError, match="no answer to a ping"):
            await waiting


async def test_closing_at_a_server_that_does_not_react_ends(monkeypatch):
    """The goodbye waits for it, and not for ever."""
    monkeypatch.setattr(mqtt_session, "_CLOSE_TIMEOUT_S", 0.05)

    async def serve(client):
        await client.accept()
        await never(client)

    async with serving(serve) as port, connected(reach(port), "node") as session:
        await session.close()
        with pytest.raises(BrokerError, match="closed by this service"):
            await session.wait_closed()


async def test_nothing_happens_after_the_goodbye(pass_time):
    """What still comes is not handled, and nothing is sent: no acknowledgement, no ping."""
    inbox, after = Inbox(), []

    async def serve(client):
        await client.accept()
        assert isinstance(await client.packet(), mqtt5.DisconnectPacket)
        client.send(PUBLISH)
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(mqtt_session.KEEP_ALIVE_S):
                after.append(await client.packet())

    async with serving(serve) as port, connected(reach(port), "node", inbox) as session:
        closing = asyncio.create_task(session.close())
        for _ in range(50):
            await asyncio.sleep(0)
        await pass_time(mqtt_session._CLOSE_TIMEOUT_S)
        await closing
        await pass_time(mqtt_session.KEEP_ALIVE_S)
        assert session._timer.cancelled()
    assert (inbox.messages, after) == ([], [])


async def test_a_cancelled_close_is_cancelled():
    """And the connection is gone all the same."""

    async def serve(client):
        await client.accept()
        await never(client)

    async with serving(serve) as port, connected(reach(port), "node") as session:
        closing = asyncio.create_task(session.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert session._transport.is_closing()


@pytest.mark.parametrize("what", ["session", "publish", "subscribe", "end"])
async def test_a_cancellation_in_the_moment_of_the_answer_is_not_lost(what):
    """Nor hangs: the task that is cancelled in the same turn in which its answer comes ends as cancelled."""
    answer = asyncio.Event()

    async def serve(client):
        connect = await client.packet()
        assert connect.client_id == "node"
        if what == "session":
            await answer.wait()
        client.send(mqtt5.ConnAckPacket())
        packet = await client.packet()
        await answer.wait()
        if what == "end":
            return
        if isinstance(packet, mqtt5.PublishPacket):
            client.send(mqtt5.PubAckPacket(packet.packet_id))
        else:
            client.send(mqtt5.SubAckPacket(packet.packet_id, [mqtt5.SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE]))
        await client.gone()

    sessions = []

    async def work(port):
        async with connected(reach(port), "node") as session:
            sessions.append(session)
            await (session.subscribe(["a"]) if what == "subscribe" else session.publish("a", b""))
            await asyncio.Event().wait()

    async with serving(serve) as port:
        task = asyncio.create_task(work(port))
        received = mqtt_session.MqttSession.data_received
        lost = mqtt_session.MqttSession.connection_lost

        def cancel_with(method):
            def wrapped(self, argument):
                method(self, argument)
                if answer.is_set():
                    task.cancel()

            return wrapped

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mqtt_session.MqttSession, "data_received", cancel_with(received))
            patch.setattr(mqtt_session.MqttSession, "connection_lost", cancel_with(lost))
            await until(
                lambda: what == "session" or (sessions and sessions[0]._packet_id and not sessions[0]._unwritten)
            )
            answer.set()
            done, _ = await asyncio.wait({task}, timeout=30)
        assert done == {task}
        assert task.cancelled()


async def test_an_attempt_that_fails_leaves_no_file_open():
    """An exporter tries for days; `nothing_left` counts."""
    for _ in range(50):
        with pytest.raises(BrokerError):
            await connected(reach(1), "node").__aenter__()


@pytest.mark.servers
async def test_two_readers_of_one_broker_do_not_disturb_each_other(mosquitto):
    """A session is one client's own."""
    server = mosquitto()
    broker = reach(server.port)
    first, second = Inbox(), Inbox()
    async with connected(broker, "one", first) as one, connected(broker, "two", second) as two:
        await one.subscribe(["a", "fence"])
        await two.subscribe(["b", "fence"])
        await one.publish("b", b"")
        await two.publish("a", b"")
        await fence(one, second)
        await first.wait_for(2)
    assert {topic for topic, _ in first.messages} == {"a", "fence"}
    assert {topic for topic, _ in second.messages} == {"b", "fence"}
