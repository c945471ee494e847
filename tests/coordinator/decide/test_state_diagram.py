"""The drawn table."""

import re

from coordinator.decide.state_diagram import render
from coordinator.decide.transitions import LIVE, TRANSITIONS, State, Trigger


def test_the_table_holds_every_transition_once():
    """Each state that a line names, with the line's trigger and next state, is a transition of the code."""
    found = []
    for states, trigger, because, target in re.findall(
        r"^\| (.+) \| (\w+) \| (.+) \| (\w+) \|$", render(), re.MULTILINE
    ):
        if trigger != "trigger":
            assert Trigger[trigger.upper()] == because
            named = State if states == "any" else map(State, states.split(", "))
            found += [((state, Trigger[trigger.upper()]), State(target)) for state in named]
    assert len(found) == len(set(found))
    assert dict(found) == TRANSITIONS


def test_the_diagram_draws_every_transition_once():
    """An arrow from the box stands for one from each state inside it."""
    found = []
    for origin, target, trigger in re.findall(r"^ +(\w+) --> (\w+): (\w+)$", render(), re.MULTILINE):
        states = LIVE if origin == "live" else (State(origin),)
        found += [((state, Trigger[trigger.upper()]), State(target)) for state in states]
    assert len(found) == len(set(found))
    assert dict(found) == TRANSITIONS
