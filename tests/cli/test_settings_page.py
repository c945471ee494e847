"""docs/settings.md: what an operator may set, from the annotations."""

from coordinator.settings.thresholds import catalogue
from lockstep.cli.settings_page import render


def test_every_setting_has_one_row_with_its_reason():
    """Nothing that can be set is missing, and nothing else is there."""
    rows = [line.split(" | ") for line in render().splitlines() if line.startswith("| `")]
    assert [row[0].strip("| `") for row in rows] == list(catalogue())
    assert all(setting.reason in row[-1] for setting, row in zip(catalogue().values(), rows, strict=True))
    assert "| `budget.false_page_steps` | 500,000 | 1,000 to 1,000,000,000 | steps |" in render()
