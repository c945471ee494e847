"""Renders docs/frameworks.md from the matrix."""

from itertools import chain

from tests.agent.frameworks.matrix import FRAMEWORKS, SIGNALS, VERSIONS, Cell

_HEADING = """\
# Frameworks

Written by `make generate` from `tests/agent/frameworks/matrix.py`; change it there.

What the agent sees, without a change to the training, in each framework. Each row is a script under
`tests/agent/frameworks/scripts/` that trains with the real library on CPU and writes down itself what it does; each
cell is a test that compares the agent's records with that.
"""
_REMARK = """\
In every record the parts of the step sum to it exactly. What a process did before its first backward and after its last
step is in no record.
"""
_MEANING = {
    Cell.SEEN: "it happens, and the records say so, exactly, in the right steps",
    Cell.LEARNT: "so after ten iterations; until then each optimizer's step ends a record, flagged as warm-up",
    Cell.NOT_SEEN: "it happens, and the records hold nothing of it",
    Cell.ABSENT: "it does not happen in this training, and no record claims it",
}


def render() -> str:
    """Return docs/frameworks.md."""
    versions = ", ".join(f"{library} {version}" for library, version in VERSIONS.items())
    rows = [
        (framework.title, *(framework.cell(signal).value for signal in SIGNALS)) for framework in FRAMEWORKS.values()
    ]
    notes = [f"- **{framework.title}**: {framework.note}" for framework in FRAMEWORKS.values() if framework.note]
    return "\n".join(
        chain(
            [_HEADING, f"Run with {versions}.", ""],
            _table(("", *SIGNALS), rows),
            ["", *(f"- *{cell.value}*: {meaning}" for cell, meaning in _MEANING.items()), ""],
            ["## What a yes means", ""],
            _table(("signal", "claim"), list(SIGNALS.items())),
            ["", _REMARK, "## Notes", "", *notes, ""],
        )
    )


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (heads, tuple("---" for _ in heads), *rows)]
