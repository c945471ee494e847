"""How a broker is reached."""

import pytest

from coordinator.config import CoordinatorConfig
from exporter.config import ExporterConfig
from lockstep.contracts.errors import ConfigError
from lockstep.serving.broker import backoff_seconds, check_protocol, client_options


def wait(failures, jitter):
    return backoff_seconds(failures, jitter, first_seconds=0.2, longest_seconds=15.0)


def test_backoff_doubles_is_capped_and_jittered():
    """Half of each wait is chance; none is longer than the cap."""
    assert wait(1, 0.0) == pytest.approx(0.1)
    assert wait(1, 1.0) == pytest.approx(0.2)
    assert wait(4, 1.0) == pytest.approx(1.6)
    assert wait(10_000, 1.0) == 15.0


@pytest.mark.parametrize("form", [ExporterConfig, CoordinatorConfig])
def test_both_services_describe_a_broker(form, tmp_path):
    """Host, port, user and rotated password of either configuration become the client's arguments."""
    password = tmp_path / "password"
    config = form(broker_host="b", broker_port=8883, broker_username="u", broker_password_file=str(password))
    for secret in ("one\n", "two"):
        password.write_text(secret)
        options = client_options(config, packet_max_bytes=1000)
        assert (options["hostname"], options["port"], options["username"]) == ("b", 8883, "u")
        assert options["password"] == secret.strip()
    assert options["properties"].MaximumPacketSize == 1000
    assert client_options(form(broker_protocol="3.1.1"), packet_max_bytes=1000)["properties"] is None


def test_an_unknown_protocol_is_named():
    """A version that is not spoken is refused with those that are."""
    with pytest.raises(ConfigError, match="broker_protocol: got '4'"):
        check_protocol(ExporterConfig(broker_protocol="4"))
