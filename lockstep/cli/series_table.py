"""How many series a scrape has, by the catalogue: what docs/metrics.md promises and a test counts in a real scrape."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from lockstep.contracts.inspector_metrics import PLACES_MAX
from lockstep.contracts.limits import RANKS_PER_NODE_MAX, RUNS_PER_NODE_MAX, SUSPECTS_MAX
from lockstep.contracts.metrics import CATALOGUE, STEP_BUCKETS_SECONDS, Metric
from lockstep.contracts.records import DOMAIN_KINDS

Source = Literal["exporter", "coordinator"]
Scope = Literal["communicator", "kind", "rank", "run", "finding", "service"]
"""Of what there is one set of series: a communicator of a rank and an operation in it, a kind of domain of a rank, a
rank, a run, a suspect or incident, the service."""

_FURTHER_SERIES = 3  # +Inf, sum and count
_RANKS = 8
_NODES = (1_250, 12_500)
_RUNS = 20


def scope_of(metric: Metric) -> Scope:
    """Return of what a family has one set of series."""
    if "communicator" in metric.labels:
        return "communicator"
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
        return len(STEP_BUCKETS_SECONDS) + _FURTHER_SERIES
    return 1 if scope_of(metric) == "kind" else (len(metric.values) or 1) * (len(metric.more_values) or 1)


def count(source: Source, scope: Scope, *, details: bool = True) -> int:
    """Return the series that one of `scope` has at most; without `details`, at level minimal."""
    exported = (m for m in CATALOGUE if m.source in (source, "both") and (details or not m.detail))
    return sum(series_of(metric) for metric in exported if scope_of(metric) == scope)


def of_node(*, ranks: int, kinds: int, runs: int = 1, details: bool = True) -> int:
    """Return the most series of a node with `ranks` ranks, each in `kinds` kinds of domains, of `runs` runs.

    Without those of an Inspector, which a training asks for.
    """
    rank, kind, run, service = (
        count("exporter", scope, details=details) for scope in ("rank", "kind", "run", "service")
    )
    return ranks * (rank + kinds * kind) + runs * run + service


def of_coordinator(*, runs: int) -> int:
    """Return the most series of a coordinator that watches `runs` runs without a finding."""
    return runs * count("coordinator", "run") + count("coordinator", "service")


def rows() -> Sequence[tuple[str, str, str]]:
    """Return (what, series, series at level minimal) for the page."""
    return (*_exporter_rows(), *_coordinator_rows())


def _exporter_rows() -> Iterator[tuple[str, str, str]]:
    all_kinds = len(DOMAIN_KINDS)

    def row(what: str, of: Callable[[bool], int]) -> tuple[str, str, str]:
        return what, f"{of(True):,}", f"{of(False):,}"

    def scope(name: Scope) -> Callable[[bool], int]:
        return lambda details: count("exporter", name, details=details)

    def node(kinds: int, nodes: int = 1) -> Callable[[bool], int]:
        return lambda details: nodes * of_node(ranks=_RANKS, kinds=kinds, details=details)

    def worst(details: bool) -> int:  # noqa: FBT001  (as the others)
        return of_node(ranks=RANKS_PER_NODE_MAX, kinds=all_kinds, runs=RUNS_PER_NODE_MAX, details=details)

    yield row("exporter: each rank", scope("rank"))
    yield row("exporter: each rank and kind of domain it communicates in", scope("kind"))
    yield row(
        f"exporter: each communicator and operation of a rank that the NCCL Inspector times, {PLACES_MAX} at most",
        scope("communicator"),
    )
    yield row("exporter: each run on the node", scope("run"))
    yield row("exporter: itself and its node", scope("service"))
    yield row(f"**a node with {_RANKS} ranks of one run, data parallel**", node(1))
    yield row(f"**the same, all {all_kinds} kinds of domains**", node(all_kinds))
    yield row(f"{RANKS_PER_NODE_MAX} ranks of {RUNS_PER_NODE_MAX} runs together, all kinds", worst)
    for nodes in _NODES:
        yield row(f"**{nodes * _RANKS:,} ranks, data parallel, on {nodes:,} nodes**", node(1, nodes))


def _coordinator_rows() -> Iterator[tuple[str, str, str]]:
    for what, series in (
        ("coordinator: each run, whatever its size", str(count("coordinator", "run"))),
        (f"coordinator: each run's suspects and incidents, {SUSPECTS_MAX} ranks at most by name", "1 to 4 each"),
        ("coordinator: itself", str(count("coordinator", "service"))),
        (f"**a coordinator with {_RUNS} healthy runs**", f"{of_coordinator(runs=_RUNS):,}"),
    ):
        yield what, series, series
