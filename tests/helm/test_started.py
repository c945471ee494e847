"""The containers' commands, started for real: broker with TLS, passwords and access rules, coordinator, exporter, a job."""

import asyncio
import base64
import json
import os
import re
import ssl
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

import bcrypt
import pytest
import yaml

from lockstep.contracts import topics
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.messaging import BrokerError, PublishRefusedError
from lockstep.serving.mqtt import MqttBroker
from tests.helm.charts import CHART, ROOT, join_pod, merged, pick, pod_of, render
from tests.helm.containers import LOOPBACK, Node
from tests.support.servers import WAIT_S, free_port, get, get_json, running, wait_until

RUN, RANKS = "my-run", 2
JOB = """
import time
import lockstep
while True:
    with lockstep.step():
        time.sleep(0.02)
"""


def copy_agent(directory):
    """Copy the agent as the image's entry point does, from a folder that has what the wheel has."""
    image = directory / "image"
    image.mkdir()
    (image / "lockstep").symlink_to(ROOT / "lockstep")
    text = (ROOT / "docker" / "agent.Dockerfile").read_text()
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[1])
    shell = [word.replace("/agent/.", f"{image}/lockstep") for word in entry]
    target = directory / "agent"
    target.mkdir()
    subprocess.run([*shell, str(target)], check=True)
    return target


class Release:
    """What an install brings up, on loopback."""

    def __init__(self, directory, parts, own=None, objects=()):
        self.ports = {name: free_port() for name in ("exporter", "coordinator", "broker")}
        host = {"value": LOOPBACK}
        values = {
            "exporter": {
                "port": self.ports["exporter"],
                "config": {"batch_seconds": 0.2, "announce_seconds": 1},
                "extraEnv": [{"name": "LOCKSTEP_EXPORTER_HTTP_HOST", **host}],
            },
            "coordinator": {
                "port": self.ports["coordinator"],
                "extraEnv": [{"name": "LOCKSTEP_COORDINATOR_HTTP_HOST", **host}],
                "policy": {"run.recover_steps": 7},
            },
            "broker": {
                "tls": {"extraAddresses": [LOOPBACK]},
                # Where tests run as root, mosquitto would become a user who may not read them.
                "mosquitto": {"port": self.ports["broker"], "extraConfig": "user root\n"},
            },
        }
        volume = yaml.safe_load("coordinator: {persistence: {existingClaim: data}}")
        self.items = [*render(merged(values, volume, own or {})), *objects]
        self.directory = directory
        self.node = Node(directory, self.items)
        self.parts = parts

    def start_broker(self):
        """Hash the passwords as the init container does, then run mosquitto."""
        item = pick(self.items, "Deployment", "-mosquitto")
        self.broker = item
        command, environment = self.node.container(item, "passwords", init=True)
        subprocess.run(command, env=environment, check=True, capture_output=True)
        command, environment = self.node.container(item)
        configuration = self.node.folder(item, "config") / "mosquitto.conf"
        listener = f"listener {self.ports['broker']}"
        configuration.write_text(configuration.read_text().replace(listener, f"{listener} {LOOPBACK}"))
        self.parts.enter_context(running(command, self.directory / "mosquitto.log", environment))

    def start_services(self):
        """Run both services and wait until their start-up probes would pass."""
        started = {}
        for kind, name in (("StatefulSet", "coordinator"), ("DaemonSet", "exporter")):
            command, environment = self.node.container(pick(self.items, kind, f"-{name}"))
            log = self.directory / f"{name}.log"
            started[name] = self.parts.enter_context(running(command, log, environment)), log
        for name, (process, log) in started.items():
            self.wait_healthy(name, process, log)

    def wait_healthy(self, name, process, log):
        """Wait as long as the start-up probe would: a busy machine needs many seconds for the imports alone."""

        def healthy():
            assert process.poll() is None, log.read_text()[-3000:]
            return get(f"{self.url(name)}/-/healthy")

        wait_until(healthy, 60, f"{name} is healthy")

    def url(self, name):
        """Return the address of a service."""
        return f"http://{LOOPBACK}:{self.ports[name]}"


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    directory = tmp_path_factory.mktemp("release")
    with ExitStack() as parts:
        release = Release(directory, parts)
        release.start_broker()
        release.start_services()
        trainer = join_pod(release.items)["spec"]["containers"][0]
        agent = copy_agent(directory)
        rings = release.node.folder(pick(release.items, "DaemonSet"), "lockstep-rings")
        paths = {"/opt/lockstep": agent, "/run/lockstep": rings}
        joined = {one["name"]: release.node._inside(one["value"], paths) for one in trainer["env"]}
        wrapper = [release.node._inside(word, paths) for word in trainer["command"][:-1]]
        (directory / "job.py").write_text(textwrap.dedent(JOB))
        for rank in range(RANKS):
            # The interpreter below our environment: it has no lockstep but the copied one.
            python = os.path.realpath(sys.executable)
            environment = {"PATH": os.environ["PATH"], "RANK": str(rank), "WORLD_SIZE": str(RANKS), **joined}
            parts.enter_context(
                running([*wrapper, python, directory / "job.py"], directory / f"rank-{rank}.log", environment)
            )
        yield release


@pytest.mark.smoke
@pytest.mark.servers
def test_a_job_is_monitored_through_what_the_chart_starts(release):
    """Ranks that joined as the notes describe are seen by the coordinator, over TLS and the access rules."""

    def seen():
        found = get_json(f"{release.url('coordinator')}/api/v1/runs/{RUN}")
        return found is not None and found["step"] > 20 and len(found["ranks"]) == RANKS and found

    run = wait_until(seen, WAIT_S, "steps of the run on all ranks")
    assert [one["rank"] for one in run["ranks"]] == list(range(RANKS))
    metrics = get(f"{release.url('exporter')}/metrics")
    for rank in range(RANKS):
        assert re.search(rf'^lockstep_steps_total\{{(?=[^}}]*run="{RUN}")[^}}]*rank="{rank}"', metrics, re.MULTILINE)


@pytest.mark.servers
def test_discovery_names_the_address_of_the_pod(release):
    """Prometheus reaches what the coordinator names: the pod's address, where a host name would lead nowhere."""
    targets = wait_until(
        lambda: get_json(f"{release.url('coordinator')}/api/v1/targets"), 20, "an exporter's heartbeat"
    )
    assert [one["targets"] for one in targets] == [[f"{LOOPBACK}:{release.ports['exporter']}"]]


@pytest.mark.servers
def test_the_configuration_of_the_chart_is_in_force(release):
    """Thresholds of the mounted policy file, and a token that the API asks for."""
    policy = get_json(f"{release.url('coordinator')}/api/v1/policy")
    assert "recover_steps" in json.dumps(policy)
    token = next((release.node.folder(pick(release.items, "StatefulSet"), "api-token")).iterdir()).read_text()
    address = f"{release.url('coordinator')}/-/reload"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(urllib.request.Request(address, method="POST"))
    signed = urllib.request.Request(address, method="POST", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(signed) as answer:
        assert answer.status == 200


@pytest.mark.servers
def test_helm_tests_hook_passes(release):
    """The hook's own command against the coordinator: connected to the broker, and with metrics for Prometheus."""
    hook = pick(release.items, "Pod", "-test")
    container = pod_of(hook)["containers"][0]
    environment = {one["name"]: release.node._inside(one["value"], {"/nowhere": CHART}) for one in container["env"]}
    command = [sys.executable, *container["command"][1:], *container["args"]]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"/-/ready 200 6 bytes\n/metrics 200 \d{4,} bytes\n", done.stdout)
    gone = environment | {"URL": f"http://{LOOPBACK}:{free_port()}"}
    assert subprocess.run(command, env=os.environ | gone, capture_output=True, check=False).returncode == 1


@pytest.mark.servers
async def test_the_broker_lets_no_one_else_in(release, tmp_path):
    """No name, a wrong password, plain TCP; and an exporter's name receives nothing that only the coordinator may read."""
    authority = str(release.node.folder(release.broker, "certs") / "ca.crt")
    secret = release.node.folder(release.broker, "secret")
    words = {name: (secret / f"{name}-password").read_text() for name in ("exporter", "coordinator")}

    async def receives(username, password, *, tls=True, seconds=1):
        """Whether retained heartbeats arrive in time; raises where the broker refuses the connection."""
        (tmp_path / "password").write_text(password)
        config = BrokerConfig(
            broker_port=release.ports["broker"],
            broker_username=username,
            broker_password_file=str(tmp_path / "password") if username else "",
            broker_ca_file=authority if tls else "",
        )
        arrived = asyncio.Event()
        connection = MqttBroker(config).connect(
            client_id=f"test-{username}", on_message=lambda *_: arrived.set(), packet_max_bytes=1 << 20
        )
        async with connection as session:
            await session.subscribe(["lockstep/v1/node/+/alive"])
            try:
                async with asyncio.timeout(seconds):
                    await arrived.wait()
            except TimeoutError:
                return False
            return True

    for username, password, tls in (
        ("", "", True),
        ("lockstep-exporter", "wrong", True),
        ("lockstep-exporter", words["exporter"], False),
    ):
        with pytest.raises(BrokerError):
            await receives(username, password, tls=tls)
    assert not await receives("lockstep-exporter", words["exporter"])
    assert await receives("lockstep-coordinator", words["coordinator"], seconds=WAIT_S)


@pytest.mark.servers
async def test_a_user_per_node(tmp_path):
    """The exporter signs in as its node, with the one password that it sees; another node's topics are refused."""
    passwords = {"node-a": "word-a", "node-b": "word-b"}
    secret = {"kind": "Secret", "metadata": {"name": "nodes"}, "stringData": passwords}
    with ExitStack() as parts:
        release = Release(tmp_path, parts, {"broker": {"auth": {"nodesSecret": "nodes"}}}, [secret])
        release.start_broker()
        release.start_services()
        connected = re.compile(r"^lockstep_exporter_mqtt_connected(\{.*\})? 1", re.MULTILINE)
        wait_until(
            lambda: connected.search(get(f"{release.url('exporter')}/metrics")), WAIT_S, "the exporter's session"
        )
        targets = wait_until(lambda: get_json(f"{release.url('coordinator')}/api/v1/targets"), WAIT_S, "its heartbeat")
        assert len(targets) == 1
        (tmp_path / "password").write_text(passwords["node-a"])
        config = BrokerConfig(
            broker_port=release.ports["broker"],
            broker_username="node-a",
            broker_password_file=str(tmp_path / "password"),
            broker_ca_file=str(release.node.folder(release.broker, "certs") / "ca.crt"),
        )
        connection = MqttBroker(config).connect(client_id="x", on_message=lambda *_: None, packet_max_bytes=1 << 20)
        async with connection as session:
            await session.publish(topics.run_topic("other-run", topics.SUMMARY, "node-a"), b"")
            with pytest.raises(PublishRefusedError, match="not authorized"):
                await session.publish(topics.run_topic("other-run", topics.SUMMARY, "node-b"), b"")
            await session.close()


@pytest.mark.servers
def test_https_and_a_password_as_the_web_configuration_sets_them(tmp_path):
    """The exporter with the rendered file: its metrics for who knows the password, over TLS, and for no one else."""
    port = free_port()
    values = {
        "exporter": {"port": port, "extraEnv": [{"name": "LOCKSTEP_EXPORTER_HTTP_HOST", "value": LOOPBACK}]},
        "broker": {"tls": {"extraAddresses": [LOOPBACK]}},
        "webConfig": {
            "enabled": True,
            "tls": True,
            "basicAuth": True,
            "certificateSecret": "lockstep-web",
            "content": {
                "tls_server_config": {
                    "cert_file": "/etc/lockstep-web-tls/tls.crt",
                    "key_file": "/etc/lockstep-web-tls/tls.key",
                },
                "basic_auth_users": {"prometheus": bcrypt.hashpw(b"word", bcrypt.gensalt(4)).decode()},
            },
        },
    }
    items = render(values)
    made = pick(items, "Secret", "-broker-tls")["data"]  # a certificate for this address
    items.append({"kind": "Secret", "metadata": {"name": "lockstep-web"}, "data": made})
    command, environment = Node(tmp_path, items).container(pick(items, "DaemonSet"))
    log = tmp_path / "exporter.log"
    trusted = ssl.create_default_context(cadata=base64.b64decode(made["ca.crt"]).decode())
    basic = {"Authorization": f"Basic {base64.b64encode(b'prometheus:word').decode()}"}

    def ask(headers):
        request = urllib.request.Request(f"https://{LOOPBACK}:{port}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=WAIT_S, context=trusted) as answer:
            return answer.read().decode()

    def up():
        assert process.poll() is None, log.read_text()
        with suppress(urllib.error.URLError):
            return ask(basic)
        return None

    with running(command, log, environment) as process:
        assert "lockstep_exporter_build_info" in wait_until(up, WAIT_S, "metrics over HTTPS")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask({})
        assert get(f"http://{LOOPBACK}:{port}/metrics") is None


def test_prepare_makes_the_directories_ready(tmp_path):
    """The init container that runs as root: the shared directory hands its group on, spool and `.exporter` are the exporter's.

    With the capabilities that it asks for and no more, as a kubelet starts it: without a group of the pod in common the
    kernel would clear the bit that hands the group on.
    """
    if os.geteuid() != 0:
        pytest.fail("this test gives directories away, which takes root: run it as root, as CI does")
    items = render({"exporter": {"sharedGroup": 2000, "hostPath": {"spool": "/var/lib/lockstep"}}})
    node, item = Node(tmp_path, items), pick(items, "DaemonSet")
    command, environment = node.container(item, "prepare", init=True)
    pod = pod_of(item)
    context = pod["initContainers"][0]["securityContext"]
    bounds = ",".join(["-all", *(f"+{name.lower()}" for name in context["capabilities"]["add"])])
    user = [f"--reuid={context['runAsUser']}", f"--regid={context['runAsGroup']}"]
    groups = f"--groups={pod['securityContext']['fsGroup']}"
    as_configured = ["setpriv", *user, groups, f"--bounding-set={bounds}", "--inh-caps=-all", "--no-new-privs"]
    subprocess.run([*as_configured, *command], env=environment, check=True)
    rings, spool = node.folder(item, "lockstep-rings").stat(), (node.folder(item, "spool") / "spool").stat()
    assert (rings.st_uid, rings.st_gid, rings.st_mode & 0o7777) == (0, 2000, 0o3770)
    own = (node.folder(item, "lockstep-rings") / ".exporter").stat()
    assert (own.st_uid, own.st_gid, own.st_mode & 0o7777) == (65532, 2000, 0o755)
    assert (spool.st_uid, spool.st_gid, spool.st_mode & 0o7777) == (65532, 2000, 0o700)
