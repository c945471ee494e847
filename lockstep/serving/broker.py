"""The connection settings of a service's MQTT broker (`broker_*`), the same in both configurations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lockstep.contracts.bounds import PORT_MAX, Range
from lockstep.contracts.errors import ConfigError

_FILES = ("broker_password_file", "broker_ca_file", "broker_cert_file", "broker_key_file")


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """The part of a service's configuration that names its broker; both configurations inherit from it."""

    broker_host: Annotated[str, "MQTT broker's host name or address; it must speak MQTT 5."] = "127.0.0.1"
    broker_port: Annotated[int, Range(1, PORT_MAX), "MQTT broker's TCP port; 8883 by custom with TLS."] = 1883
    broker_username: Annotated[str, "User at the broker; empty: anonymous."] = ""
    broker_password_file: Annotated[
        str, "File that holds the broker password, read at each connection so that it can be rotated; empty: none."
    ] = ""
    broker_ca_file: Annotated[str, "Certificate authority of the broker in PEM form; set: TLS, empty: plain TCP."] = ""
    broker_cert_file: Annotated[
        str, "Client certificate in PEM form, read at each connection; needs its key and the authority; empty: none."
    ] = ""
    broker_key_file: Annotated[str, "Key of the client certificate in PEM form, without a passphrase; empty: none."] = (
        ""
    )


def check_broker(config: BrokerConfig) -> None:
    """Check the broker settings, apart from ranges, which `settings.check_ranges` checks.

    Raises
    ------
    ConfigError
        The first wrong value, by key.
    """
    if not config.broker_host:
        raise ConfigError("broker_host: got '', expected a host name or address")
    for key in _FILES:
        name = getattr(config, key)
        if name and not Path(name).is_file():
            raise ConfigError(f"{key}: got {name!r}, expected a readable file")
    for key, needed in (
        ("broker_password_file", "broker_username"),
        ("broker_cert_file", "broker_key_file"),
        ("broker_key_file", "broker_cert_file"),
        ("broker_cert_file", "broker_ca_file"),
    ):
        if getattr(config, key) and not getattr(config, needed):
            raise ConfigError(f"{needed}: got '', expected a value, because {key} is set")
