"""What strangers, other nodes and other tenants try at the broker, and what becomes of it.

    python -m benchmarks.security.broker

A mosquitto with the shipped configuration and access rules, TLS and a certificate for each node by the recipe of
docs/security.md; a coordinator, an exporter and a running job. Prints a table `attempt | refused by | counted by`; exit
code 1 when an attempt succeeds or is not counted where it should be. Half a minute.
"""

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.services import Service, total
from benchmarks.soak import wire as packets
from lockstep.contracts import topics
from lockstep.contracts.codec import Message, encode
from lockstep.contracts.delivery import FrameHeader, pack_frame
from lockstep.contracts.messages import (
    Acknowledgement,
    CaptureRequest,
    CoordinatorAlive,
    GroupInfo,
    NodeAlive,
    NodeAnnouncement,
    RankInfo,
)
from lockstep.contracts.topics import node_topic, run_topic
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.messaging import BrokerError, PublishRefusedError, Will
from lockstep.serving.mqtt import MqttBroker
from tests.end_to_end.fake_nodes import FakeNodes
from tests.support.batches import batch_of_columns
from tests.support.policy_file import policy_file
from tests.support.secured_broker import COORDINATOR, SecuredBroker
from tests.support.servers import get_json, wait_until
from tests.support.wire import wired

RUN, OWNER, OTHER, TENANT = "pretrain", "n1", "n2", "tenant"
RANKS, FORGED, INVENTED = 2, 120, 256
_C, _E = "lockstep_coordinator", "lockstep_exporter"
_WAIT_S = 30.0
_DENIED = "Denied PUBLISH"
_PACKET_BYTES = 9 << 20  # mosquitto.conf takes 8.1 MiB


class World:
    """What is attacked."""

    def __init__(self, directory: Path, parts: contextlib.ExitStack) -> None:
        self.directory = directory
        self.broker = SecuredBroker(directory, [OWNER, OTHER, TENANT], "Certificates")
        self.broker.server.start()
        parts.callback(self.broker.server.stop)
        (directory / "token").write_text("secret\n")
        root = directory / "root"
        root.mkdir()
        policy = policy_file(directory, {"profile.enabled": "false"})
        common: dict[str, dict[str, object]] = {
            "coordinator": {"name": "c1", "api_token_file": directory / "token", "policy_file": policy},
            "exporter": {"node": OWNER, "root": root, "spool_directory": directory / "spool", "batch_seconds": 0.2},
        }
        users = {"coordinator": COORDINATOR, "exporter": OWNER}
        services = {
            kind: Service(kind, kind, directory, settings | self.broker.settings(users[kind]))
            for kind, settings in common.items()
        }
        self.coordinator, self.exporter = services["coordinator"], services["exporter"]
        for service in services.values():
            parts.callback(service.stop)
            service.start()
        for service in services.values():
            service.wait_ready("/-/ready")
        parts.enter_context(FakeNodes([root], RUN, RANKS).stepping())
        wait_until(lambda: self.step() > 20, _WAIT_S, "a run that is evaluated")

    def step(self) -> float:
        """Return the last step of the run that the coordinator has evaluated."""
        return (self.coordinator.scrape() or {}).get(f'lockstep_run_step{{run="{RUN}"}}', -1.0)

    def owners(self) -> list[str]:
        """Return the host of each rank, as the coordinator has it."""
        found = get_json(f"{self.coordinator.url}/api/v1/runs/{RUN}")
        return [rank["hostname"] for rank in found["ranks"]]

    def publish(self, user: str, topic: str, payload: bytes, *, retain: bool = False) -> str:
        """Publish as a user; return what refused it, empty where nothing did."""

        async def go() -> str:
            connection = MqttBroker(self.broker.config(user)).connect(
                client_id=f"attack-{time.monotonic_ns()}", on_message=lambda *_: None, packet_max_bytes=16 << 20
            )
            async with connection as session:
                try:
                    await session.publish(topic, payload, retain=retain)
                except PublishRefusedError as error:
                    return f"broker: {error.reason}"
                finally:
                    with contextlib.suppress(BrokerError):
                        await session.close()
            return ""

        return asyncio.run(go())


@dataclass(frozen=True, slots=True)
class Counter:
    """Where an attempt is counted; `read` returns the value now, and it must grow by `least`."""

    name: str
    read: Callable[[World], float]
    least: int = 1


@dataclass(frozen=True, slots=True)
class Attempt:
    """A row of the table. `act` returns what refused it, empty where it succeeded; no `counter`: the client knows."""

    party: str
    what: str
    act: Callable[[World], str]
    counter: Counter | None


def _wait_for(counter: Counter, world: World, before: float) -> float:
    """Return the counter's value once it has grown enough, or what it is when time is over."""
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: counter.read(world) >= before + counter.least, _WAIT_S, counter.name)
    return counter.read(world)


def _log(text: str) -> Counter:
    return Counter(f"broker's log: {text}", lambda world: world.broker.log().count(text))


def _coordinator(name: str, label: str, least: int = 1) -> Counter:
    shown = f"{_C}_{name}{{{label}}}"
    return Counter(shown, lambda world: total(world.coordinator.scrape() or {}, f"{_C}_{name}", label), least)


def _exporter(name: str, label: str) -> Counter:
    shown = f"{_E}_{name}{{{label}}}"
    return Counter(shown, lambda world: total(world.exporter.scrape() or {}, f"{_E}_{name}", label))


def _connect(config: Callable[[World], BrokerConfig]) -> Callable[[World], str]:
    def act(world: World) -> str:
        async def go() -> str:
            connection = MqttBroker(config(world)).connect(
                client_id="stranger", on_message=lambda *_: None, packet_max_bytes=1 << 20
            )
            try:
                async with connection as session:
                    await session.close()
            except BrokerError as error:
                return str(error).partition(": ")[2][:60]
            return ""

        return asyncio.run(go())

    return act


def _own_certificate(world: World) -> BrokerConfig:
    folder = world.directory / "stranger"
    folder.mkdir()
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=n1"
    subprocess.run(
        [*command.split(), "-keyout", folder / "key", "-out", folder / "crt"], check=True, capture_output=True
    )
    config = world.broker.config(OWNER)
    return replace(config, broker_cert_file=str(folder / "crt"), broker_key_file=str(folder / "key"))


def _published(
    user: str, topic: str, message: Message | None = None, *, retain: bool = False
) -> Callable[[World], str]:
    payload = b"x" if message is None else encode(message)
    return lambda world: world.publish(user, topic, payload, retain=retain)


def _frame(user: str, topic: str, payload: bytes = b"") -> Callable[[World], str]:
    return lambda world: world.publish(user, topic, pack_frame(FrameHeader(1, 1, 1 << 40, 7), payload))


def _subscribed(world: World) -> str:
    async def go() -> list[str]:
        seen: list[str] = []
        connection = MqttBroker(world.broker.config(OTHER)).connect(
            client_id="listener", on_message=lambda topic, _: seen.append(topic), packet_max_bytes=16 << 20
        )
        async with connection as session:
            await session.subscribe(["#"])
            step = world.step()
            await asyncio.to_thread(wait_until, lambda: world.step() > step + 20, _WAIT_S, "steps of the run")
            await session.close()
        return seen

    return "" if asyncio.run(go()) else "broker: delivers none of 20 steps and more"


def _as_node(user: str, act: Callable[..., Coroutine[None, None, None]]) -> Callable[[World], None]:
    """Return the attempt of a node that has its own credential and follows the delivery protocol."""

    def run(world: World) -> None:
        async def go() -> None:
            async with wired(MqttBroker(world.broker.config(user)), user, stream_id=time.time_ns()) as wire:
                await act(wire)

        asyncio.run(go())

    return run


def _counted(
    attack: Callable[[World], None], counter: Counter, holds: Callable[[World], bool]
) -> Callable[[World], str]:
    """Return an attempt that the broker lets pass: the coordinator has to count it, and `holds` must hold then."""

    def act(world: World) -> str:
        before = counter.read(world)
        attack(world)
        _wait_for(counter, world, before)
        return "coordinator" if holds(world) else ""

    return act


def _announcement(run: str, node: str, rank: int) -> NodeAnnouncement:
    now_ns = time.time_ns()
    info = RankInfo(
        rank=rank, local_rank=0, world_size=RANKS, hostname=node, attempt=now_ns, state="running",
        heartbeat_unix_ns=now_ns,
    )  # fmt: skip
    return NodeAnnouncement(run=run, node=node, ranks=[info], groups=[], revision=1)


async def _claim(wire) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001  (of tests, which carry no types)
    await wire.announce(_announcement(RUN, OTHER, 0))


async def _forge(wire) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    now_ns, step_ns = time.time_ns(), 50_000_000
    steps = list(range(1, FORGED + 1))
    end_ns = [now_ns + step * step_ns for step in steps]
    columns = {
        "step": steps,
        "start_ns": [end - step_ns for end in end_ns],
        "end_ns": end_ns,
        "flags": [0] * FORGED,
        "compute_ns": [step_ns - 1] * FORGED,
    }
    await wire.send(topics.STEPS, batch_of_columns([0] * FORGED, columns, run=RUN, node=OTHER, sent_unix_ns=now_ns))


async def _invent(wire) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    for number in range(INVENTED):
        await wire.announce(_announcement(f"invented-{number}", TENANT, 0))


def _spans(world: World) -> str:
    group = GroupInfo(kind="dp", name="g", ranks=[[0, 1 << 20, 1]] * 8)
    payload = encode(NodeAnnouncement(run=RUN, node=OTHER, ranks=[], groups=[group]))
    return world.publish(OTHER, run_topic(RUN, topics.ANNOUNCE, OTHER), payload)


def _oversized(world: World) -> str:
    """Send by hand what our own client would not."""
    context = ssl.create_default_context(cafile=str(world.directory / "server.crt"))
    context.load_cert_chain(world.directory / f"{OTHER}.crt", world.directory / f"{OTHER}.key")
    will = Will(topic=node_topic(OTHER, topics.ALIVE), payload=b"")
    with (
        socket.create_connection(("127.0.0.1", world.broker.port), _WAIT_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(packets.connect("huge", keepalive_s=60, will=will))
        connection.recv(4096)
        topic = run_topic(RUN, topics.STEPS, OTHER)
        try:
            connection.sendall(packets.publish(topic, bytes(_PACKET_BYTES), packet_id=1))
            while connection.recv(4096):
                pass
        except TimeoutError:
            return ""
        except OSError:
            pass
    return "broker: ends the connection"


def _outdated(world: World) -> str:
    """Order a capture under a term, then another one under the term before."""
    term = int(time.time())
    order = CaptureRequest(run=RUN, node=OWNER, request_id=1, ranks=[0], first_step=-1, steps=1, term=term)
    topic = run_topic(RUN, topics.REQUEST, OWNER)
    counter = _exporter("inputs_rejected_total", 'input="request"')
    assert world.publish(COORDINATOR, topic, encode(order)) == ""
    before = counter.read(world)
    world.publish(COORDINATOR, topic, encode(replace(order, request_id=2, term=term - 1)))
    _wait_for(counter, world, before)
    return "exporter: its term is over" if counter.read(world) > before else ""


def _reload(world: World) -> str:
    request = urllib.request.Request(f"{world.coordinator.url}/-/reload", method="POST")  # noqa: S310  (our own service)
    try:
        with urllib.request.urlopen(request, timeout=_WAIT_S):  # noqa: S310
            return ""
    except urllib.error.HTTPError as error:
        return f"coordinator: HTTP {error.code}"


def _attempts() -> Iterator[Attempt]:
    """Yield the table of docs/security.md, in its order."""
    now_ns = time.time_ns()
    yield Attempt(
        "stranger",
        "connect without TLS",
        _connect(lambda world: BrokerConfig(broker_port=world.broker.port)),
        _log("wrong version number"),
    )
    yield Attempt(
        "stranger",
        "connect without a certificate",
        _connect(lambda world: replace(world.broker.config(OWNER), broker_cert_file="", broker_key_file="")),
        _log("peer did not return a certificate"),
    )
    yield Attempt(
        "stranger",
        "connect with a certificate of its own",
        _connect(_own_certificate),
        _log("certificate verify failed"),
    )
    heartbeat = CoordinatorAlive(coordinator="c0", alive=True, incarnation=1, unix_ns=now_ns, term=1 << 40)
    acknowledgement = Acknowledgement(
        node=OWNER, coordinator="c1", incarnation=now_ns, stream_id=1, received=1 << 40, committed=1 << 40
    )
    order = CaptureRequest(run=RUN, node=OWNER, request_id=9, ranks=[0], first_step=-1, steps=1, term=1 << 40)
    gone = NodeAlive(node=OWNER, alive=False, unix_ns=now_ns, stream_id=1)
    rows: list[tuple[str, str, Callable[[World], str]]] = [
        (OTHER, "publish steps as another node", _frame(OTHER, run_topic(RUN, topics.STEPS, OWNER))),
        (OTHER, "publish an answer as another node", _frame(OTHER, run_topic(RUN, topics.ANSWER, OWNER))),
        (OTHER, "publish a lost frame as another node", _frame(OTHER, node_topic(OWNER, topics.LOST))),
        (
            OTHER,
            "announce as another node",
            _published(OTHER, run_topic(RUN, topics.ANNOUNCE, OWNER), _announcement(RUN, OWNER, 0), retain=True),
        ),
        (OTHER, "end another node", _published(OTHER, node_topic(OWNER, topics.ALIVE), gone, retain=True)),
        (OTHER, "acknowledge another node", _published(OTHER, node_topic(OWNER, topics.ACK), acknowledgement)),
        (OTHER, "order a capture", _published(OTHER, run_topic(RUN, topics.REQUEST, OWNER), order)),
        (
            OTHER,
            "pose as a coordinator that leads",
            _published(OTHER, topics.coordinator_topic("c0"), heartbeat, retain=True),
        ),
        (TENANT, "publish steps as a node of another run", _frame(TENANT, run_topic(RUN, topics.STEPS, OWNER))),
        ("coordinator", "publish steps as a node", _frame(COORDINATOR, run_topic(RUN, topics.STEPS, OWNER))),
    ]
    yield from (Attempt(party, what, act, _log(_DENIED)) for party, what, act in rows)
    yield Attempt(OTHER, "subscribe to everything", _subscribed, None)
    yield Attempt(
        "coordinator",
        "order a capture with an old term",
        _outdated,
        _exporter("inputs_rejected_total", 'input="request"'),
    )
    claimed = _coordinator("announcements_refused_total", 'reason="rank_claimed"')
    yield Attempt(
        OTHER,
        "announce a rank of another node",
        _counted(_as_node(OTHER, _claim), claimed, lambda world: set(world.owners()) == {"host0"}),
        claimed,
    )
    foreign = _coordinator("records_rejected_total", 'reason="foreign"', FORGED)
    yield Attempt(
        OTHER,
        f"send {FORGED} forged records of another's rank",
        _counted(_as_node(OTHER, _forge), foreign, lambda world: not _incidents(world)),
        foreign,
    )
    invented = _coordinator("announcements_refused_total", 'reason="run_of_node"', INVENTED // 2)
    yield Attempt(
        TENANT,
        f"invent {INVENTED} runs",
        _counted(_as_node(TENANT, _invent), invented, lambda world: _runs(world) < INVENTED // 2),
        invented,
    )
    malformed = _coordinator("messages_rejected_total", 'reason="malformed"')
    for what, attack in (
        ("announce eight million members in 143 bytes", _spans),
        ("send a frame that is none", _published(OTHER, run_topic(RUN, topics.STEPS, OTHER))),
    ):
        yield Attempt(
            OTHER, what, _counted(lambda world, attack=attack: attack(world), malformed, _is_evaluated), malformed
        )  # type: ignore[misc]
    yield Attempt(
        OTHER, f"send a packet of {_PACKET_BYTES >> 20} MiB", _oversized, _log("disconnected due to oversize packet")
    )
    yield Attempt("stranger", "POST /-/reload without a token", _reload, None)


def _incidents(world: World) -> float:
    return total(world.coordinator.scrape() or {}, "lockstep_run_incidents_open")


def _runs(world: World) -> int:
    return len(get_json(f"{world.coordinator.url}/api/v1/runs")["runs"])


def _is_evaluated(world: World) -> bool:
    step = world.step()
    wait_until(lambda: world.step() > step, _WAIT_S, "another step of the run")
    return True


def main() -> int:
    """Try everything and print the table; returns the exit status."""
    failures = 0
    with tempfile.TemporaryDirectory(prefix="lockstep-security-") as name, contextlib.ExitStack() as parts:
        world = World(Path(name), parts)
        print("| party | attempt | refused by | counted by |\n|---|---|---|---|")
        for attempt in _attempts():
            counter = attempt.counter
            before = counter.read(world) if counter else 0.0
            refused = attempt.act(world)
            after = _wait_for(counter, world, before) if counter else 0.0
            is_counted = counter is None or after - before >= counter.least
            shown = "the client's answer" if counter is None else f"{counter.name} {before:.0f} -> {after:.0f}"
            print(f"| {attempt.party} | {attempt.what} | {refused or 'NOT REFUSED'} | {shown} |", flush=True)
            failures += not refused or not is_counted
        is_working = _is_evaluated(world) and not _incidents(world)
    print(f"\n{failures} failed; the run is {'still evaluated, without an incident' if is_working else 'NOT WELL'}")
    return 1 if failures or not is_working else 0


if __name__ == "__main__":
    sys.exit(main())
