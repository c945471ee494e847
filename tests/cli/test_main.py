"""The command line: every mistake is one line that names it, with exit status 2."""

import json
import os
import pwd
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from coordinator.settings.config import CoordinatorConfig
from exporter.config import ExporterConfig
from lockstep.cli.main import main
from lockstep.cli.run_command import inspector_environment
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.paths import inspector_directory
from lockstep.contracts.settings import build_config

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "command of lockstep run: got nothing"),
        (["run", "--", "no-such-program"], "got 'no-such-program'"),
        (["run", "--run", "../x", "--", "true"], "--run: got '../x'"),
        (["run", "--parameters", "7B", "--", "true"], "--parameters: got '7B', expected a positive number"),
        (["run", "--degrees", "tp=2,qp=3", "--", "true"], "--degrees: got 'qp=3'"),
        (["run", "--order", "tp-dp", "--", "true"], "--order: got 'tp-dp'"),
        (["demo", "--rank", "4"], "--rank: got 4, expected 0 to 3"),
        (["demo", "--picture", "/nonexistent/verdict.svg"], "--picture: got '/nonexistent/verdict.svg'"),
        (["demo", "--record", "/proc/nonexistent"], "record_directory: got '/proc/nonexistent'"),
        (
            ["replay", "/nonexistent"],
            "step log /nonexistent: got no such file or folder, expected a recording or step log",
        ),
        (["profile", "job", "--ranks", "0", "--coordinator", "localhost:9856"], "--coordinator: got 'localhost:9856'"),
        (["exporter", "--set", "batch_second=1"], "the nearest known key is 'batch_seconds'"),
        (["exporter", "--set", "http_port=high"], "--set http_port: got 'high', expected an integer"),
        (["exporter", "--set", "zzz=1"], "unknown key in --set: got 'zzz', expected one of advertise_address, "),
        (["up", "--root", "/proc/nonexistent"], "root /proc/nonexistent: got No such file or directory, expected"),
        (["top", "--token-file", "/nonexistent"], "--token-file /nonexistent: got No such file or directory, expected"),
        (["doctor", "--pid", str(1 << 30)], f"--pid: got {1 << 30}, expected a running process"),
        (["run", "--degrees", "tp", "--", "true"], "KIND=N once for each of tp, cp, ep, dp, pp"),
        (["fuse", str(ROOT / "docs/images")], "no usable trace: folder in"),
        (["exporter", "--set", "http_port"], "expected KEY=VALUE"),
        (
            ["coordinator", "--config", "/nonexistent.yaml"],
            "file /nonexistent.yaml: got No such file or directory, expected a readable file",
        ),
    ],
)
def test_mistakes_are_named(capsys, arguments, words):
    """A wrong argument is named on stderr and ends with status 2."""
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "usage", "words"),
    [
        (["up", "--coordinator-prt", "9"], "usage: lockstep up", "--coordinator-prt"),
        (["exporter", "--http-port", "9"], "usage: lockstep exporter", "--http-port 9"),
        (["top", "my-job"], "usage: lockstep top", "my-job"),
    ],
)
def test_what_a_command_does_not_know_shows_that_commands_usage(capsys, arguments, usage, words):
    """The usage of `lockstep` alone lists none of the options that were meant."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(usage)
    assert f"unrecognized arguments: {words}" in error
    assert f"lockstep {arguments[0]} --help" in error


@pytest.mark.parametrize("flag", ["--exporter-port", "--coordinator-port"])
@pytest.mark.parametrize("port", ["99999", "-1", "high"])
def test_a_port_that_is_none_is_named_by_its_option(capsys, flag, port):
    """Two services have an `http_port`: the option names the one that is meant."""
    with pytest.raises(SystemExit) as ended:
        main(["up", f"{flag}={port}"])
    assert ended.value.code == 2
    assert f"argument {flag}: got '{port}', expected 0 (any) to 65535" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["- a list", "key: [unclosed", "batch_seconds: fast"])
def test_a_bad_file_is_named(tmp_path, capsys, content):
    """A configuration file that is none is refused with its name."""
    file = tmp_path / "exporter.yaml"
    file.write_text(content)
    assert main(["exporter", "--config", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize("service", ["exporter", "coordinator"])
def test_a_port_in_use_is_named(tmp_path, service):
    """A service whose port is taken names the port, and ends."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = ["http_host=127.0.0.1", f"http_port={port}", "broker_port=1"]
        settings += [f"root={tmp_path}", f"spool_directory={tmp_path}/spool"] if service == "exporter" else []
        flags = [part for setting in settings for part in ("--set", setting)]
        command = [sys.executable, "-m", "lockstep.cli.main", service, *flags]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert str(port) in ended.stderr
    assert "127.0.0.1" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("flag", ["--exporter-port", "--coordinator-port"])
def test_each_port_of_up_in_use_is_named(tmp_path, flag):
    """`lockstep up` unwraps what its services' task groups raise: one line, whichever port is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        free = ["--exporter-port", "0", "--coordinator-port", "0"]
        command = [sys.executable, "-m", "lockstep.cli.main", "up", "--root", str(tmp_path), *free, flag, port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stderr
    error = next(line for line in ended.stderr.splitlines() if line.startswith("lockstep: "))
    assert error.startswith(f"lockstep: {flag}: got {port}, expected a free port on 127.0.0.1: ")
    assert "ExceptionGroup" not in ended.stderr


@pytest.mark.parametrize(("name", "form"), [("exporter", ExporterConfig), ("coordinator", CoordinatorConfig)])
def test_example_configurations_are_valid(name, form):
    """The examples hold known keys of the right types."""
    file = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())
    config = build_config(form, file=file, prefix="X_")
    if name == "coordinator":  # its token lies on the user's machine
        config = replace(config, api_token_file="")
    config.validate()
    assert config.broker_host == "broker.example.internal"


def test_print_config_shows_what_is_in_force(capsys):
    """The settings in force are printed, flags included."""
    assert main(["exporter", "--print-config", "--set", "batch_seconds=2.5"]) == 0
    assert "batch_seconds: 2.5\n" in capsys.readouterr().out


def test_run_replaces_itself_with_the_command(tmp_path):
    """The training command gets its own arguments, the run's name and root, and the loader; its status comes back."""
    show = "import os, sys, json; print(json.dumps([sys.argv[1:], dict(os.environ)])); sys.exit(7)"
    command = [sys.executable, "-m", "lockstep.cli.main", "run", "--run", "r1", "--root", str(tmp_path)]
    command += ["--tokens", "attention_mask", "--peak-flops", "989e12", "--degrees", "tp=2,dp=4", "--"]
    ended = subprocess.run(
        [*command, sys.executable, "-c", show, "--lr", "1"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": "/own"},
        check=False,
    )
    assert ended.returncode == 7
    arguments, environment = json.loads(ended.stdout)
    assert arguments == ["--lr", "1"]
    assert (environment["LOCKSTEP_RUN"], environment["LOCKSTEP_DIR"]) == ("r1", str(tmp_path))
    assert (environment["LOCKSTEP_TOKENS"], environment["LOCKSTEP_PEAK_FLOPS"]) == ("attention_mask", "989e12")
    assert environment["LOCKSTEP_DEGREES"] == "tp=2,dp=4"
    assert not {"LOCKSTEP_MODEL_FLOPS", "LOCKSTEP_ORDER"} & set(environment)
    first, *rest = environment["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "sitecustomize.py").is_file()
    assert rest == ["/own"]


def inspector(tmp_path, **environ: str) -> dict[str, str]:
    plugin = tmp_path / "libnccl-profiler-inspector.so"
    plugin.touch()
    return inspector_environment({"LOCKSTEP_DIR": str(tmp_path), **environ}, str(plugin))


def test_run_loads_the_nccl_inspector_where_an_exporter_reads(tmp_path, capsys):
    """JSON mode, a dump a second, below the root; without an exporter's directory the training starts without it."""
    assert inspector(tmp_path) == {}
    assert "--nccl-inspector ignored" in capsys.readouterr().err
    directory = inspector_directory(tmp_path)
    directory.mkdir(parents=True)
    assert inspector(tmp_path) == {
        "NCCL_PROFILER_PLUGIN": str(tmp_path / "libnccl-profiler-inspector.so"),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_PROM_DUMP": "0",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "1000000",
        "NCCL_INSPECTOR_DUMP_DIR": str(directory),
    }
    with pytest.raises(ConfigError, match=r"--nccl-inspector: got .*none\.so"):
        inspector_environment({}, str(tmp_path / "none.so"))


def test_run_leaves_variables_of_the_inspector_as_the_user_set_them(tmp_path):
    """All the others are added."""
    inspector_directory(tmp_path).mkdir(parents=True)
    plugin = tmp_path / "plugin.so"
    plugin.touch()
    show = "import os, json; print(json.dumps(dict(os.environ)))"
    command = [sys.executable, "-m", "lockstep.cli.main", "run", "--root", str(tmp_path)]
    ended = subprocess.run(
        [*command, "--nccl-inspector", str(plugin), "--", sys.executable, "-c", show],
        capture_output=True,
        text=True,
        env=os.environ | {"NCCL_INSPECTOR_DUMP_DIR": "/mine", "NCCL_PROFILER_PLUGIN": "/mine.so"},
        check=True,
    )
    environment = json.loads(ended.stdout)
    assert (environment["NCCL_INSPECTOR_DUMP_DIR"], environment["NCCL_PROFILER_PLUGIN"]) == ("/mine", "/mine.so")
    assert environment["NCCL_INSPECTOR_ENABLE"] == "1"


@pytest.mark.parametrize(
    ("given", "user", "expected"),
    [(None, 998, "998"), ("7", 998, "7"), (None, None, None)],
    ids=["by name", "given", "no such user"],
)
def test_run_names_the_exporters_user(monkeypatch, given, user, expected):
    """The uid of user lockstep, where there is one and the environment names none: its orders to capture count."""
    environments = []

    def execute(_program, _command, environment):
        environments.append(environment)
        raise SystemExit(0)  # the process is another program now

    monkeypatch.setattr(os, "execve", execute)
    monkeypatch.delenv("LOCKSTEP_EXPORTER_UID", raising=False)
    if given is not None:
        monkeypatch.setenv("LOCKSTEP_EXPORTER_UID", given)

    def find(name):
        assert name == "lockstep"
        if user is None:
            raise KeyError(name)
        return SimpleNamespace(pw_uid=user)

    monkeypatch.setattr(pwd, "getpwnam", find)
    with pytest.raises(SystemExit):
        main(["run", "--", "true"])
    (environment,) = environments
    assert environment.get("LOCKSTEP_EXPORTER_UID") == expected


@pytest.mark.parametrize(("rank", "owner"), [(None, None), ("3", "1/8")], ids=["of its own", "of a rank"])
def test_run_by_a_process_that_trained(monkeypatch, rank, owner):
    """A job that a script starts after it trained alone is a job of its own; what a rank starts stays its helper."""
    environments = []

    def execute(_program, _command, environment):
        environments.append(environment)
        raise SystemExit(0)  # the process is another program now

    monkeypatch.setattr(os, "execve", execute)
    monkeypatch.setenv("LOCKSTEP_AGENT_PID", "1/8")
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with pytest.raises(SystemExit):
        main(["run", "--", "true"])
    assert environments[0].get("LOCKSTEP_AGENT_PID") == owner


def test_run_needs_no_extra():
    """`lockstep run` works with the base install: no third-party package is imported."""
    code = (
        "import sys, lockstep.cli.main as m\n"
        "try: m.main(['run'])\n"
        "finally: print(' '.join(sorted({n.partition('.')[0] for n in sys.modules})))"
    )
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"msgspec", "numpy", "aiohttp", "mqtt5", "yaml", "rich", "torch", "prometheus_client"}


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [("up", "aiohttp", "all"), ("demo", "rich", "all"), ("exporter", "aiohttp", "all"), ("demo", "torch", "demo")],
)
def test_a_base_install_names_what_a_service_needs(command, package, extra):
    """In a training image a command that needs an extra names it in one line."""
    code = f"import sys; sys.modules['{package}'] = None; from lockstep.cli.main import main; sys.exit(main(['{command}']))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert f"this command needs {package}: pip install 'lockstep-monitor[{extra}]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_reader_that_has_had_enough_is_no_error():
    """`lockstep ... | head`: the status that a shell gives for SIGPIPE, and nothing on stderr."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "lockstep.cli.main", "coordinator", "--print-config"]
    ended = subprocess.run(command, check=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")
