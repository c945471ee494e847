"""How many series a scrape has, by the catalogue: what docs/metrics.md promises and a test counts in a real scrape."""

from collections.abc import Sequence
from typing import Literal

from lockstep.contracts.limits import RANKS_PER_NODE_MAX, RUNS_PER_NODE_MAX, SUSPECTS_MAX
from lockstep.contracts.metrics import CATALOGUE, STEP_BUCKETS_SECONDS, Metric
from lockstep.contracts.records import DOMAIN_KINDS

Source = Literal["exporter", "coordinator"]
Scope = Literal["kind", "rank", "run", "finding", "service"]
"""Of what there is one set of series: a kind of domain of a rank, a rank, a run, a suspect or incident, the service."""

_BESIDE_BUCKETS = 3  # +Inf, sum and count
_RANKS = 8
_RUNS = 20


def scope_of(metric: Metric) -> Scope:
    """Return of what a family has one set of series."""
    if metric.values == DOMAIN_KINDS:
        return "kind"
    if metric.source == "coordinator" and {"rank", "incident"} & set(metric.labels):
        return "finding"
    if "rank" in metric.labels:
        return "rank"
    return "run" if "run" in metric.labels else "service"


def series_of(metric: Metric) -> int:
    """Return the series of one set: the values of its enumerated label, or a histogram's lines."""
    if metric.type == "histogram":
        return len(STEP_BUCKETS_SECONDS) + _BESIDE_BUCKETS
    return 1 if scope_of(metric) == "kind" else len(metric.values) or 1


def count(source: Source, scope: Scope) -> int:
    """Return the series that one of `scope` has at most."""
    return sum(series_of(metric) for metric in CATALOGUE if metric.source == source and scope_of(metric) == scope)


def of_node(*, ranks: int, kinds: int, runs: int = 1) -> int:
    """Return the most series of a node with `ranks` ranks, each in `kinds` kinds of domains, of `runs` runs."""
    per_rank = count("exporter", "rank") + kinds * count("exporter", "kind")
    return ranks * per_rank + runs * count("exporter", "run") + count("exporter", "service")


def of_coordinator(*, runs: int) -> int:
    """Return the most series of a coordinator that watches `runs` runs without a finding."""
    return runs * count("coordinator", "run") + count("coordinator", "service")


def rows() -> Sequence[tuple[str, str]]:
    """Return (what, series) for the page."""
    all_kinds = len(DOMAIN_KINDS)
    worst = of_node(ranks=RANKS_PER_NODE_MAX, kinds=all_kinds, runs=RUNS_PER_NODE_MAX)
    return (
        ("exporter: each rank", str(count("exporter", "rank"))),
        ("exporter: each rank and kind of domain it communicates in", str(count("exporter", "kind"))),
        ("exporter: each run on the node", str(count("exporter", "run"))),
        ("exporter: itself and its node", str(count("exporter", "service"))),
        (f"**a node with {_RANKS} ranks of one run, data parallel**", str(of_node(ranks=_RANKS, kinds=1))),
        (f"**the same, all {all_kinds} kinds of domains**", str(of_node(ranks=_RANKS, kinds=all_kinds))),
        (f"{RANKS_PER_NODE_MAX} ranks of {RUNS_PER_NODE_MAX} runs together, all kinds", str(worst)),
        ("coordinator: each run, whatever its size", str(count("coordinator", "run"))),
        (f"coordinator: each run's suspects and incidents, {SUSPECTS_MAX} ranks at most by name", "1 to 4 each"),
        ("coordinator: itself", str(count("coordinator", "service"))),
        (f"**a coordinator with {_RUNS} healthy runs**", str(of_coordinator(runs=_RUNS))),
    )
