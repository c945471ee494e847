"""Renders docs/states.md from the table of transitions, for `make generate`."""

from coordinator.decide.transitions import LIVE, TRANSITIONS, State, Trigger

_HEADING = """\
# States of a run

Written by `make generate` from the table in `coordinator/decide/transitions.py`; change it there. The box holds the
states of a run that takes steps; an arrow from the box leaves any of them.

"""
_BOX = "live"


def render() -> str:
    """Return docs/states.md: a diagram and a table in which states with the same transition share a row."""
    inside = [f"        [*] --> {State.WARMING}"]
    outside = [f"    [*] --> {_BOX}"]
    rows = []
    for (trigger, target), states in _by_transition().items():
        edge = f"{target}: {trigger.name.lower()}"
        drawn = (_BOX, *(state for state in states if state not in LIVE)) if states >= set(LIVE) else states
        for state in sorted(drawn, key=str):
            within = state in LIVE and target in LIVE
            (inside if within else outside).append(f"{'    ' * (1 + within)}{state} --> {edge}")
        names = "any" if states == set(State) else ", ".join(state for state in State if state in states)
        rows.append(f"| {names} | {trigger.name.lower()} | {trigger} | {target} |")
    diagram = ["```mermaid", "stateDiagram-v2", f"    state {_BOX} {{", *inside, "    }", *outside, "```"]
    return (
        _HEADING
        + "\n".join([*diagram, "", "| state | trigger | because | next state |", "|---|---|---|---|", *rows])
        + "\n"
    )


def _by_transition() -> dict[tuple[Trigger, State], set[State]]:
    """Return the states from which each trigger leads to the same next state."""
    found: dict[tuple[Trigger, State], set[State]] = {}
    for (state, trigger), target in TRANSITIONS.items():
        found.setdefault((trigger, target), set()).add(state)
    return found
