"""How a service reaches its MQTT broker, as both configurations describe it (`broker_*`)."""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from lockstep.contracts.errors import ConfigError

PROTOCOLS = ("5", "3.1.1")


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """The part of a service's configuration that names its broker; both configurations inherit it."""

    broker_host: str = "127.0.0.1"
    """MQTT broker's host name or address."""
    broker_port: int = 1883
    """MQTT broker's TCP port; 8883 by custom with TLS."""
    broker_protocol: str = "5"
    """MQTT version: 5 keeps packets beyond our limit away; 3.1.1 for older brokers, amqtt among them."""
    broker_username: str = ""
    """User at the broker; empty: anonymous."""
    broker_password_file: str = ""
    """File that holds the broker password, read at each connection so that it can be rotated; empty: none."""
    broker_ca_file: str = ""
    """Certificate authority of the broker in PEM form; set: TLS, empty: plain TCP."""


def check_protocol(config: BrokerConfig) -> None:
    """Refuse a protocol that is not spoken here.

    Raises
    ------
    ConfigError
        The message names what is.
    """
    if config.broker_protocol not in PROTOCOLS:
        raise ConfigError(f"broker_protocol: got {config.broker_protocol!r}, expected one of {PROTOCOLS}")


def client_options(config: BrokerConfig, *, packet_max_bytes: int) -> dict[str, Any]:
    """Return the arguments of `aiomqtt.Client` that say where and as whom to connect.

    The password is read anew at each call, so that it can be rotated. With MQTT 5 the broker keeps back packets of
    more than `packet_max_bytes`, so that they are never allocated here.

    Raises
    ------
    OSError
        The password or certificate file cannot be read.
    """
    is_v5 = config.broker_protocol == "5"
    properties = None
    if is_v5:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.MaximumPacketSize = packet_max_bytes
    password = None
    if config.broker_password_file:
        password = Path(config.broker_password_file).read_text(encoding="utf-8").strip()
    return {
        "hostname": config.broker_host,
        "port": config.broker_port,
        "username": config.broker_username or None,
        "password": password,
        "protocol": aiomqtt.ProtocolVersion.V5 if is_v5 else aiomqtt.ProtocolVersion.V311,
        "properties": properties,
        "tls_context": ssl.create_default_context(cafile=config.broker_ca_file) if config.broker_ca_file else None,
    }


def backoff_seconds(failures: int, jitter: float, *, first_seconds: float, longest_seconds: float) -> float:
    """Return the wait after `failures` failed connections in a row (1 or more).

    Doubled each time up to `longest_seconds`, and spread: `jitter` (0 to 1) moves it between half and all of that, so
    that a thousand nodes do not come back in the same instant.
    """
    longest = min(longest_seconds, first_seconds * 2.0 ** min(max(failures, 1) - 1, 16))
    return longest * (0.5 + 0.5 * jitter)


def heed_cancellation() -> None:
    """Raise the cancellation of the calling task that a call into aiomqtt may have lost.

    aiomqtt waits with `asyncio.wait_for`, which in Python 3.11 returns its result and drops the cancellation when both
    come at once: a service that is told to end in the moment that its broker answers would run for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
