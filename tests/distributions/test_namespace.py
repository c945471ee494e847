"""The build's change of imports: what lies at the root of the repository is imported from the namespace."""

import importlib.util

import pytest

from tests.distributions.conftest import ROOT


@pytest.fixture(scope="module")
def with_namespace():
    spec = importlib.util.spec_from_file_location("lockstep_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.with_namespace


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from exporter.reading.rings import Rings", "from lockstep.exporter.reading.rings import Rings"),
        ("from alerts import rules, table", "from lockstep.alerts import rules, table"),
        ("def f():\n    import dashboards  # noqa", "def f():\n    from lockstep import dashboards  # noqa"),
        ("from dashboards import (\n    rank,\n)", "from lockstep.dashboards import (\n    rank,\n)"),
        ("from lockstep.contracts import topics", "from lockstep.contracts import topics"),
        ("from exporters import x", "from exporters import x"),
        ("import os, sys", "import os, sys"),
        ("from . import alerts", "from . import alerts"),
        ("'''from exporter import x'''", "'''from exporter import x'''"),
        ("name = '\x0c\u2028'\nfrom alerts import é", "name = '\x0c\u2028'\nfrom lockstep.alerts import é"),
    ],
)
def test_imports_get_the_namespace(with_namespace, text, expected):
    """Statements only, at any depth; texts and other packages stay as they are."""
    assert with_namespace(text, "file.py") == expected


@pytest.mark.parametrize("text", ["import exporter.reading", "import alerts as a", "import os, alerts"])
def test_an_import_that_binds_another_name_is_refused(with_namespace, text):
    """The name that it binds would be another one in the namespace."""
    with pytest.raises(ValueError, match=r"file\.py:2: got .*, expected `from PACKAGE import NAME`"):
        with_namespace(f"\n{text}", "file.py")
