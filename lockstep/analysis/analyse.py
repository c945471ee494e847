"""Analyses paths: finds the traces, analyses each in a worker, and combines them into a summary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.analysis.cluster import ClusterAnalysis, analyse_cluster
from lockstep.analysis.group_kinds import ParallelDegrees
from lockstep.analysis.rank import RankAnalysis, renumbered, with_communication
from lockstep.analysis.sources import SkippedPath, Source, Sources, find_sources
from lockstep.analysis.summary import summary_of
from lockstep.analysis.workers import AnalysisJob, JobOutcome, Runner
from lockstep.contracts.errors import LockstepError, NoTraceError
from lockstep.trace.ascend.communication import load_communication


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The whole result; `paths` are the traces by rank, `sources` where they can be loaded again."""

    cluster: ClusterAnalysis
    paths: dict[int, str]
    sources: dict[int, Source]
    skipped: tuple[SkippedPath, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the summary."""
        return summary_of(self.cluster, self.paths, self.skipped)


def analyse_paths(
    paths: Sequence[Path],
    run: Runner,
    *,
    store: Path | None = None,
    degrees: ParallelDegrees | None = None,
    on_done: Callable[[int, int], None] = lambda _done, _all: None,
) -> Analysis:
    """Return the analysis of all traces under `paths`; `run` executes the work on each.

    With `store` each rank's columns are written to that folder as `<rank>.parquet`. `degrees` are the job's parallel
    degrees. `on_done` is called with the number of finished traces and their total.

    Raises
    ------
    NoTraceError
        No trace can be used.
    OSError
        Columns cannot be stored.
    """
    found = find_sources(paths)
    jobs = [
        AnalysisJob(
            number=number,
            source=source,
            has_peers=len(found.sources) > 1,
            store=None if store is None else store / f".{number}.parquet.new",
        )
        for number, source in enumerate(found.sources)
    ]
    on_done(0, len(jobs))
    outcomes: list[JobOutcome] = []
    for outcome in run(jobs):
        outcomes.append(outcome)
        on_done(len(outcomes), len(jobs))
    outcomes.sort(key=lambda each: each.job.number)
    skipped = [*found.skipped, *(each for outcome in outcomes for each in outcome.skipped)]
    ranks = _by_rank(outcomes, skipped)
    if not ranks:
        raise NoTraceError([each.error for each in skipped])
    _keep_stored(ranks, outcomes)
    analyses = [analysis for analysis, _ in ranks.values()]
    return Analysis(
        cluster=analyse_cluster(
            _with_cluster_files(analyses, found, skipped),
            reports=found.reports,
            paths={rank: job.source.path for rank, (_, job) in ranks.items()},
            degrees=degrees,
        ),
        paths={rank: str(job.source.path) for rank, (_, job) in sorted(ranks.items())},
        sources={rank: job.source for rank, (_, job) in sorted(ranks.items())},
        skipped=tuple(skipped),
    )


def _by_rank(outcomes: Sequence[JobOutcome], skipped: list[SkippedPath]) -> dict[int, tuple[RankAnalysis, AnalysisJob]]:
    """Return one analysis for each rank; traces that name no rank get the free numbers, in their order."""
    ranks: dict[int, tuple[RankAnalysis, AnalysisJob]] = {}
    nameless = []
    for outcome in outcomes:
        if outcome.analysis is None:
            continue
        rank = outcome.analysis.rank
        if not outcome.has_rank:
            nameless.append((outcome.analysis, outcome.job))
        elif rank in ranks:
            other = ranks[rank][1].source.path
            skipped.append(SkippedPath(str(outcome.job.source.path), f"a second trace of rank {rank}: {other} counts"))
        else:
            ranks[rank] = outcome.analysis, outcome.job
    free = 0
    for analysis, job in nameless:
        while free in ranks:
            free += 1
        ranks[free] = renumbered(analysis, free), job
    return ranks


def _keep_stored(ranks: dict[int, tuple[RankAnalysis, AnalysisJob]], outcomes: Sequence[JobOutcome]) -> None:
    """Rename the stored columns after their ranks, and delete those of traces that are not used."""
    for rank, (_, job) in ranks.items():
        if job.store is not None:
            job.store.replace(job.store.with_name(f"{rank}.parquet"))
    for outcome in outcomes:
        if outcome.job.store is not None:
            outcome.job.store.unlink(missing_ok=True)


def _with_cluster_files(
    analyses: Sequence[RankAnalysis], found: Sources, skipped: list[SkippedPath]
) -> list[RankAnalysis]:
    """Return the analyses; ranks without communication of their own get it from the cluster's file."""
    matched = list(analyses)
    for path in found.cluster_communication:
        try:
            communication = load_communication(path)
        except LockstepError as error:
            skipped.append(SkippedPath(str(path), str(error)))
            continue
        matched = [
            each if each.vendor_collectives is not None else with_communication(each, communication) for each in matched
        ]
    return matched
