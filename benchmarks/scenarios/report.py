"""The published table: Markdown from the scores of a run, with what is needed to run it again."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from benchmarks.baselines import BASELINES
from benchmarks.scenarios.acceptance import false_alarms, undemanded
from benchmarks.scenarios.catalogue import DEGRADED, FAULTS, HEALTHY
from benchmarks.scenarios.sources import digest_of_sources
from benchmarks.scenarios.table import OURS, Table, markdown, rate_bound
from lockstep.contracts.version import VERSION

_FIRST_TABLE = "\n## 8 ranks\n"
_HEAD = """# Accuracy of detection

`make accuracy` writes this page; do not edit it. It replays labelled runs of `benchmarks/scenarios` through the live
state machine, and through the rules that others publish or use (`benchmarks/baselines.py`).

| column | meaning |
|---|---|
| recall | share of the ranks, groups, nodes and jobs at fault that are named |
| precision | share of the named ones that are at fault |
| false per 10,000 | pages per 10,000 steps without a fault |
| wrong ranks | ranks that are named and not at fault |
| p50, p95 | steps from the fault's onset to its naming; the first slow step is 1 |
| cause | share of right causes |

For ranks that are slow from the start, p50 and p95 include the detector's warm-up. A dash means that there is nothing
to measure. A victim of a fault (the job that a slow rank holds back) counts neither as right nor as wrong. Some names
of scenarios are short forms: *scattered gc* is unsynchronised garbage collection, *wide silicon* is a fleet with
large static device variation, *mad clock* is a wrong wall clock, and *many pauses* are checkpoints and evaluations. A
name is part of its scenario's seed, so it is never changed.
"""


BEGIN, END = "<!-- marathon -->", "<!-- end of marathon -->"
"""What the figures of `benchmarks/marathon.py` stand between on the page."""


def marathon_of(page: str) -> str:
    """Return the figures of the marathon that a page holds, empty where it has none."""
    _, begin, rest = page.partition(BEGIN)
    figures, end, _ = rest.partition(END)
    return f"{begin}{figures}{end}" if end else ""


def with_marathon(page: str, figures: str) -> str:
    """Return the page with these figures, in the place of those that it had, or at the end of its acceptance."""
    before = marathon_of(page)
    if before:
        return page.replace(before, figures)
    head, tables, rest = page.partition(_FIRST_TABLE)
    return f"{head.rstrip()}\n\n{figures}\n{tables}{rest}"


def report(table: Table, *, runs: Mapping[int, int], first_seed: int, missed: Sequence[str], marathon: str = "") -> str:
    """Return the page. `runs` are those of each scenario by number of ranks, `missed` the acceptance's open rows.

    `marathon` holds the figures that the page had of many healthy steps.
    """
    alarms, steps = false_alarms(table)
    bound = rate_bound(alarms, steps) * 500_000
    made = f"Version {VERSION}, {datetime.now(UTC).date().isoformat()}, sources {digest_of_sources()}."
    lines = [_HEAD, "## Provenance", "", f"{made} Seeds of each scenario:", ""]
    lines += [
        f"- {ranks:,} ranks: {first_seed} to {first_seed + count - 1}, {len(table.names(ranks))} scenarios"
        for ranks, count in runs.items()
    ]
    lines += [
        "",
        f"{alarms} pages in {steps:,} healthy steps: at most {bound:.2f} in 500,000 with a confidence of 95 %.",
        f"Excluded, because the log has no column that explains their steps: {', '.join(DEGRADED)}.",
        "",
        "## Acceptance",
        "",
        *([f"- missed: {each}" for each in missed] or ["Every row of `benchmarks/scenarios/acceptance.py` is met."]),
        *(f"- not demanded: {each}" for each in undemanded(table)),
    ]
    for ranks in table.sizes():
        lines += ["", f"## {ranks:,} ranks", "", *_section(table, ranks)]
    page = "\n".join(lines) + "\n"
    return with_marathon(page, marathon) if marathon else page


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
