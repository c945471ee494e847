"""Counts the series of a scrape from the catalogue, as docs/metrics.md shows; a test counts those of a real scrape."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from alerts import rules
from lockstep.contracts.inspector_metrics import PLACES_MAX
from lockstep.contracts.limits import RANKS_PER_NODE_MAX, RUNS_PER_NODE_MAX, SUSPECTS_MAX
from lockstep.contracts.metric import FLAGS, LEVELS, PHASES, Level, Metric
from lockstep.contracts.metrics import CATALOGUE, STEP_BUCKETS_SECONDS
from lockstep.contracts.records import DOMAIN_KINDS

Source = Literal["exporter", "coordinator"]
Scope = Literal["communicator", "kind", "rank", "run_kind", "run", "incident", "optional", "service"]
"""What has one set of series: a communicator of a rank and an operation in it; a kind of domain of a rank; a rank; a
kind of domain of a run on a node; a run; a suspect or incident; a part of the exporter that is off unless it is
configured or used; the service."""

FULL: Level = "full"
SCRAPE_SERIES = 5
"""What Prometheus adds to each scrape: up, scrape_duration_seconds, scrape_samples_scraped,
scrape_samples_post_metric_relabeling, scrape_series_added."""
BUDGETS: dict[Level, int] = {"minimal": 80_000, "default": 276_000}
"""Limits on the series of 10,000 ranks of one data-parallel run on 1,250 nodes."""
_FURTHER_SERIES = 3  # +Inf, sum and count
_SUSPECT_SERIES = 4  # of a suspect or incident: slowdown, info, gain, evidence
_RANKS = 8
_NODES = (1_250, 12_500)
_RUNS = 20


def scope_of(metric: Metric, level: Level = FULL) -> Scope:
    """Return what has one set of a family's series at `level`."""
    is_together = metric.source == "exporter" and metric.form(level) == "node"
    if "communicator" in metric.labels:
        return "communicator"
    if metric.values == DOMAIN_KINDS:
        return "run_kind" if is_together else "kind"
    if metric.source == "coordinator" and {"rank", "incident"} & set(metric.labels):
        return "incident"
    if metric.is_optional:
        return "optional"
    if "rank" in metric.labels and not is_together:
        return "rank"
    return "run" if "run" in metric.labels else "service"


def series_of(metric: Metric, level: Level = FULL) -> int:
    """Return the series of one set: the values of its enumerated label, or a histogram's lines."""
    if metric.type == "histogram":
        return len(STEP_BUCKETS_SECONDS) + _FURTHER_SERIES
    if metric.values == DOMAIN_KINDS:
        return 1
    return (len(metric.values_at(level)) or 1) * (len(metric.more_values) or 1)


def count(source: Source, scope: Scope, level: Level = FULL) -> int:
    """Return the most series that one of `scope` has; a coordinator has the same at every level."""
    exported = (m for m in CATALOGUE if m.source in (source, "both"))
    if source == "exporter":
        exported = (m for m in exported if m.form(level) != "absent")
    return sum(series_of(metric, level) for metric in exported if scope_of(metric, level) == scope)


def of_node(*, ranks: int, kinds: int, runs: int = 1, level: Level = FULL) -> int:
    """Return the most series of a node with `ranks` ranks, each in `kinds` kinds of domains, of `runs` runs.

    Excludes an Inspector's series, which training has to request, and parts that are off unless configured.
    """
    rank, kind, run, run_kind, service = (
        count("exporter", scope, level) for scope in ("rank", "kind", "run", "run_kind", "service")
    )
    return ranks * (rank + kinds * kind) + runs * (run + kinds * run_kind) + service


def of_coordinator(*, runs: int) -> int:
    """Return the most series of a coordinator that monitors `runs` runs without an incident."""
    return runs * count("coordinator", "run") + count("coordinator", "service")


def recorded(*, nodes: int, ranks: int, kinds: int, level: Level = FULL) -> int:
    """Return the most series that the recording rules make of one run on `nodes` nodes of `ranks` ranks, one host each.

    A rule that joins ranks to their hosts has no result below level default, where `lockstep_rank_info` is absent.
    Series derived from an Inspector's families are not counted, like those families.
    """
    of_each = {
        "run": 1,
        "run_flag": len(FLAGS),
        "run_phase": len(PHASES),
        "run_domain_kind": kinds,
        "instance": nodes,
        "run_hostname_phase": nodes * len(PHASES) * (level != LEVELS[0]),
        "run_rank_hostname": nodes * ranks * (level != LEVELS[0]),
    }
    records = (rule.record for rule in rules.recordings() if ":lockstep_nccl_" not in rule.record)
    return sum(of_each[record.partition(":")[0]] for record in records)


def of_cluster(*, nodes: int, ranks: int, kinds: int, level: Level = FULL) -> int:
    """Return the most series that a Prometheus holds of one run on `nodes` nodes of `ranks` ranks, all included.

    They are those of the exporters, of a coordinator with as many suspects as it exports, the recorded ones, and those
    that Prometheus itself adds to each scrape.
    """
    pages = nodes * of_node(ranks=ranks, kinds=kinds, level=level)
    pages += of_coordinator(runs=1) + SUSPECTS_MAX * _SUSPECT_SERIES
    return pages + recorded(nodes=nodes, ranks=ranks, kinds=kinds, level=level) + (nodes + 1) * SCRAPE_SERIES


def rows() -> Sequence[tuple[str, ...]]:
    """Return (what, series at each of the levels) for the page."""
    return (*_exporter_rows(), *_coordinator_rows(), *_cluster_rows())


def _row(what: str, of: Callable[[Level], int]) -> tuple[str, ...]:
    return (what, *(f"{of(level):,}" for level in LEVELS))


def _exporter_rows() -> Iterator[tuple[str, ...]]:
    all_kinds = len(DOMAIN_KINDS)

    def scope(name: Scope) -> Callable[[Level], int]:
        return lambda level: count("exporter", name, level)

    def node(kinds: int) -> Callable[[Level], int]:
        return lambda level: of_node(ranks=_RANKS, kinds=kinds, level=level)

    def worst(level: Level) -> int:
        return of_node(ranks=RANKS_PER_NODE_MAX, kinds=all_kinds, runs=RUNS_PER_NODE_MAX, level=level)

    yield _row("exporter: each rank", scope("rank"))
    yield _row("exporter: each rank and kind of domain it communicates in", scope("kind"))
    yield _row(
        f"exporter: each communicator and operation of a rank that the NCCL Inspector times, {PLACES_MAX} at most",
        scope("communicator"),
    )
    yield _row("exporter: each run on the node", scope("run"))
    yield _row("exporter: each run on the node and kind of domain, all its ranks together", scope("run_kind"))
    yield _row("exporter: itself and its node", scope("service"))
    yield _row("exporter: neighbours and NCCL Inspector, if configured and used", scope("optional"))
    yield _row(f"**a node with {_RANKS} ranks of one run, data parallel**", node(1))
    yield _row(f"**the same, all {all_kinds} kinds of domains**", node(all_kinds))
    yield _row(f"{RANKS_PER_NODE_MAX} ranks of {RUNS_PER_NODE_MAX} runs together, all kinds", worst)


def _coordinator_rows() -> Iterator[tuple[str, ...]]:
    for what, series in (
        ("coordinator: each run, whatever its size", str(count("coordinator", "run"))),
        (f"coordinator: each run's suspects and incidents, {SUSPECTS_MAX} ranks at most by name", "1 to 4 each"),
        ("coordinator: itself", str(count("coordinator", "service"))),
        (f"**a coordinator with {_RUNS} healthy runs**", f"{of_coordinator(runs=_RUNS):,}"),
    ):
        yield (what, *(series for _ in LEVELS))


def _cluster_rows() -> Iterator[tuple[str, ...]]:
    for nodes in _NODES:
        yield _row(
            f"**{nodes * _RANKS:,} ranks, data parallel, on {nodes:,} nodes: exporters, coordinator, recorded series "
            "and those of the scrapes**",
            lambda level, nodes=nodes: of_cluster(nodes=nodes, ranks=_RANKS, kinds=1, level=level),  # type: ignore[misc]
        )
