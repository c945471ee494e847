"""The published tables: Markdown from the scores of a run, with what is needed to run it again.

Each number of ranks has a section of its own, which states of which sources it is: a run takes an hour, and another
number of ranks may be measured later.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise

from benchmarks.baselines import BASELINES
from benchmarks.scenarios.acceptance import false_alarms, missed, undemanded
from benchmarks.scenarios.catalogue import DEGRADED, FAULTS, HEALTHY
from benchmarks.scenarios.sources import digest_of_sources
from benchmarks.scenarios.table import OURS, Table, markdown, rate_bound
from lockstep.contracts.version import VERSION

_TITLE = re.compile(r"^## ([\d,]+) ranks$", re.MULTILINE)
_HEAD = f"""# Accuracy of detection

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

Each number of ranks is measured by itself: its section states of which sources it is, which rows of
`benchmarks/scenarios/acceptance.py` are missed, and in which no test within the error budget reaches the demand.
Not counted as pages, because the log has no column that explains their steps: {", ".join(DEGRADED)}.
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
    head, *sections = _divided(page)
    return "\n\n".join(each.strip() for each in (head, figures, *sections)) + "\n"


def _divided(page: str) -> list[str]:
    """Return what a page has before its sections, and each section."""
    begins = [0, *(found.start() for found in _TITLE.finditer(page)), len(page)]
    return [page[begin:end] for begin, end in pairwise(begins)]


def report(table: Table, *, runs: Mapping[int, int], first_seed: int, before: str = "") -> str:
    """Return the page. `runs` are those of each scenario by number of ranks.

    The page `before` keeps its figures of many healthy steps, and its sections of numbers of ranks that `table` lacks.
    """
    sections = {_ranks(section): section for section in _divided(before)[1:]}
    made = f"Version {VERSION}, {datetime.now(UTC).date().isoformat()}, sources {digest_of_sources()}"
    for ranks in table.sizes():
        seeds = f"seeds {first_seed} to {first_seed + runs[ranks] - 1}"
        own = table.of(ranks)
        lines = [
            f"## {ranks:,} ranks",
            "",
            f"{made}, {seeds} of {len(own.names(ranks))} scenarios: {_counted(own)}",
            "",
        ]
        lines += [f"- missed: {each}" for each in missed(own)] or [
            "Every row of `benchmarks/scenarios/acceptance.py` is met."
        ]
        lines += [f"- not demanded: {each}" for each in undemanded(own)]
        sections[ranks] = "\n".join([*lines, "", *_section(own, ranks)])
    parts = (_HEAD, marathon_of(before), *(sections[ranks] for ranks in sorted(sections)))
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _ranks(section: str) -> int:
    title = _TITLE.match(section)
    assert title is not None
    return int(title[1].replace(",", ""))


def _counted(table: Table) -> str:
    alarms, steps = false_alarms(table)
    bound = rate_bound(alarms, steps) * 500_000
    return f"{alarms} pages in {steps:,} healthy steps, at most {bound:.2f} in 500,000 with a confidence of 95 %."


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
