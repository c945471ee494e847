"""The cost of a received message: measured on a few, and a missed budget fails."""

import json

import pytest

from benchmarks import broker_cost

pytestmark = pytest.mark.servers


@pytest.mark.parametrize(("budget_us", "status"), [(1e9, 0), (0.0, 1)])
def test_the_exit_code_is_the_verdict(monkeypatch, capsys, budget_us, status):
    """And the figure is printed either way."""
    monkeypatch.setattr(broker_cost, "BUDGET_US", budget_us)
    monkeypatch.setattr("sys.argv", ["broker_cost", "--messages", "300", "--rounds", "1", "--json"])
    assert broker_cost.main() == status
    (figure,) = json.loads(capsys.readouterr().out)["us_per_message"].values()
    assert figure > 0
