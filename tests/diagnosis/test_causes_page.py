from pathlib import Path

from lockstep.diagnosis.causes_page import limits_of, render
from lockstep.diagnosis.remedies import CAUSES, table

PAGE = Path(__file__).parents[2] / "docs" / "causes.md"


def test_the_page_is_in_step_with_the_data():
    """Rules, limits and remedies change in the data; the page follows by `make generate`."""
    assert PAGE.read_text() == render()


def test_the_page_has_every_cause_with_its_limits_and_remedies():
    """Nothing that a rule may name is missing."""
    text = render()
    for cause in CAUSES:
        assert f"(`{cause}`)" in text
        assert all(f"`{name}`" in text for name, _ in limits_of(cause))
    assert all(row.suggestion in text for row in table().remedies if row.causes)
