"""What can be configured, and what is refused by name."""

from typing import get_type_hints

import pytest

from coordinator.settings.config import CoordinatorConfig
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.settings import build_config
from tests.support.policy_file import policy_file


def test_the_defaults_are_valid_and_plain():
    """No file, no flag: it starts; every field is a plain value and the thresholds are the policy's."""
    config = CoordinatorConfig()
    config.validate()
    assert set(get_type_hints(CoordinatorConfig).values()) <= {str, int, float, bool}
    assert config.policy() == type(config.policy())()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"http_port": 70_000}, "http_port: got 70000"),
        ({"broker_port": 0}, "broker_port"),
        ({"broker_host": ""}, "broker_host"),
        ({"domains": "tp=8,xp=2"}, "xp=2"),
        ({"order": "tp-dp"}, "order"),
        ({"api_token_file": "/nowhere"}, "api_token_file"),
        ({"broker_ca_file": "/nowhere"}, "broker_ca_file"),
        ({"runbook_base_url": "ftp://x"}, "runbook_base_url"),
        ({"evidence_prometheus_url": "prometheus:9090"}, "evidence_prometheus_url"),
        ({"evidence_prometheus_url": "http://x", "evidence_from_nodes": True}, "evidence_from_nodes: got true besides"),
        ({"evidence_prometheus_url": "http://a:b@x"}, "evidence_prometheus_url: got an address with user or password"),
        ({"evidence_link_url": "http://x?a=b"}, "evidence_link_url"),
        ({"evidence_token_file": "/nowhere"}, "evidence_token_file"),
        ({"evidence_queries_file": "/nowhere"}, "evidence_queries_file"),
        ({"evidence_matchers": "cluster=a"}, "evidence_matchers"),
        ({"evidence_matchers": 'a="b"} or up{x="y"'}, "evidence_matchers"),
        ({"external_url": "lockstep"}, "external_url"),
        ({"notify_webhook_url": "http://x/"}, "notify_webhook_secret_file"),
        ({"notify_webhook_url": "http://a:b@x/"}, "notify_webhook_url: got an address with user or password"),
        ({"notify_slack_url_file": "/nowhere"}, "notify_slack_url_file"),
        ({"notify_min_devices_lost": -1.0}, "notify_min_devices_lost"),
        ({"kubernetes_api_url": "kubernetes.default.svc"}, "kubernetes_api_url"),
        (
            {"kubernetes_api_url": "https://x", "kubernetes_token_file": "/nowhere", "kubernetes_ca_file": ""},
            "kubernetes_token_file",
        ),
        ({"runs_max": 0}, "runs_max: got 0, expected 1 to 10000"),
    ],
)
def test_bad_values_are_refused_by_name(values, named):
    """The message names the key."""
    with pytest.raises(ConfigError, match=named):
        CoordinatorConfig(**values).validate()


def test_overridden_thresholds_reach_the_policy(tmp_path):
    """From the file that the environment names to the detector."""
    file = policy_file(tmp_path, {"excess.floor_ratio": 0.1, "profile.enabled": "off"})
    environment = {"LOCKSTEP_COORDINATOR_POLICY_FILE": file}
    config = build_config(CoordinatorConfig, environment=environment, prefix="LOCKSTEP_COORDINATOR_")
    config.validate()
    assert config.policy().excess.floor_ratio == 0.1
    assert not config.policy().profile.enabled


def test_a_token_file_must_hold_a_token(tmp_path):
    """Empty and binary files are refused; the end of the line is no part of a token."""
    file = tmp_path / "token"
    file.write_text("secret\n")
    assert CoordinatorConfig(api_token_file=str(file)).read_token() == "secret"
    for content in (b"", b"\n", b"a\x01b", b"\xff"):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="api_token_file"):
            CoordinatorConfig(api_token_file=str(file)).validate()
