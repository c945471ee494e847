"""The configuration of an exporter, checked once before anything starts."""

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from lockstep.contracts.bounds import PORT_MAX, Range
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.limits import HEARTBEAT_SECONDS_MAX
from lockstep.contracts.messages import ADDRESS
from lockstep.contracts.metric import LEVELS, Level
from lockstep.contracts.paths import DEFAULT_ROOT, check_name
from lockstep.contracts.settings import check_ranges
from lockstep.serving.broker import BrokerConfig, check_broker

_IPV6 = 6


@dataclass(frozen=True, kw_only=True)
class ExporterConfig(BrokerConfig):
    """The configuration of one exporter; call `validate` before use. Plain types only, as files and flags hold them."""

    root: Annotated[str, "Directory shared with the training processes; one folder per run below it."] = DEFAULT_ROOT
    node: Annotated[str, "Name of this node on the bus; empty: the host name."] = ""
    # All interfaces, as every node's exporter does: a Prometheus on another machine is the purpose, and nothing here
    # can be changed over HTTP.
    http_host: Annotated[str, "Address that the HTTP server binds."] = "0.0.0.0"  # noqa: S104
    http_port: Annotated[int, Range(0, PORT_MAX), "Port of the HTTP server; 0: any free one."] = 9855
    advertise_address: Annotated[
        str,
        "Address of this exporter for Prometheus's discovery: host and port, or a host alone, then with "
        "`http_port`. Empty: the host name; in the chart, the pod's address.",
    ] = ""
    web_config_file: Annotated[
        str, "TLS and passwords of the HTTP server, in the form of Prometheus' exporter-toolkit; empty: none."
    ] = ""
    metrics_level: Annotated[
        str,
        "How many series are exported: minimal (8 for each of 10,000 ranks), default (27) or full (61). Neither "
        "alerts nor detection depend on it; docs/metrics.md lists what each level leaves out.",
    ] = "default"
    tick_seconds: Annotated[
        float, Range(0.01, 10.0), "Time between two samples of the memory of ranks, and of the NCCL Inspector's files."
    ] = 0.2
    scan_seconds: Annotated[
        float, Range(0.01, 60.0), "Time between two searches for new, replaced and removed rings."
    ] = 1.0
    batch_seconds: Annotated[
        float, Range(0.01, 10.0), "Longest time between two reads of all rings, whose step records are then published."
    ] = 1.0
    announce_seconds: Annotated[
        float,
        Range(0.1, HEARTBEAT_SECONDS_MAX),
        "Time between two heartbeats of this exporter and its ranks. Changes of the ranks are announced at once.",
    ] = 10.0
    drain_seconds: Annotated[
        float, Range(0.0, 60.0), "Longest time at shutdown for sending spooled messages; the rest stays on disk."
    ] = 2.0
    spool_directory: Annotated[
        str,
        "Directory of messages that a coordinator may still need; its mode is 0700, and one exporter uses it at a "
        "time.",
    ] = "/var/tmp/lockstep-exporter"  # noqa: S108  (kept over reboots; ours alone, checked at open)
    # A day of 8 ranks at 10 steps/s is 3 GB, two hours are this.
    spool_max_bytes: Annotated[
        int,
        Range(64 << 10, 1 << 40),
        "Largest size of the spool; beyond it the oldest messages are dropped and counted.",
    ] = 256 << 20
    # Half of what the spool holds, and longer than a node takes to reboot.
    coordinator_forget_seconds: Annotated[
        float,
        Range(60.0, 7 * 86400.0),
        "Time after a coordinator's last acknowledgement for which the exporter keeps messages that it alone lacks.",
    ] = 3600.0
    # About 20 usual traces; they lie in memory that training could use.
    trace_keep_bytes: Annotated[int, Range(0, 1 << 40), "Raw traces kept per run; the oldest are deleted."] = 512 << 20
    rank_stale_seconds: Annotated[
        float,
        Range(0.1, 86400.0),
        "Silence after which a rank's series vanish; above torch's 600 s for a collective: a hung job stays visible.",
    ] = 900.0
    neighbour_addresses: Annotated[
        str,
        "Pages of other exporters on this node to store as evidence of incidents, separated by commas: "
        "http://127.0.0.1:9400/metrics,http://127.0.0.1:9100/metrics. Needed only where there is no Prometheus.",
    ] = ""
    neighbour_seconds: Annotated[float, Range(1.0, 300.0), "Time between two reads of these pages."] = 15.0
    neighbour_token_file: Annotated[str, "File with the bearer token for these pages; empty: none."] = ""
    summarise_seconds: Annotated[float, Range(0.1, 3600.0), "Longest time for summarising one trace."] = 120.0
    summarise_memory_bytes: Annotated[
        int, Range(256 << 20, 1 << 40), "Address space of the process that summarises a trace."
    ] = 4 << 30
    summarise_busy_ratio: Annotated[
        float,
        Range(0.005, 1.0),
        "Share of a core that summaries may take over time while training uses all cores; idle cores they use fully.",
    ] = 0.02  # detectors find a rank that is slower by 2.5 %
    summarise_burst_ratio: Annotated[
        float,
        Range(0.005, 1.0),
        "The same for the first summarise_burst_seconds, because an incident waits for its capture.",
    ] = 0.25
    summarise_burst_seconds: Annotated[
        float,
        Range(0.0, 3600.0),
        "Seconds of a core that summaries may take at summarise_burst_ratio; they refill at summarise_busy_ratio.",
    ] = 6.0

    @property
    def node_name(self) -> str:
        """Name of this node."""
        return self.node or socket.gethostname()

    def address(self, port: int) -> str:
        """Return host and port as a Prometheus target; `port` is the server's, used if the address names none."""
        given = self.advertise_address or socket.gethostname()
        if ADDRESS.fullmatch(given) is not None:
            return given
        try:
            is_bracketed = ipaddress.ip_address(given).version == _IPV6
        except ValueError:  # a name
            is_bracketed = False
        return f"[{given}]:{port}" if is_bracketed else f"{given}:{port}"

    def validate(self) -> None:
        """Check every value.

        Raises
        ------
        ConfigError
            The first wrong one, by key.
        """
        check_name(self.node_name, "node")
        check_ranges(self)
        self._check_texts()
        check_broker(self)

    @property
    def level(self) -> Level:
        """Return `metrics_level`, once it is valid."""
        return next(level for level in LEVELS if level == self.metrics_level)

    def _check_texts(self) -> None:
        for key in ("root", "spool_directory"):
            if not Path(getattr(self, key)).is_absolute():
                raise ConfigError(f"{key}: got {getattr(self, key)!r}, expected an absolute path")
        for url in filter(None, (part.strip() for part in self.neighbour_addresses.split(","))):
            self._check_neighbour(url)
        if not self.http_host:
            raise ConfigError("http_host: got '', expected a host name or address")
        if self.metrics_level not in LEVELS:
            raise ConfigError(f"metrics_level: got {self.metrics_level!r}, expected {' or '.join(LEVELS)}")
        if self.advertise_address and ADDRESS.fullmatch(self.address(self.http_port)) is None:
            raise ConfigError(
                f"advertise_address: got {self.advertise_address!r}, expected a host, or a host and a port, node7:9855"
            )

    def _check_neighbour(self, url: str) -> None:
        """Accept only pages of this node and its network: other pages are no evidence about this node."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port, parts = "", None, urlsplit("")
        is_page = parts.scheme in ("http", "https") and host and parts.username is None and port != 0
        try:
            is_near = not ipaddress.ip_address(host).is_global
        except ValueError:  # a name
            is_near = True
        if not is_page or not is_near:
            got = "an address with a user in it" if "@" in url else repr(url)
            raise ConfigError(
                f"neighbour_addresses: got {got:.200}, expected http://HOST:PORT/metrics of this node or its network"
            )
