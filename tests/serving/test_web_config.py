"""The web configuration file: what exporter-toolkit takes, and an error that names what is wrong."""

import ssl
import subprocess
from pathlib import Path

import pytest
import yaml

from lockstep.contracts.errors import ConfigError
from lockstep.serving.web_config import parse_web_config, read_web_config

CERTIFICATES = Path(__file__).parent / "certificates"
TLS = {"cert_file": "server.crt", "key_file": "server.key"}
CLIENTS = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.crt"}
HASH = "$2y$04$" + "a" * 53
WHOLE = {
    "tls_server_config": {**TLS, **CLIENTS, "client_allowed_sans": ["prometheus.example"], "min_version": "TLS13"},
    "http_server_config": {"http2": True, "headers": {"X-Frame-Options": "deny"}},
    "basic_auth_users": {"prometheus": HASH},
}


def parse(value):
    return parse_web_config(value, where="web.yml", folder=CERTIFICATES)


def test_a_whole_file_is_taken():
    """Every section that exporter-toolkit has, with paths relative to the file's folder."""
    config = parse(WHOLE)
    assert config.hash_of == {"prometheus": HASH.encode()}
    assert config.headers == {"X-Frame-Options": "deny"}
    assert config.tls.certificate == CERTIFICATES / "server.crt"
    context = config.tls.context()
    assert (context.verify_mode, context.minimum_version) == (ssl.CERT_REQUIRED, ssl.TLSVersion.TLSv1_3)


def test_an_empty_file_is_open_and_plain():
    """As with exporter-toolkit, what is not set is off."""
    config = parse(None)
    assert (config.tls, dict(config.hash_of), dict(config.headers)) == (None, {}, {})


@pytest.mark.servers
def test_promtool_takes_what_is_taken_here(tmp_path):
    """The same file passes `promtool check web-config`: the form is Prometheus' own."""
    for name in ("server.crt", "server.key", "ca.crt"):
        (tmp_path / name).write_bytes((CERTIFICATES / name).read_bytes())
    tls = {key: value for key, value in WHOLE["tls_server_config"].items() if key != "client_allowed_sans"}
    path = tmp_path / "web.yml"
    path.write_text(yaml.safe_dump({**WHOLE, "tls_server_config": tls}))
    read_web_config(path)
    checked = subprocess.run(
        ["promtool", "check", "web-config", str(path)], check=False, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("value", "expected_text"),
    [
        ({"tls_server_conf": {}}, "nearest known one is 'tls_server_config'"),
        ({"tls_server_config": {"cert_file": "server.crt"}}, "expected key_file"),
        ({"tls_server_config": {**TLS, "cert": 1}}, "nearest known one is 'cert_file'"),
        ({"tls_server_config": {**TLS, "min_version": "TLS10"}}, "got 'TLS10', expected one of TLS12, TLS13"),
        ({"tls_server_config": {**TLS, "min_version": "TLS13", "max_version": "TLS12"}}, "is above max_version"),
        ({"tls_server_config": {**TLS, "client_auth_type": "RequireAnyClientCert"}}, "RequireAndVerifyClientCert"),
        ({"tls_server_config": {**TLS, "client_ca_file": "ca.crt"}}, "go together"),
        ({"tls_server_config": {**TLS, "client_allowed_sans": ["x"]}}, "needs client_auth_type"),
        ({"tls_server_config": {**TLS, "client_allowed_sans": "x"}}, "expected a list of names"),
        ({"tls_server_config": {**TLS, "key_file": 7}}, "expected a file's name"),
        ({"basic_auth_users": {}}, "expected 1 to 1000 users"),
        ({"basic_auth_users": {"a": "secret"}}, "a: expected a bcrypt hash"),
        ({"basic_auth_users": {"a:b": HASH}}, "without a colon"),
        ({"http_server_config": {"headers": {"Server": "x"}}}, "unknown key 'Server'"),
        ({"http_server_config": {"headers": {"X-Frame-Options": "a\nb"}}}, "text of one line"),
        ([], "expected a mapping"),
    ],
)
def test_what_is_wrong_is_named(value, expected_text):
    """Got, expected, and where; secrets are not repeated."""
    with pytest.raises(ConfigError) as error:
        parse(value)
    assert expected_text in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("certificate", "key", "expected_text"),
    [
        ("server.crt", "rotated.key", "cert_file"),
        ("none.crt", "server.key", "none.crt"),
        ("ca.crt", "ca.crt", "ca.crt"),
    ],
)
def test_a_pair_that_does_not_fit_is_refused(certificate, key, expected_text):
    """At the start, not at the first handshake."""
    config = parse({"tls_server_config": {"cert_file": certificate, "key_file": key}})
    with pytest.raises(ConfigError, match=expected_text):
        config.tls.context()


@pytest.mark.parametrize("text", [b"{", b"a: [", b"\xff\xff", b"x" * (2 << 20)])
def test_a_file_that_is_no_yaml_is_refused(tmp_path, text):
    """One error, whatever the bytes."""
    path = tmp_path / "web.yml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"web\.yml"):
        read_web_config(path)
