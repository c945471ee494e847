"""Exporter, coordinator and an embedded MQTT broker in one process, on loopback: the single-machine default.

The services are the ones that run on a cluster, talking MQTT over a socket; only the broker differs.
"""

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any

from amqtt.broker import Broker
from amqtt.errors import BrokerError

from coordinator.runtime import Coordinator
from coordinator.settings.config import CoordinatorConfig
from exporter.config import ExporterConfig
from exporter.runtime import Exporter
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.paths import DEFAULT_ROOT

LOOPBACK = "127.0.0.1"


class Up:
    """All services of one machine. Nothing happens before `run`; the ports are known once `started` is set.

    A port that is None is the service's default; 0 is a free one.
    """

    def __init__(
        self,
        *,
        root: str | None = None,
        state_directory: str | None = None,
        exporter_port: int | None = None,
        coordinator_port: int | None = None,
        broker_port: int = 0,
        batch_seconds: float = 0.2,
        record_directory: str | None = None,
        api_token_file: str | None = None,
        summarise_busy_ratio: float | None = None,
    ) -> None:
        self.root = Path(root or DEFAULT_ROOT)
        self.broker_port = broker_port or free_port()
        self.started = asyncio.Event()
        bus: dict[str, Any] = {
            "broker_host": LOOPBACK,
            "broker_port": self.broker_port,
            "broker_protocol": "3.1.1",  # all that the embedded broker speaks
            "http_host": LOOPBACK,
        }
        # One machine's few messages: publishing each tick costs nothing and shortens the way to a finding.
        self._exporter = Exporter(
            ExporterConfig(
                root=str(self.root),
                batch_seconds=batch_seconds,
                spool_directory=str(self.root / ".spool"),  # this broker is never away: it holds a batch at most
                **bus,
                **_given(http_port=exporter_port, summarise_busy_ratio=summarise_busy_ratio),
            )
        )
        self._coordinator = Coordinator(
            CoordinatorConfig(
                **bus,
                **_given(
                    http_port=coordinator_port,
                    state_directory=state_directory,
                    record_directory=record_directory,
                    api_token_file=api_token_file,
                ),
            )
        )

    @property
    def exporter_port(self) -> int:
        """Port of the exporter's HTTP."""
        return self._exporter.http_port

    @property
    def coordinator_port(self) -> int:
        """Port of the coordinator's HTTP."""
        return self._coordinator.http_port

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set: broker up first and down last, so that the last messages arrive."""
        for noisy in ("amqtt", "transitions"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)  # its failures are raised too
        broker = Broker(
            {
                "listeners": {"default": {"type": "tcp", "bind": f"{LOOPBACK}:{self.broker_port}"}},
                "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
            }
        )
        try:
            await broker.start()
        except BrokerError as error:
            raise ConfigError(f"broker port: got {self.broker_port}, expected a free port on {LOOPBACK}") from error
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._coordinator.run(stop), name="coordinator")
                tasks.create_task(self._exporter.run(stop), name="exporter")
                await self._coordinator.started.wait()
                await self._exporter.started.wait()
                self.started.set()
        finally:
            await broker.shutdown()


def _given(**settings: Any) -> dict[str, Any]:
    """Return the settings that were given, so that a service's own defaults stand for the rest."""
    return {key: value for key, value in settings.items() if value is not None}


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
