"""TLS, client certificates and passwords of a service's HTTP, from a file in the form of Prometheus' exporter-toolkit.

The whole file is checked when the service starts. Passwords, headers and certificates are reloaded when their files
change, so that they can be rotated. Whether there is TLS, and which authority it trusts, stays fixed until a restart.
"""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.yaml_text import read_yaml_file

_USERS_MAX = 1000
_HASH_BYTES = 60
_CERTIFICATES = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_TLS_KEYS = (
    *("cert_file", "key_file", "client_auth_type", "client_ca_file", "client_allowed_sans"),
    *("min_version", "max_version"),
)
_HEADERS = (
    *("Strict-Transport-Security", "X-Frame-Options", "X-Content-Type-Options", "X-XSS-Protection"),
    "Content-Security-Policy",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """The settings of a TLS server; if there are `allowed_names`, a client's certificate must have one of them."""

    certificate: Path
    key: Path
    client_authority: Path | None = None
    verify: ssl.VerifyMode = ssl.CERT_NONE
    allowed_names: tuple[str, ...] = ()
    lowest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    highest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3

    def context(self) -> ssl.SSLContext:
        """Return the context of a server.

        Raises
        ------
        ConfigError
            A file cannot be read, or the key does not belong to the certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version, context.maximum_version = self.lowest, self.highest
        self.load(context)
        if self.client_authority is not None:
            try:
                context.load_verify_locations(self.client_authority)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"client_ca_file {self.client_authority}: {error}") from None
            context.verify_mode = self.verify
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Load the current certificate and key files into a context; existing connections keep theirs.

        Raises
        ------
        ConfigError
            A file cannot be read, or the key does not belong to the certificate.
        """
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            expected = "expected a certificate and its private key, in PEM, without a passphrase"
            raise ConfigError(f"cert_file {self.certificate}, key_file {self.key}: got {error}, {expected}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """The whole file: TLS or None, bcrypt hashes by user, and headers of every response."""

    tls: TlsConfig | None = None
    hash_of: Mapping[str, bytes] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


def read_web_config(path: Path) -> WebConfig:
    """Return the content of a file; paths in it are relative to its folder.

    Raises
    ------
    ConfigError
        It cannot be read, or contains something unknown or impossible; the message names it.
    """
    value = read_yaml_file(path, "web configuration")
    return parse_web_config(value, where=str(path), folder=path.parent)


def parse_web_config(value: Any, *, where: str, folder: Path) -> WebConfig:
    """Return the configuration that a YAML value describes.

    Raises
    ------
    ConfigError
        It contains something unknown or impossible.
    """
    sections = _mapping(value, where, ("tls_server_config", "http_server_config", "basic_auth_users"))
    tls = sections.get("tls_server_config")
    http = _mapping(sections.get("http_server_config"), f"{where}: http_server_config", ("http2", "headers"))
    return WebConfig(
        tls=None if tls is None else _tls(tls, f"{where}: tls_server_config", folder),
        hash_of=_users(sections.get("basic_auth_users"), f"{where}: basic_auth_users"),
        headers=_headers(http.get("headers"), f"{where}: http_server_config: headers"),
    )


def _tls(value: Any, where: str, folder: Path) -> TlsConfig:
    given = _mapping(value, where, _TLS_KEYS)
    for key in ("cert_file", "key_file"):
        if not given.get(key):
            raise ConfigError(f"{where}: expected {key}")
    kind = _one_of(given.get("client_auth_type", "NoClientCert"), f"{where}: client_auth_type", tuple(_CERTIFICATES))
    authority = given.get("client_ca_file")
    if (authority is not None) != (kind != "NoClientCert"):
        raise ConfigError(
            f"{where}: client_ca_file and a client_auth_type that verifies go together, got {authority!r} and {kind}"
        )
    names = given.get("client_allowed_sans") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where}: client_allowed_sans: got {names!r}, expected a list of names")
    if names and kind != "RequireAndVerifyClientCert":
        raise ConfigError(f"{where}: client_allowed_sans needs client_auth_type RequireAndVerifyClientCert, got {kind}")
    lowest = _one_of(given.get("min_version", "TLS12"), f"{where}: min_version", tuple(_VERSIONS))
    highest = _one_of(given.get("max_version", "TLS13"), f"{where}: max_version", tuple(_VERSIONS))
    if _VERSIONS[lowest] > _VERSIONS[highest]:
        raise ConfigError(f"{where}: min_version {lowest} is above max_version {highest}")
    return TlsConfig(
        certificate=_path(given["cert_file"], f"{where}: cert_file", folder),
        key=_path(given["key_file"], f"{where}: key_file", folder),
        client_authority=None if authority is None else _path(authority, f"{where}: client_ca_file", folder),
        verify=_CERTIFICATES[kind],
        allowed_names=tuple(names),
        lowest=_VERSIONS[lowest],
        highest=_VERSIONS[highest],
    )


def _users(value: Any, where: str) -> dict[str, bytes]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not 0 < len(value) <= _USERS_MAX:
        raise ConfigError(f"{where}: got {type(value).__name__}, expected 1 to {_USERS_MAX} users with bcrypt hashes")
    hashes = {}
    for user, hashed in value.items():
        if not isinstance(user, str) or ":" in user:
            raise ConfigError(f"{where}: got user {user!r}, expected a name without a colon")
        is_bcrypt = isinstance(hashed, str) and hashed.startswith(("$2a$", "$2b$", "$2y$"))
        if not is_bcrypt or len(hashed) != _HASH_BYTES or not hashed.isascii():
            raise ConfigError(f"{where}: {user}: expected a bcrypt hash, as `htpasswd -nBC 10 {user}` prints it")
        hashes[user] = hashed.encode()
    return hashes


def _headers(value: Any, where: str) -> dict[str, str]:
    given = _mapping(value, where, _HEADERS)
    for name, text in given.items():
        if not isinstance(text, str) or not text.isprintable():
            raise ConfigError(f"{where}: {name}: got {text!r}, expected text of one line")
    return given


def _mapping(value: Any, where: str, known: Sequence[str]) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: got {type(value).__name__}, expected a mapping with some of {', '.join(known)}")
    for key in value:
        if key not in known:
            near = get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
            raise ConfigError(f"{where}: got unknown key {key!r}, the nearest known one is {near!r}")
    return value


def _one_of(value: Any, where: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ConfigError(f"{where}: got {value!r}, expected one of {', '.join(known)}")
    return str(value)


def _path(value: Any, where: str, folder: Path) -> Path:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: got {value!r}, expected a file's name")
    return folder / value
