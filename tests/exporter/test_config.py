import socket
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.config import ExporterConfig
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.settings import build_config


def test_the_defaults_are_a_valid_configuration():
    """An exporter starts without any setting."""
    config = ExporterConfig()
    config.validate()
    assert config.node_name


def test_a_file_and_the_environment_build_a_configuration():
    """Every field can be set by a file, the environment and a flag, the later one wins."""
    config = build_config(
        ExporterConfig,
        file={"batch_seconds": 2, "node": "a"},
        environment={"LOCKSTEP_EXPORTER_HTTP_PORT": "9000", "LOCKSTEP_EXPORTER_NODE": "b"},
        prefix="LOCKSTEP_EXPORTER_",
        flags={"node": "c"},
    )
    assert (config.batch_seconds, config.http_port, config.node_name) == (2.0, 9000, "c")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tick_seconds", 0.0),
        ("tick_seconds", float("nan")),
        ("broker_port", 70_000),
        ("http_port", -1),
        ("spool_max_bytes", 10),
        ("node", "a/b"),
        ("root", "relative"),
        ("broker_host", ""),
        ("broker_ca_file", "/nowhere/ca.pem"),
        ("rank_stale_seconds", -1.0),
        ("metrics_level", "debug"),
        ("metrics_level", ""),
        ("advertise_address", "node7:"),
        ("advertise_address", "http://node7:9855"),
        ("advertise_address", "fe80::1%eth0"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(key: str, value: object):
    """A value that cannot work is named with what was got and what is expected."""
    with pytest.raises(ConfigError, match=rf"{key}: got .*expected|{key}"):
        replace(ExporterConfig(), **{key: value}).validate()


@pytest.mark.parametrize(
    ("configured", "address"),
    [
        ("node7:9000", "node7:9000"),
        ("node7.cluster", "node7.cluster:9855"),
        ("10.0.0.7", "10.0.0.7:9855"),
        ("fd00::7", "[fd00::7]:9855"),
        ("[fd00::7]:9000", "[fd00::7]:9000"),
        ("", f"{socket.gethostname()}:9855"),
    ],
)
def test_where_prometheus_finds_it(configured: str, address: str):
    """A pod knows its address alone, of either family; the port is then the server's."""
    config = ExporterConfig(advertise_address=configured)
    config.validate()
    assert config.address(9855) == address


def test_a_password_needs_a_user(tmp_path: Path):
    """A password file without a user name is a mistake, not an anonymous connection."""
    password = tmp_path / "password"
    password.write_text("secret")
    with pytest.raises(ConfigError, match="broker_username"):
        ExporterConfig(broker_password_file=str(password)).validate()
