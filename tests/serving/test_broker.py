"""What both configurations check of their broker."""

import pytest

from coordinator.settings.config import CoordinatorConfig
from exporter.config import ExporterConfig
from lockstep.contracts.errors import ConfigError

FORMS = pytest.mark.parametrize("form", [ExporterConfig, CoordinatorConfig])


@pytest.fixture
def file(tmp_path):
    """Return the name of a file that is there."""
    path = tmp_path / "file"
    path.write_text("x")
    return str(path)


@FORMS
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("broker_host", ""),
        ("broker_port", 0),
        ("broker_port", 65_536),
        ("broker_password_file", "/nowhere"),
        ("broker_ca_file", "/nowhere"),
        ("broker_cert_file", "/"),
        ("broker_key_file", "/nowhere"),
    ],
)
def test_a_wrong_value_is_named(form, key, value):
    """By its key, with what was got."""
    with pytest.raises(ConfigError, match=f"{key}: got {value!r}, expected"):
        form(**{key: value}).validate()


@FORMS
@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (["broker_password_file"], "broker_username"),
        (["broker_cert_file", "broker_ca_file"], "broker_key_file"),
        (["broker_key_file", "broker_ca_file"], "broker_cert_file"),
        (["broker_cert_file", "broker_key_file"], "broker_ca_file"),
    ],
)
def test_what_is_of_no_use_alone_is_refused(form, file, given, missing):
    """A password without a name; half a certificate; a certificate that plain TCP would never show."""
    with pytest.raises(ConfigError, match=f"{missing}: got '', expected a value, because {given[0]} is set"):
        form(**dict.fromkeys(given, file)).validate()


@FORMS
def test_all_of_it_together_is_fine(form, file, tmp_path):
    """Name, password, authority and certificate."""
    keys = ("broker_password_file", "broker_ca_file", "broker_cert_file", "broker_key_file")
    extra = {"spool_directory": str(tmp_path)} if form is ExporterConfig else {}
    form(broker_username="node", **dict.fromkeys(keys, file), **extra).validate()
