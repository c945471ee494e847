"""A fault pages, a recovery resolves, a dead coordinator states that itself: on Prometheus."""

import pytest

from tests.support.alert_loop import check_loop, prometheus
from tests.support.servers import LIVE_LIMIT_S

pytestmark = [pytest.mark.servers, pytest.mark.smoke, pytest.mark.timeout(LIVE_LIMIT_S)]


def test_on_prometheus(tmp_path, capsys):
    """One slow rank is one page and nothing else; its end is sent; without a coordinator only that is sent."""
    check_loop(tmp_path, prometheus)
    capsys.readouterr()
