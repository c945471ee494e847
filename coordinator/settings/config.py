"""A coordinator's configuration, checked once before anything starts."""

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from coordinator.settings.policy import Policy
from coordinator.settings.specs import read_specs
from coordinator.settings.thresholds import apply, check_order, check_values
from lockstep.contracts.bounds import PORT_MAX, Range
from lockstep.contracts.domains import DEFAULT_ORDER, parse_degrees
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.paths import check_name
from lockstep.contracts.records import DOMAIN_KINDS
from lockstep.contracts.settings import check_ranges
from lockstep.contracts.yaml_text import read_yaml_file
from lockstep.serving.broker import BrokerConfig, check_broker

_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_MATCHER = r'[A-Za-z_][A-Za-z0-9_]*(?:=|!=|=~|!~)"[^"\\\n]*"'
_MATCHERS = re.compile(rf"{_MATCHER}(?:,{_MATCHER})*")
LIVE_KEYS = frozenset(
    {
        "policy_file",
        "simulation_file",
        "api_token_file",
        "domains",
        "order",
        "runs_max",
        "runbook_base_url",
        "dashboard_base_url",
        "external_url",
        "notify_min_devices_lost",
    }
)
"""Keys that a reload applies; the others hold what is open since the start: ports, connections, files."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorConfig(BrokerConfig):
    """The configuration of one coordinator; `validate` before use. Plain types only: files and flags can hold them."""

    name: Annotated[
        str, "Name of this coordinator on the bus, the same after a restart; empty: the host name and `http_port`."
    ] = ""
    # All interfaces: a Prometheus on another machine is the purpose, and changes over HTTP need a token.
    http_host: Annotated[str, "Address that the HTTP server binds."] = "0.0.0.0"  # noqa: S104
    http_port: Annotated[int, Range(0, PORT_MAX), "Port of the HTTP server; 0: any free one."] = 9856
    web_config_file: Annotated[
        str, "TLS and passwords of the HTTP server, in the form of Prometheus' exporter-toolkit; empty: none."
    ] = ""
    state_directory: Annotated[str, "Directory of incidents and budgets (SQLite); empty: in memory, lost at exit."] = ""
    record_directory: Annotated[
        str, "Directory for a recording of all input, for `lockstep replay`; empty: no recording."
    ] = ""
    record_quota_bytes: Annotated[
        int, Range(1 << 20, 1 << 50), "Largest size of the recording; the coordinator deletes its oldest parts first."
    ] = 1 << 30
    api_token_file: Annotated[
        str, "File with the bearer token of API calls that change something; empty: the coordinator refuses such calls."
    ] = ""
    policy_file: Annotated[
        str,
        "YAML file of thresholds by dotted name (`excess.floor_ratio: 0.03`); empty: the defaults of docs/settings.md.",
    ] = ""
    simulation_file: Annotated[
        str,
        "YAML file that maps run names or patterns to specifications of their jobs (`big-*: gpt.yaml`); empty: none.",
    ] = ""
    domains: Annotated[
        str, "Parallel degrees of the jobs, `tp=8,dp=16,pp=4`; empty: those that the agents announce."
    ] = ""
    order: Annotated[str, "Order of the degrees, fastest varying first."] = DEFAULT_ORDER
    runbook_base_url: Annotated[str, "Address of the runbooks, for links on the page; empty: no links."] = ""
    dashboard_base_url: Annotated[str, "Address of Grafana, for links on the page; empty: no links."] = ""
    evidence_prometheus_url: Annotated[
        str,
        "Prometheus that scrapes the exporters of devices and hosts; the coordinator reads it when an incident "
        "opens. Empty: none.",
    ] = ""
    evidence_from_nodes: Annotated[
        bool,
        "Whether to read evidence from what the nodes' exporters store of other exporters (`neighbour_addresses` "
        "there), where there is no Prometheus; token, password and CA are then those of the exporters.",
    ] = False
    evidence_link_url: Annotated[
        str, "Address of the same Prometheus for browsers, for links on incidents; empty: no links."
    ] = ""
    evidence_token_file: Annotated[str, "File with the bearer token for that Prometheus; empty: none."] = ""
    evidence_password_file: Annotated[str, "File with `user:password` for that Prometheus; empty: none."] = ""
    evidence_ca_file: Annotated[
        str, "File with the certificate authorities for that server; empty: those of the system."
    ] = ""
    evidence_queries_file: Annotated[
        str, "TOML file of a site's own queries, added to those of docs/evidence.md; empty: none."
    ] = ""
    evidence_matchers: Annotated[
        str,
        'Label matchers to add to every query, `cluster="a"`, if one Prometheus holds several clusters; empty: none.',
    ] = ""
    external_url: Annotated[
        str, "Address of this coordinator for browsers, for links in notifications; empty: no links."
    ] = ""
    notify_webhook_url: Annotated[
        str,
        "Address that gets a CloudEvent when an incident opens, when its function is known, and when it closes; "
        "empty: none.",
    ] = ""
    notify_webhook_secret_file: Annotated[
        str, "File with the secret (`whsec_` and base64) that signs these events; required with `notify_webhook_url`."
    ] = ""
    notify_slack_url_file: Annotated[
        str, "File with the address of a Slack incoming webhook, which gets the same as messages; empty: none."
    ] = ""
    notify_min_devices_lost: Annotated[
        float,
        Range(0, 1_000_000),
        "Incidents that cost fewer devices send no notification. The cost is slowdown times ranks; for a hang or "
        "crash, all ranks.",
    ] = 0.0
    kubernetes_api_url: Annotated[
        str, "API server whose nodes get the condition LockstepSlowDevice, https://kubernetes.default.svc; empty: none."
    ] = ""
    kubernetes_token_file: Annotated[str, "File with the bearer token for that API server."] = (
        f"{_SERVICE_ACCOUNT}/token"
    )
    kubernetes_ca_file: Annotated[
        str, "File with the certificate authorities for that API server; empty: those of the system."
    ] = f"{_SERVICE_ACCOUNT}/ca.crt"
    runs_max: Annotated[
        int, Range(1, 10_000), "Runs monitored at the same time; the coordinator refuses and counts more."
    ] = 256

    @property
    def coordinator_name(self) -> str:
        """Name of this coordinator on the bus."""
        return self.name or f"{socket.gethostname()}-{self.http_port}"

    def validate(self) -> None:
        """Check every value that can be checked without opening anything but the token.

        Raises
        ------
        ConfigError
            A value that cannot be used; the message names its key.
        """
        check_ranges(self)
        if not self.http_host:
            raise ConfigError("http_host: got '', expected a host name or address")
        check_broker(self)
        check_name(self.coordinator_name, "name")
        self._check_names()
        self._check_evidence()
        self._check_notify()
        self._check_kubernetes()
        parse_degrees(self.domains, where="domains")
        if sorted(self.order.split("-")) != sorted(DOMAIN_KINDS[:-1]):
            raise ConfigError(f"order: got {self.order!r}, expected an order of {DEFAULT_ORDER!r}")
        self.read_token()
        self.policy()
        read_specs(self.simulation_file)

    def _check_addresses(self, *keys: str) -> None:
        for key in keys:
            url = urlsplit(getattr(self, key))
            if "@" in url.netloc:  # its value is not repeated: it holds a password
                raise ConfigError(f"{key}: got an address with user or password, expected them in a file")
            if getattr(self, key) and (url.scheme not in ("http", "https") or not url.netloc or url.query):
                raise ConfigError(f"{key}: got {getattr(self, key)!r}, expected an http or https address")

    def _check_files(self, *keys: str) -> None:
        for key in keys:
            if getattr(self, key) and not Path(getattr(self, key)).is_file():
                raise ConfigError(f"{key}: got {getattr(self, key)!r}, expected a file")

    def _check_kubernetes(self) -> None:
        self._check_addresses("kubernetes_api_url")
        if self.kubernetes_api_url:
            self._check_files("kubernetes_token_file", "kubernetes_ca_file")
            if not self.kubernetes_token_file:
                raise ConfigError("kubernetes_token_file: got '', expected a file: no one may change nodes without one")

    def _check_notify(self) -> None:
        self._check_addresses("external_url", "notify_webhook_url")
        self._check_files("notify_webhook_secret_file", "notify_slack_url_file")
        if self.notify_webhook_url and not self.notify_webhook_secret_file:
            raise ConfigError("notify_webhook_secret_file: got '', expected a file: notifications are signed")

    def _check_evidence(self) -> None:
        self._check_addresses("evidence_prometheus_url", "evidence_link_url")
        self._check_files("evidence_token_file", "evidence_password_file", "evidence_ca_file", "evidence_queries_file")
        if self.evidence_from_nodes and self.evidence_prometheus_url:
            raise ConfigError("evidence_from_nodes: got true besides evidence_prometheus_url, expected one of both")
        if self.evidence_token_file and self.evidence_password_file:
            raise ConfigError("evidence_token_file: got a value besides evidence_password_file, expected one of both")
        if self.evidence_matchers and not _MATCHERS.fullmatch(self.evidence_matchers):
            raise ConfigError(
                f'evidence_matchers: got {self.evidence_matchers!r}, expected label="value", comma, the next'
            )

    def _check_names(self) -> None:
        if self.api_token_file and not Path(self.api_token_file).is_file():
            raise ConfigError(f"api_token_file: got {self.api_token_file!r}, expected a file")
        for key in ("runbook_base_url", "dashboard_base_url"):
            url = getattr(self, key)
            if url and not url.startswith(("http://", "https://")):
                raise ConfigError(f"{key}: got {url!r}, expected an http or https address")

    def read_token(self) -> str:
        """Return the API token, empty where there is none.

        Raises
        ------
        ConfigError
            The file cannot be read, is empty or holds what no header can carry.
        """
        if not self.api_token_file:
            return ""
        try:
            token = Path(self.api_token_file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"api_token_file: got {self.api_token_file!r}, expected a token in ASCII: {error}"
            ) from None
        if not token or not token.isprintable():
            raise ConfigError(f"api_token_file: got an empty or unprintable token in {self.api_token_file!r}")
        return token

    def policy(self) -> Policy:
        """Return the thresholds: the defaults, and those of the policy file in their place.

        Raises
        ------
        ConfigError
            The policy file cannot be used, or a threshold in it; the message names it.
        """
        where = f"policy_file {self.policy_file}" if self.policy_file else "thresholds"
        policy = apply(Policy(), check_values(self._read_policy_file(), where=where))
        check_order(policy, where=where)
        return policy

    def _read_policy_file(self) -> dict[str, Any]:
        if not self.policy_file:
            return {}
        value = read_yaml_file(Path(self.policy_file), "policy_file")
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ConfigError(f"policy_file {self.policy_file}: got {type(value).__name__}, expected names and values")
        return value
