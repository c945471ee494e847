"""Configuration from file, environment and flags."""

from dataclasses import dataclass

import pytest

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.settings import build_config


@dataclass(frozen=True, kw_only=True)
class Config:
    root: str = "/dev/shm"
    batch_seconds: float = 1.0
    http_port: int = 9855
    enabled: bool = True


def build(**sources):
    return build_config(Config, prefix="LOCKSTEP_X_", **sources)


def test_later_sources_win():
    """Flags win over the environment, which wins over the file, which wins over the default."""
    config = build(
        file={"root": "/file", "batch_seconds": 2, "http_port": 1},
        environment={"LOCKSTEP_X_BATCH_SECONDS": "3.5", "LOCKSTEP_X_HTTP_PORT": "2", "OTHER": "x"},
        flags={"http_port": "3"},
    )
    assert config == Config(root="/file", batch_seconds=3.5, http_port=3, enabled=True)


@pytest.mark.parametrize(("text", "value"), [("no", False), ("TRUE", True), ("0", False)])
def test_booleans_from_text(text, value):
    """The usual words for yes and no are read."""
    assert build(environment={"LOCKSTEP_X_ENABLED": text}).enabled is value


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"file": {"batch_second": 1}}, "'batch_second', the nearest known key is 'batch_seconds'"),
        ({"environment": {"LOCKSTEP_X_PORT": "1"}}, "LOCKSTEP_X_PORT: got 'port', the nearest known key is"),
        ({"file": {"http_port": "high"}}, "http_port: got 'high', expected an integer"),
        ({"file": {"http_port": True}}, "got True, expected an integer"),
        (
            {"environment": {"LOCKSTEP_X_ENABLED": "perhaps"}},
            "LOCKSTEP_X_ENABLED: got 'perhaps', expected true or false",
        ),
        ({"flags": {"batch_seconds": "soon"}}, "--set batch_seconds: got 'soon', expected a number"),
        (
            {"flags": {"zzz": "1"}},
            "unknown key in --set: got 'zzz', expected one of batch_seconds, enabled, http_port, root",
        ),
        ({"flags": {"batch_second": "1"}}, "unknown key in --set: got 'batch_second', the nearest known key is"),
    ],
)
def test_mistakes_are_named(sources, message):
    """A wrong key names the nearest known one; a wrong value states what was expected."""
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        build(**sources)
