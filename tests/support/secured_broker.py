"""A mosquitto as docs/security.md sets it up: shipped configuration and access rules, TLS, credentials by the recipes."""

import re
import subprocess
from pathlib import Path

from lockstep.cli import access_rules
from lockstep.serving.broker import BrokerConfig
from tests.support.servers import Mosquitto

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
COORDINATOR = access_rules.COORDINATOR_USER
_CONFIGURATION = ROOT / "deploy" / "systemd" / "mosquitto.conf"
_OWN_LINES = ("listener ", "allow_anonymous ")
_SERVER_CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    " -addext subjectAltName=IP:127.0.0.1 -addext keyUsage=critical,digitalSignature,keyCertSign"
    " -keyout server.key -out server.crt"
)


def block(title: str, language: str = "sh") -> str:
    """Return the first block of code of a language behind a heading of the page."""
    section = PAGE.read_text().partition(f"### {title}\n")[2].partition("\n### ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return next(text for of, text in blocks if of == language)


def shell(script: str, directory: Path) -> None:
    """Run a script as the page's reader would."""
    done = subprocess.run(["sh", "-euc", script], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class SecuredBroker:
    """`users` are nodes; `title` is the recipe by which they and the coordinators get their credentials."""

    def __init__(self, directory: Path, nodes: list[str], title: str) -> None:
        self.directory = directory
        self._has_certificates = title == "Certificates"
        (directory / "nodes").write_text("\n".join(nodes) + "\n")
        shell(block(title), directory)
        shell(_SERVER_CERTIFICATE, directory)
        (directory / "acl").write_text(access_rules.render())
        text = _CONFIGURATION.read_text()
        places = {
            "/etc/mosquitto/lockstep.passwd": directory / "lockstep.passwd",
            "/etc/mosquitto/lockstep.acl": directory / "acl",
            "/etc/mosquitto/certs/ca.crt": directory / ("clients-ca.crt" if self._has_certificates else "server.crt"),
            "/etc/mosquitto/certs": directory,
        }
        for place, path in places.items():
            text = text.replace(place, str(path))
        lines = [line for line in text.splitlines() if not line.startswith(_OWN_LINES)]
        if self._has_certificates:
            lines = [line for line in lines if not line.startswith("password_file")] + [block("Certificates", "")]
        self.server = Mosquitto(directory, "\n".join([*lines, "log_type all", ""]))
        configuration = directory / "mosquitto.conf"
        configuration.write_text(configuration.read_text().replace("allow_anonymous true", "allow_anonymous false"))

    @property
    def port(self) -> int:
        """TCP port on 127.0.0.1."""
        return self.server.port

    def settings(self, user: str) -> dict[str, object]:
        """Return the keys `broker_*` of a service that signs in as a user."""
        place = {"broker_port": self.port, "broker_ca_file": str(self.directory / "server.crt")}
        if self._has_certificates:
            files = {"broker_cert_file": f"{user}.crt", "broker_key_file": f"{user}.key"}
        else:
            files = {"broker_password_file": f"{user}.password"}
            place["broker_username"] = user
        return place | {key: str(self.directory / name) for key, name in files.items()}

    def config(self, user: str) -> BrokerConfig:
        """Return the same as a client's configuration."""
        return BrokerConfig(**self.settings(user))  # type: ignore[arg-type]

    def log(self) -> str:
        """Return what the broker has logged."""
        return (self.directory / "mosquitto.log").read_text(errors="replace")
