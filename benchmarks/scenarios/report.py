"""The published table: Markdown from the scores of a run, with what is needed to run it again."""

from collections.abc import Mapping, Sequence

from benchmarks.baselines import BASELINES
from benchmarks.scenarios.acceptance import false_alarms
from benchmarks.scenarios.catalogue import DEGRADED, FAULTS, HEALTHY
from benchmarks.scenarios.table import OURS, Table, markdown, rate_bound
from lockstep import __version__

_HEAD = """# Accuracy of detection

Written by `make accuracy`; do not edit. Labelled runs of `benchmarks/scenarios` through the live state machine, and
through the rules that others publish or use (`benchmarks/baselines.py`). Columns: recall of the ranks, groups, nodes
and jobs at fault; precision of what was named; pages per 10,000 steps without a fault; wrong ranks named; steps from a
fault's begin to its naming, the first slow step being 1 (for ranks slow from the start the detector's warm-up is in
it); share of right causes. A dash: nothing to measure. What only feels a fault (the job that a slow rank holds back)
counts neither way.
"""


def report(table: Table, *, runs: Mapping[int, int], first_seed: int, missed: Sequence[str]) -> str:
    """Return the page. `runs` are those of each scenario by number of ranks, `missed` the acceptance's open rows."""
    alarms, steps = false_alarms(table)
    bound = rate_bound(alarms, steps) * 500_000
    lines = [_HEAD, "## Provenance", "", f"Version {__version__}. Seeds of each scenario:", ""]
    lines += [
        f"- {ranks:,} ranks: {first_seed} to {first_seed + count - 1}, {len(table.names(ranks))} scenarios"
        for ranks, count in runs.items()
    ]
    lines += [
        "",
        f"{alarms} pages in {steps:,} healthy steps: at most {bound:.2f} in 500,000 with a confidence of 95 %.",
        f"Left out of that figure, for want of the column that tells: {', '.join(DEGRADED)}.",
        "",
        "## Acceptance",
        "",
        *([f"- missed: {each}" for each in missed] or ["Every row of `benchmarks/scenarios/acceptance.py` is met."]),
    ]
    for ranks in table.sizes():
        lines += ["", f"## {ranks:,} ranks", "", *_section(table, ranks)]
    return "\n".join(lines) + "\n"


def _section(table: Table, ranks: int) -> list[str]:
    chosen = table.names(ranks)
    faulty = [name for name in chosen if name in FAULTS]
    healthy = [name for name in chosen if name in HEALTHY and name not in DEGRADED]
    rows = [(name, table.total(OURS, ranks, [name])) for name in chosen]
    methods = [method for method in (OURS, *BASELINES) if (method, chosen[0], ranks) in table.scores] if chosen else []
    totals = [
        (f"{method}, {what}", table.total(method, ranks, part))
        for method in methods
        for what, part in (("faults", faulty), ("healthy", healthy))
    ]
    return [*markdown("scenario", rows), "", *markdown("method, all scenarios", totals)]
