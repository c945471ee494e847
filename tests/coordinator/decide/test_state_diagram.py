"""The drawn table."""

from coordinator.decide.state_diagram import render
from coordinator.decide.transitions import TRANSITIONS


def test_every_transition_is_drawn_once_in_both_forms():
    """Diagram and table hold exactly the transitions of the code."""
    lines = render().splitlines()
    assert sum(" --> " in line for line in lines) == len(TRANSITIONS) + 1
    assert sum(line.startswith("| ") for line in lines) == len(TRANSITIONS) + 1
    assert "    suspect --> profiling: asked" in lines
