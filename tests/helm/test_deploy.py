"""Bare metal, Slurm, compose and the example manifests: what can be executed is, the rest is held to the chart and the code."""

import contextlib
import json
import os
import pwd
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from alerts.policy import Site
from coordinator.settings.config import CoordinatorConfig
from exporter.config import ExporterConfig
from lockstep.cli.main import build_parser
from lockstep.contracts.settings import build_config
from lockstep.serving.broker import BrokerConfig
from lockstep.serving.messaging import BrokerError
from lockstep.serving.mqtt import MqttBroker
from tests.helm.charts import ROOT, join_pod, render
from tests.helm.kubernetes import NEWEST, SIDECARS_SINCE, check
from tests.support.servers import WAIT_S, free_port, program, running, wait_until

DEPLOY, EXAMPLES = ROOT / "deploy", ROOT / "examples" / "kubernetes"
FORMS = {"exporter": ExporterConfig, "coordinator": CoordinatorConfig}
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "docker-compose.yml").read_text())


@pytest.mark.parametrize("service", FORMS)
@pytest.mark.parametrize("folder", ["systemd", "compose"])
def test_the_services_take_the_example_configurations(folder, service):
    """No unknown key, no wrong type, and the ports that scrapers and units expect."""
    file = yaml.safe_load((DEPLOY / folder / f"{service}.yaml").read_text())
    config = build_config(FORMS[service], file=file, prefix="NONE_")
    assert config.http_port == {"exporter": 9855, "coordinator": 9856}[service]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("service", FORMS)
def test_systemd_takes_the_units(service, tmp_path):
    """Verified by systemd itself, with the program at a place that exists here; its command is one of ours."""
    unit = (DEPLOY / "systemd" / f"lockstep-{service}.service").read_text()
    command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1].split()
    assert command[0] == "/opt/lockstep/bin/lockstep"
    assert build_parser().parse_args(command[1:]).config == f"/etc/lockstep/{service}.yaml"
    path = tmp_path / f"lockstep-{service}.service"
    path.write_text(unit.replace(command[0], sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if path.name in line]
    assert complaints == [], done.stderr


def test_the_unit_names_the_node_as_its_user_at_the_broker():
    """The access rules go by it; the host name, as the exporter itself would take it."""
    unit = (DEPLOY / "systemd" / "lockstep-exporter.service").read_text()
    (line,) = re.findall(r"^Environment=(.*)$", unit, re.MULTILINE)
    variables = dict(one.split("=") for one in line.replace("%H", socket.gethostname()).split())
    file = yaml.safe_load((DEPLOY / "systemd" / "exporter.yaml").read_text())
    config = build_config(ExporterConfig, file=file, environment=variables, prefix="LOCKSTEP_EXPORTER_")
    assert config.broker_username == config.node_name == socket.gethostname()


def installed_broker(folder):
    """Run the commands of the page, in a folder for /etc/mosquitto; return the certificate that clients trust."""
    (folder / "conf.d").mkdir()
    page = ROOT / "docs" / "install-slurm.md"
    block = re.search(r"^## 1\..*?^```\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)[1]
    for line in block.replace("/etc/mosquitto", str(folder)).replace(" -g mosquitto", "").splitlines():
        words = shlex.split(line)
        if words[0] == "mosquitto_passwd":
            words = [words[0], "-b", *words[1:], "word"]
        if words[0] not in ("apt-get", "systemctl", "chgrp"):
            subprocess.run([program(words[0]), *words[1:]], check=True, capture_output=True, cwd=ROOT)
    return folder / "certs" / "ca.crt"


@pytest.mark.servers
async def test_the_broker_of_the_slurm_page(tmp_path, monkeypatch):
    """A certificate for the broker's name, two names that get in with their password, and no one without."""
    trusted = ssl.create_default_context(cafile=installed_broker(tmp_path))
    trusted.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 asks
    port, configuration = free_port(), tmp_path / "conf.d" / "lockstep.conf"
    text = configuration.read_text().replace("/etc/mosquitto", str(tmp_path)).replace("8883", f"{port} 127.0.0.1")
    configuration.write_text(text + ("user root\n" if os.geteuid() == 0 else ""))

    def answers():
        with (
            contextlib.suppress(ConnectionRefusedError),
            socket.create_connection(("127.0.0.1", port)) as plain,
            trusted.wrap_socket(plain, server_hostname="broker.example.internal") as secure,
        ):
            return secure.version()

    with running([program("mosquitto"), "-c", str(configuration)], tmp_path / "mosquitto.log"):
        assert wait_until(answers, WAIT_S, "the broker's certificate, for the broker's name") in ("TLSv1.2", "TLSv1.3")
        resolve = socket.getaddrinfo  # to this machine, whatever the name
        monkeypatch.setattr(socket, "getaddrinfo", lambda _, *more, **named: resolve("127.0.0.1", *more, **named))
        for name, password, gets_in in (
            ("node-1", "word", True),
            ("lockstep-coordinator", "word", True),
            ("lockstep-coordinator", "other", False),
        ):
            (tmp_path / "password").write_text(password)
            broker = MqttBroker(
                BrokerConfig(
                    broker_host="broker.example.internal",
                    broker_port=port,
                    broker_username=name,
                    broker_password_file=str(tmp_path / "password"),
                    broker_ca_file=str(tmp_path / "certs" / "ca.crt"),
                )
            )
            with contextlib.nullcontext() if gets_in else pytest.raises(BrokerError, match="not authorized"):
                async with broker.connect(client_id=name, on_message=lambda *_: None, packet_max_bytes=1000) as session:
                    await session.close()


def slurm(script, tmp_path, **environment):
    """Run a script of deploy/slurm for this test's directory; return its output."""
    done = subprocess.run(
        ["sh", DEPLOY / "slurm" / script],
        env={"PATH": os.environ["PATH"], "LOCKSTEP_ROOT": str(tmp_path / "rings")} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


OWN = {"LOCKSTEP_USER": str(os.getuid()), "LOCKSTEP_GROUP": str(os.getgid())}


def test_the_prolog_makes_the_directories_and_never_fails_a_job(tmp_path):
    """Owned by the group that is named, handing it on, and the exporter's own in it; with a group that is none, the job goes on."""
    for _ in range(2):
        slurm("prolog.sh", tmp_path, **OWN)
        rings = tmp_path / "rings"
        assert [path.stat().st_mode & 0o7777 for path in (rings, rings / ".exporter")] == [0o3770, 0o755]
    slurm("prolog.sh", tmp_path, LOCKSTEP_GROUP="no-such-group")


@pytest.mark.parametrize("kind", ["link", "file", "directory"])
def test_the_prolog_leaves_alone_what_a_user_has_made_in_its_place(tmp_path, kind):
    """It runs as root: a link must not lead it to change another directory."""
    rings, outside = tmp_path / "rings", tmp_path / "outside"
    outside.mkdir(mode=0o700)
    if kind == "link":
        rings.symlink_to(outside)
    elif kind == "file":
        rings.touch()
    elif os.geteuid() != 0:
        pytest.fail("this test makes a directory of another user, which takes root: run it as root, as CI does")
    else:
        rings.mkdir(mode=0o700)
        os.chown(rings, 12345, 12345)
    before = [(path.lstat().st_mode, path.lstat().st_uid) for path in (rings, outside)]
    slurm("prolog.sh", tmp_path, **OWN)
    assert [(path.lstat().st_mode, path.lstat().st_uid) for path in (rings, outside)] == before
    assert list(outside.iterdir()) == []


def test_the_task_prolog_prints_what_a_rank_needs(tmp_path):
    """Slurm sets each printed `export`; what a job sets itself wins, and its own PYTHONPATH stays."""
    printed = slurm(
        "task_prolog.sh",
        tmp_path,
        SLURM_JOB_ID="17",
        LOCKSTEP_SITE="/site",
        LOCKSTEP_USER="daemon",
        PYTHONPATH="/mine",
    )
    assert printed.splitlines() == [
        "export LOCKSTEP_RUN=job-17",
        f"export LOCKSTEP_DIR={tmp_path}/rings",
        f"export LOCKSTEP_EXPORTER_UID={pwd.getpwnam('daemon').pw_uid}",
        "export PYTHONPATH=/site:/mine",
    ]
    own = {"LOCKSTEP_RUN": "big", "LOCKSTEP_DIR": "/d", "LOCKSTEP_EXPORTER_UID": "7", "LOCKSTEP_SITE": "/s"}
    assert slurm("task_prolog.sh", tmp_path, SLURM_JOB_ID="17", **own) == "export PYTHONPATH=/s\n"
    del own["LOCKSTEP_EXPORTER_UID"]
    own["LOCKSTEP_USER"] = "no-such-user"
    assert slurm("task_prolog.sh", tmp_path, SLURM_JOB_ID="17", **own) == "export PYTHONPATH=/s\n"


def test_the_epilog_removes_that_jobs_rings_and_nothing_else(tmp_path):
    """A job number that is none removes nothing."""
    for name in ("job-17", "job-17.0", "job-17-4711", "job-17.1-4711", "job-18", "job-170.0"):
        (tmp_path / "rings" / name).mkdir(parents=True)
    for wrong in ("", "..", "17/../..", "*"):
        slurm("epilog.sh", tmp_path, SLURM_JOB_ID=wrong)
    slurm("epilog.sh", tmp_path, SLURM_JOB_ID="17")
    assert {path.name for path in (tmp_path / "rings").iterdir()} == {"job-18", "job-170.0"}


def test_the_batch_script_runs_torchrun_under_lockstep(tmp_path):
    """With programs in Slurm's place: each node gets one `lockstep run` with the job's name."""
    for name, text in {
        "scontrol": "echo node-1; echo node-2",
        "srun": 'printf "%s\\n" "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", DEPLOY / "slurm" / "train.sbatch"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2",
             "SLURM_JOB_NODELIST": "node-[1-2]"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    words = done.stdout.split()
    assert words[:1] == ["lockstep"]
    arguments = build_parser().parse_args(words[1:])
    assert (arguments.run, arguments.root) == ("job-17", "/dev/shm/lockstep")
    assert arguments.command[1:3] == ["torchrun", "--nnodes"]
    assert "node-1:29500" in arguments.command


def test_prometheus_and_alertmanager_take_the_composed_files(tmp_path):
    """With the rules at the place where compose mounts them; jobs are those of the rules."""
    text = (DEPLOY / "compose" / "prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(
        text.replace("/etc/prometheus/lockstep.rules.yaml", str(ROOT / "alerts" / "rendered" / "lockstep.rules.yaml"))
    )
    done = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    jobs = {job["job_name"] for job in yaml.safe_load(text)["scrape_configs"]}
    assert jobs == {Site().exporter_job, Site().coordinator_job}


def test_what_compose_mounts_exists():
    """Each file and folder of the repository, each named volume; no port is open beyond loopback."""
    for name, service in COMPOSE["services"].items():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert not service["image"].endswith(":latest")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "compose" / source).exists(), (name, volume)
            elif not source.startswith("/"):
                assert source in COMPOSE["volumes"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        if service["image"].startswith("lockstep/"):
            assert build_parser().parse_args(service["command"]).execute
            assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_the_composed_exporter_owns_its_spool():
    """By uid and gid: runc gives a tmpfs the mode that the image's directory has, so that mode alone opens nothing."""
    service = COMPOSE["services"]["exporter"]
    (options,) = [one.partition(":")[2] for one in service["tmpfs"] if one.startswith("/var/lib/lockstep:")]
    given = dict(option.split("=", 1) for option in options.split(","))
    assert f"{given['uid']}:{given['gid']}" == service["user"]


def test_grafana_finds_the_dashboards():
    """The provider's path is the mounted folder; the dashboards' data source is a variable that this one fills."""
    provider = yaml.safe_load((DEPLOY / "compose" / "grafana" / "dashboards" / "lockstep.yaml").read_text())
    path = provider["providers"][0]["options"]["path"]
    assert f"../../dashboards/rendered:{path}:ro" in COMPOSE["services"]["grafana"]["volumes"]
    source = yaml.safe_load((DEPLOY / "compose" / "grafana" / "datasources" / "prometheus.yaml").read_text())
    types = {one["type"] for one in source["datasources"]}
    for board in (ROOT / "dashboards" / "rendered").glob("*.json"):
        variables = json.loads(board.read_text())["templating"]["list"]
        assert {one["query"] for one in variables if one["type"] == "datasource"} <= types


def pods(node) -> list[dict]:
    """Return every pod specification within a manifest."""
    if isinstance(node, dict):
        own = [node] if "containers" in node else []
        return own + [pod for value in node.values() for pod in pods(value)]
    return [pod for value in node for pod in pods(value)] if isinstance(node, list) else []


def manifests() -> list[tuple[Path, dict]]:
    """Return (file, object) of every example."""
    files = [path for path in sorted(EXAMPLES.glob("*.yaml")) if not path.stem.endswith("-values")]
    return [(path, one) for path in files for one in yaml.safe_load_all(path.read_text())]


@pytest.mark.parametrize(("path", "item"), manifests(), ids=lambda value: getattr(value, "stem", ""))
def test_each_example_joins_as_the_chart_states(path, item):
    """Kubernetes takes each pod; a trainer has /dev/shm, and the rings at the place, from the source, of the mode."""
    if item["apiVersion"] in ("v1", "batch/v1"):
        check(item, NEWEST)
    mode = "sidecar" if path.stem == "sidecar" else "daemonset"
    expected = join_pod(render({"exporter": {"mode": mode}}, name="lockstep"))["spec"]
    wanted = {volume["name"]: volume for volume in expected["volumes"]}
    for pod in pods(item):
        check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}, SIDECARS_SINCE)
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        if not volumes:
            continue  # Ray's head trains nothing, and pods with the label are those of test_injection.py
        assert volumes["lockstep-rings"] == wanted["lockstep-rings"]
        assert volumes["dshm"]["emptyDir"]["medium"] == "Memory"
        trainer = pod["containers"][0]
        assert {"lockstep-rings", "dshm"} <= {mount["name"] for mount in trainer["volumeMounts"]}
        assert trainer["resources"]["limits"]["nvidia.com/gpu"]
        words = " ".join(trainer["command"] + trainer["args"])
        environment = {one["name"]: one for one in trainer["env"]}
        is_wrapped = trainer["command"][:2] == expected["containers"][0]["command"][:2]
        assert "lockstep run --run" in words or (is_wrapped and "LOCKSTEP_RUN" in environment), path
        assert "PYTHONPATH" not in environment, path
        joined = {one["name"]: one.get("value") for one in expected["containers"][0]["env"]}
        assert environment["LOCKSTEP_EXPORTER_UID"]["value"] == joined["LOCKSTEP_EXPORTER_UID"], path
        if mode == "sidecar":
            assert {v: volumes[v] for v in wanted if v != "dshm"} == {v: wanted[v] for v in wanted if v != "dshm"}
            mine, theirs = pod["initContainers"][1], expected["initContainers"][1]
            assert mine == {key: value for key, value in theirs.items() if key != "imagePullPolicy"} | {
                "startupProbe": {"httpGet": {"path": "/-/healthy", "port": "lockstep-http"}}
            }
