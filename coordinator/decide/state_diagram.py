"""Draws the run's states from their table: `python -m coordinator.state_diagram > docs/states.md`."""

from coordinator.decide.transitions import TRANSITIONS, State

_HEADING = """\
# States of a run

Written by `make generate` from the table in `coordinator/decide/transitions.py`; change it there.

"""


def render() -> str:
    """Return docs/states.md: a diagram and the table."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.WARMING}"]
    lines += [f"    {state} --> {target}: {trigger.name.lower()}" for (state, trigger), target in TRANSITIONS.items()]
    lines += ["```", "", "| state | trigger | because | next state |", "|---|---|---|---|"]
    lines += [
        f"| {state} | {trigger.name.lower()} | {trigger} | {target} |"
        for (state, trigger), target in TRANSITIONS.items()
    ]
    return _HEADING + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201  (printing is what this command is for)
