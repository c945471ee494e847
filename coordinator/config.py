"""What a coordinator can be told, checked once before anything starts."""

from dataclasses import dataclass, replace
from pathlib import Path

from coordinator.policy import Policy
from lockstep.contracts.domains import DEFAULT_ORDER, parse_degrees
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.limits import PROFILE_STEPS_MAX
from lockstep.contracts.records import DOMAIN_KINDS
from lockstep.serving.broker import BrokerConfig, check_protocol

_PORT_MAX = 65535
_RANGES: dict[str, tuple[float, float]] = {
    "broker_port": (1, _PORT_MAX),
    "http_port": (0, _PORT_MAX),
    "slow_floor_ratio": (0.001, 10.0),
    "warm_up_steps": (8, 10_000),
    "grace_seconds": (0.1, 3600.0),
    "recover_steps": (1, 10_000),
    "lost_seconds": (1.0, 86_400.0),
    "keep_seconds": (1.0, 7 * 86_400.0),
    "profile_steps": (1, PROFILE_STEPS_MAX),
    "profile_cooldown_seconds": (0.0, 86_400.0),
    "profiles_per_day": (0, 10_000),
    "profiles_per_run": (0, 10_000),
    "runs_max": (1, 10_000),
}


@dataclass(frozen=True, kw_only=True)
class CoordinatorConfig(BrokerConfig):
    """Everything one coordinator can be told; `validate` before use. Plain types only: files and flags can say them."""

    # All interfaces: a Prometheus on another machine is the purpose, and changes over HTTP need a token.
    http_host: str = "0.0.0.0"  # noqa: S104
    """Address that the HTTP server binds."""
    http_port: int = 9856
    """Port of the HTTP server; 0: any free one."""
    state_directory: str = ""
    """Directory of incidents and budgets (SQLite); empty: in memory, lost at exit."""
    api_token_file: str = ""
    """File that holds the bearer token of API calls that change something; empty: such calls are refused."""
    domains: str = ""
    """Parallel degrees of the jobs, `tp=8,dp=16,pp=4`; empty: what the agents announce."""
    order: str = DEFAULT_ORDER
    """Order of the degrees, fastest varying first."""
    runbook_base_url: str = ""
    """Where the runbooks are served, linked from the page; empty: no links."""
    dashboard_base_url: str = ""
    """Where Grafana's dashboards are served, linked from the page; empty: no links."""
    profiling_enabled: bool = True
    """Whether ranks may be profiled at all, on suspicion or on request."""
    runs_max: int = 256
    """Runs watched at the same time; more are refused and counted."""
    slow_floor_ratio: float = Policy().excess.floor_ratio
    """Smallest excess over its peers at which a rank is called slow."""
    warm_up_steps: int = Policy().excess.warm_up_steps
    """Undisturbed steps of an attempt that noise is learnt from before anything is said."""
    grace_seconds: float = Policy().timeline.grace_seconds
    """Longest wait for a rank's record of a step that others have reported."""
    recover_steps: int = Policy().run.recover_steps
    """Steps without a finding after which an incident closes."""
    lost_seconds: float = Policy().run.lost_seconds
    """Silence after which a run is lost."""
    keep_seconds: float = Policy().run.keep_seconds
    """How long a run that ended stays visible."""
    profile_steps: int = Policy().profile.steps
    """Steps of one capture."""
    profile_cooldown_seconds: float = Policy().profile.cooldown_seconds
    """Least time between two captures of a run."""
    profiles_per_day: int = Policy().profile.per_day
    """Captures of a run in 24 hours."""
    profiles_per_run: int = Policy().profile.per_run
    """Captures of a run in all."""

    def validate(self) -> None:
        """Check every value that can be checked without opening anything but the token.

        Raises
        ------
        ConfigError
            A value that cannot be used; the message names its key.
        """
        for key, (low, high) in _RANGES.items():
            value = getattr(self, key)
            if not low <= value <= high:
                raise ConfigError(f"{key}: got {value}, expected {low:g} to {high:g}")
        for key in ("broker_host", "http_host"):
            if not getattr(self, key):
                raise ConfigError(f"{key}: got '', expected a host name or address")
        check_protocol(self)
        self._check_names()
        parse_degrees(self.domains, where="domains")
        if sorted(self.order.split("-")) != sorted(DOMAIN_KINDS[:-1]):
            raise ConfigError(f"order: got {self.order!r}, expected an order of {DEFAULT_ORDER!r}")
        self.read_token()

    def _check_names(self) -> None:
        for key in ("broker_password_file", "broker_ca_file", "api_token_file"):
            name = getattr(self, key)
            if name and not Path(name).is_file():
                raise ConfigError(f"{key}: got {name!r}, expected a file")
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
        """Return the thresholds, those given here in their places."""
        base = Policy()
        return replace(
            base,
            excess=replace(base.excess, floor_ratio=self.slow_floor_ratio, warm_up_steps=self.warm_up_steps),
            fluctuation=replace(base.fluctuation, warm_up_steps=self.warm_up_steps),
            timeline=replace(base.timeline, grace_seconds=self.grace_seconds),
            run=replace(
                base.run,
                recover_steps=self.recover_steps,
                lost_seconds=self.lost_seconds,
                keep_seconds=self.keep_seconds,
            ),
            profile=replace(
                base.profile,
                enabled=self.profiling_enabled,
                steps=self.profile_steps,
                cooldown_seconds=self.profile_cooldown_seconds,
                per_day=self.profiles_per_day,
                per_run=self.profiles_per_run,
            ),
        )
