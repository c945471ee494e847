"""All areas, and how cases are shared out among them and among processes."""

import logging
import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from benchmarks.fuzz import harness
from benchmarks.fuzz.areas.answers import Answers
from benchmarks.fuzz.areas.http import Http
from benchmarks.fuzz.areas.messages import Messages
from benchmarks.fuzz.areas.rings import RingFiles
from benchmarks.fuzz.areas.scans import Scans
from benchmarks.fuzz.areas.summaries import Summaries
from benchmarks.fuzz.areas.trace_files import TraceFiles
from benchmarks.fuzz.areas.yaml_files import YamlFiles
from benchmarks.fuzz.harness import Area, Report

AREAS: dict[str, tuple[type[Area], float]] = {
    Messages.name: (Messages, 0.38),
    RingFiles.name: (RingFiles, 0.18),
    Answers.name: (Answers, 0.11),
    Summaries.name: (Summaries, 0.12),
    Http.name: (Http, 0.10),
    YamlFiles.name: (YamlFiles, 0.04),
    TraceFiles.name: (TraceFiles, 0.05),
    Scans.name: (Scans, 0.02),
}
"""Each area, and its share of all cases: the dearer a case, the fewer of them."""


def run_areas(names: Sequence[str], cases: int, seed: int, processes: int) -> list[Report]:
    """Return what became of `cases`, shared out among areas and processes; with one process, in this one."""
    whole = sum(AREAS[name][1] for name in names)
    parts = []
    for name in names:
        count = max(1, round(cases * AREAS[name][1] / whole))
        blocks = math.ceil(count / harness.BLOCK)  # a block has a state, so that one process runs all of it
        shared = min(processes, blocks)
        for part in range(shared):
            first, end = (blocks * each // shared * harness.BLOCK for each in (part, part + 1))
            parts.append((name, seed, first, min(end, count) - first))
    if processes == 1:
        return _merged(names, [run_part(*part) for part in parts])
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), quieten, max_tasks_per_child=1) as pool:
        return _merged(names, [future.result() for future in [pool.submit(run_part, *part) for part in parts]])


def run_part(name: str, seed: int, first: int, count: int) -> Report:
    """Run some blocks of one area."""
    return harness.run_cases(AREAS[name][0](), seed, first, count)


def _merged(names: Sequence[str], parts: Sequence[Report]) -> list[Report]:
    reports = {name: Report(name) for name in names}
    for part in parts:
        reports[part.area].add(part)
    return list(reports.values())


def quieten() -> None:
    """Keep the services' logs away from the terminal: a refusal is logged, as it should be."""
    logging.getLogger().handlers[:] = [logging.NullHandler()]
