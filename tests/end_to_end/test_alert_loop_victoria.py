"""The same loop on VictoriaMetrics: a file of its own, so that both run at a time."""

import pytest

from tests.support.alert_loop import check_loop, victoria_metrics
from tests.support.servers import LIVE_LIMIT_S, is_installed

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(LIVE_LIMIT_S),
    pytest.mark.skipif(
        not is_installed("victoria-metrics", "vmalert"),
        reason="Debian's victoria-metrics (with vmalert) is not installed",
    ),
]


def test_on_victoria_metrics(tmp_path, capsys):
    """One slow rank is one page and nothing else; its end is sent; without a coordinator only that is sent."""
    check_loop(tmp_path, victoria_metrics)
    capsys.readouterr()
