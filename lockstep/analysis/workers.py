"""Analyses one rank's trace per process: local processes, or workers of a Dask cluster. Results are small."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from lockstep.analysis.comparison.observe import RankObservation, observe
from lockstep.analysis.rank import RankAnalysis, analyse_rank
from lockstep.analysis.sources import SkippedPath, Source, load_source, rank_of
from lockstep.contracts.errors import LocalError, LockstepError
from lockstep.trace.columns import ABSENT

_CONNECT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisJob:
    """One trace to analyse, alone or among others; its columns are stored at `store` if that is not None.

    With `observe` it is measured for a comparison of two runs instead. Up to `cores` cores read it.
    """

    number: int
    source: Source
    has_peers: bool = True
    store: Path | None = None
    observe: bool = False
    cores: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """Result of a job: an analysis, or None and a reason in `skipped`.

    If nothing names the trace's rank (`has_rank` False), the analysis has the job's number as its rank.
    """

    job: AnalysisJob
    analysis: RankAnalysis | None = None
    observation: RankObservation | None = None
    has_rank: bool = False
    skipped: tuple[SkippedPath, ...] = ()


Runner = Callable[[Sequence[AnalysisJob]], Iterator[JobOutcome]]
"""Runs jobs and yields their outcomes, in any order."""


def work(job: AnalysisJob) -> JobOutcome:
    """Run a job; a trace that cannot be used is an outcome too.

    Raises
    ------
    OSError
        The columns cannot be stored.
    """
    path = str(job.source.path)
    try:
        loaded = load_source(job.source, cores=job.cores)
        rank = rank_of(job.source, loaded.columns)
        number = job.number if rank == ABSENT else rank
        if job.observe:
            return JobOutcome(job=job, observation=observe(loaded.columns, number), skipped=loaded.skipped)
        analysis = analyse_rank(loaded.columns, rank=number, evidence=loaded.evidence, has_peers=job.has_peers)
    except LockstepError as error:
        return JobOutcome(job=job, skipped=(SkippedPath(path, str(error)),))
    except MemoryError:
        return JobOutcome(job=job, skipped=(SkippedPath(path, "not enough memory to read it"),))
    if job.store is not None:
        from lockstep.trace.store import write_columns  # noqa: PLC0415  (pyarrow, only where columns are stored)

        write_columns(loaded.columns, job.store)
    return JobOutcome(job=job, analysis=analysis, has_rank=rank != ABSENT, skipped=loaded.skipped)


def run_here(jobs: Sequence[AnalysisJob], *, processes: int) -> Iterator[JobOutcome]:
    """Run jobs in up to `processes` processes, in this one if one is enough; fewer jobs get several cores each.

    If a process dies, all unfinished jobs fail with it; each is then tried once more, alone.
    """
    workers = max(min(processes, len(jobs)), 1)
    jobs = [replace(job, cores=max(processes // workers, 1)) for job in jobs]
    if workers == 1:
        yield from map(work, jobs)
        return
    died: list[AnalysisJob] = []
    with _pool(workers) as pool:
        waiting = {pool.submit(work, job): job for job in jobs}
        try:
            for done in as_completed(waiting):
                if isinstance(done.exception(), BrokenProcessPool):
                    died.append(waiting[done])
                else:
                    yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)
    for job in died:
        yield _alone(job)


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def _alone(job: AnalysisJob) -> JobOutcome:
    with _pool(1) as pool:
        try:
            return pool.submit(work, job).result()
        except BrokenProcessPool:
            reason = "the process that read it died, probably for want of memory"
            return JobOutcome(job=job, skipped=(SkippedPath(str(job.source.path), reason),))


def run_on_cluster(jobs: Sequence[AnalysisJob], *, scheduler: str) -> Iterator[JobOutcome]:
    """Run jobs on the workers of a Dask cluster, which must see the same files and have Lockstep installed.

    Raises
    ------
    LocalError
        No scheduler answers at this address, or a worker fails.
    """
    from distributed import Client, as_completed  # noqa: PLC0415  (an extra)

    try:
        client = Client(scheduler, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise LocalError(f"scheduler {scheduler}: {error or type(error).__name__}") from error
    with client:
        waiting = {client.submit(work, job, pure=False): job for job in jobs}
        try:
            for done in as_completed(waiting, loop=client.loop):
                yield _outcome(waiting[done], done.exception() or done.result(), scheduler)
                done.release()
        except (OSError, CancelledError) as error:
            raise LocalError(f"scheduler {scheduler}: {error or type(error).__name__}") from error


def _outcome(job: AnalysisJob, answer: object, scheduler: str) -> JobOutcome:
    """Return the outcome that a worker of the cluster returned, or why it failed."""
    if isinstance(answer, JobOutcome):
        return answer
    if type(answer).__name__ == "KilledWorker":
        return JobOutcome(job=job, skipped=(SkippedPath(str(job.source.path), "every worker that read it died"),))
    raise LocalError(f"worker of {scheduler}: {type(answer).__name__}: {answer}")
