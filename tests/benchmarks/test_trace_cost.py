"""A stored trace beyond its budget fails the benchmark, whatever its size."""

from collections import Counter

import pytest

from benchmarks import trace_cost
from benchmarks.trace_cost import RECORDING, print_stored, stored_budget_bytes


@pytest.mark.parametrize(("json_bytes", "budget_bytes"), [(0, 24_000), (1_000_000, 44_000), (50_000_000, 1_000_000)])
def test_the_budget_is_a_share_and_the_forms_own_bytes(json_bytes, budget_bytes):
    """2 % of the JSON; a trace below 5 MB may take what the form and its distinct texts need as well."""
    assert stored_budget_bytes(json_bytes) == budget_bytes


def test_a_stored_trace_beyond_its_budget_is_missed(tmp_path, capsys, monkeypatch):
    """The tests' recording is within it; with a tenth of the budget it is not, and the line shows it."""
    assert print_stored(RECORDING, tmp_path, Counter())
    assert "MISSED" not in capsys.readouterr().out
    monkeypatch.setattr(trace_cost, "STORED_BUDGET_RATIO", trace_cost.STORED_BUDGET_RATIO / 10)
    monkeypatch.setattr(trace_cost, "SMALL_BUDGET_BYTES", trace_cost.SMALL_BUDGET_BYTES / 10)
    assert not print_stored(RECORDING, tmp_path, Counter())
    assert "MISSED" in capsys.readouterr().out
