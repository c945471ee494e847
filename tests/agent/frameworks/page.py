"""Renders docs/frameworks.md from the two matrices."""

from itertools import chain
from typing import TYPE_CHECKING

from tests.agent.frameworks.distributed import matrix as distributed
from tests.agent.frameworks.matrix import FRAMEWORKS, SIGNALS, VERSIONS, Cell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.agent.frameworks.matrix import Framework

_HEADING = """\
# Frameworks

Written by `make generate` from `tests/agent/frameworks/matrix.py` and `distributed/matrix.py` next to it; change it there.

What the agent sees in each framework, without a change to the training code. Each row is a script under
`tests/agent/frameworks/scripts/` that trains with the real library on CPU and logs what it does; each cell is a test that
compares the agent's records with this log.
"""
_REMARK = """\
In every record, the parts sum exactly to the step. No record contains what a process did before its first backward and after
its last step.
"""
_DISTRIBUTED = f"""\
## Over several ranks

Each row is a script under `tests/agent/frameworks/distributed/scripts/` that trains with the real library over gloo on the
CPU. `make test-frameworks` runs it without the agent, then with it, with steps of {distributed.WORK_S} s; from step {distributed.ONSET_STEP} on,
one rank takes {distributed.DELAY_S} s more. It is a separate tier with its own packages (the extra `frameworks`).
"""
_NOT_RUN = """\
Tried, but not able to run on a CPU:
"""
_MEANING = {
    Cell.SEEN: "it happens, and the records show it exactly, in the right steps",
    Cell.LEARNT: "the same after ten iterations; until then each optimizer's step ends a record, flagged as warm-up",
    Cell.NOT_SEEN: "it happens, but the records do not show it",
    Cell.ABSENT: "it does not happen in this script, and no record claims it",
}


def render() -> str:
    """Return docs/frameworks.md."""
    rows = [
        (framework.title, *(framework.cell(signal).value for signal in SIGNALS)) for framework in FRAMEWORKS.values()
    ]
    return "\n".join(
        chain(
            [_HEADING, f"Run with {_text(VERSIONS)}.", ""],
            _table(("", *SIGNALS), rows),
            ["", *(f"- *{cell.value}*: {meaning}" for cell, meaning in _MEANING.items()), ""],
            ["## What a yes means", ""],
            _table(("signal", "claim"), list(SIGNALS.items())),
            ["", _REMARK, "## Notes", "", *_notes(FRAMEWORKS.values()), "", *_distributed()],
        )
    )


def _distributed() -> list[str]:
    """Return the lines about frameworks over several ranks."""
    frameworks = distributed.FRAMEWORKS.values()
    rows = [
        (framework.title, framework.launcher, *(framework.cell(signal).value for signal in distributed.SIGNALS))
        for framework in frameworks
    ]
    return [
        _DISTRIBUTED,
        f"Run with {_text(distributed.VERSIONS)}.",
        "",
        *_table(("", "started by", *distributed.SIGNALS), rows),
        "",
        *_table(("signal", "claim"), list(distributed.SIGNALS.items())),
        "",
        *_notes(frameworks),
        "",
        _NOT_RUN,
        *(f"- **{tried.title}**: {tried.reason}." for tried in distributed.NOT_RUN),
        "",
    ]


def _notes(frameworks: "Iterable[Framework | distributed.Framework]") -> list[str]:
    return [f"- **{framework.title}**: {framework.note}" for framework in frameworks if framework.note]


def _text(versions: dict[str, str]) -> str:
    return ", ".join(f"{library} {version}" for library, version in versions.items())


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (heads, tuple("---" for _ in heads), *rows)]
