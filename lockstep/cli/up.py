"""Exporter and coordinator in one process, on loopback: the single-machine default.

The services are the same as on a cluster; only the broker differs, which is an object of this process.
"""

import asyncio
from pathlib import Path
from typing import Any

from coordinator.runtime import Coordinator
from coordinator.settings.config import CoordinatorConfig
from exporter.config import ExporterConfig
from exporter.runtime import Exporter
from lockstep.contracts.paths import DEFAULT_ROOT
from lockstep.serving.local_broker import LocalBroker

LOOPBACK = "127.0.0.1"


class LocalServices:
    """All services of one machine. Nothing happens before `run`; the ports are known once `started` is set.

    A port of None is the service's default; 0 is any free one.
    """

    def __init__(
        self,
        *,
        root: str | None = None,
        state_directory: str | None = None,
        exporter_port: int | None = None,
        coordinator_port: int | None = None,
        batch_seconds: float = 0.2,
        record_directory: str | None = None,
        api_token_file: str | None = None,
    ) -> None:
        self.root = Path(root or DEFAULT_ROOT)
        self.started = asyncio.Event()
        broker = LocalBroker()
        # With one machine's few messages, publishing on each tick costs nothing and shortens the time to a finding.
        self._exporter = Exporter(
            ExporterConfig(
                root=str(self.root),
                batch_seconds=batch_seconds,
                spool_directory=str(self.root / ".spool"),  # this broker is always reachable: at most a batch
                http_host=LOOPBACK,
                metrics_level="full",  # one machine has few series
                **_given(http_port=exporter_port),
            ),
            broker=broker,
            port_name="--exporter-port",
        )
        self._coordinator = Coordinator(
            CoordinatorConfig(
                http_host=LOOPBACK,
                **_given(
                    http_port=coordinator_port,
                    state_directory=state_directory,
                    record_directory=record_directory,
                    api_token_file=api_token_file,
                ),
            ),
            broker=broker,
            port_name="--coordinator-port",
        )

    @property
    def exporter_config(self) -> ExporterConfig:
        """Return the exporter's configuration."""
        return self._exporter.config

    @property
    def coordinator_config(self) -> CoordinatorConfig:
        """Return the coordinator's configuration."""
        return self._coordinator.config

    @property
    def exporter_port(self) -> int:
        """Port of the exporter's HTTP."""
        return self._exporter.http_port

    @property
    def coordinator_port(self) -> int:
        """Return the port of the coordinator's HTTP server."""
        return self._coordinator.http_port

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._coordinator.run(stop), name="coordinator")
            tasks.create_task(self._exporter.run(stop), name="exporter")
            await self._coordinator.started.wait()
            await self._exporter.started.wait()
            self.started.set()


def _given(**settings: Any) -> dict[str, Any]:
    """Return the settings that were given, so that a service's own defaults apply to the rest."""
    return {key: value for key, value in settings.items() if value is not None}
