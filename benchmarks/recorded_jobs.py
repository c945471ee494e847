"""How often `lockstep analyze` names the faulty rank of jobs that it has never seen, and a rank of healthy ones.

    python -m benchmarks.recorded_jobs [--first-seed 1000] [--jobs 30] [--busy 0] [--into FOLDER]

Records real jobs of four ranks (`language_job`), one a seed, next to `--busy` processes that compute all the time, and
prints for each what was injected and which findings name some ranks only. A job with a fault is right where one finding
names its rank alone, with the cause and function of EXPECTED; a healthy one where none names a rank. With `--into` the
recordings stay, and those that are there are not recorded again. Exit status 1 where precision or recall of the named
ranks is below LEAST. Crowded machines decide much: print `--busy` and the load with the figures.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.language_job import HEALTHY, RANKS, Plan, record
from lockstep.analysis.analyse import analyse_paths
from lockstep.analysis.workers import run_here
from lockstep.diagnosis.finding import Finding

LEAST = 0.9
FIRST_SEED = 1000
_BUSY = "while True: sum(range(10000))"


class Answer(NamedTuple):
    """A cause, and a part of the function's name."""

    cause: str
    function: str


EXPECTED = {
    "attention": (Answer("slow_function", "forward"), Answer("slow_function", "forward")),
    "product": (Answer("slow_function", ""), Answer("slow_function", "")),
    "backward": (Answer("slow_function", "DelayBackward"), Answer("slow_function", "backward")),
    "optimizer": (Answer("slow_function", "AdamW.step"), Answer("slow_function", "step")),
    "loader": (Answer("data_processing", "DataLoader"), Answer("data_processing", "__getitem__")),
    "collate": (Answer("data_processing", "DataLoader"), Answer("data_processing", "ollate")),
    "loss": (Answer("unrecorded_time", ""), Answer("slow_function", "loss")),
    "log": (Answer("unrecorded_time", ""), Answer("slow_function", "log")),
    "collect": (Answer("unrecorded_time", ""), Answer("gc", "log")),
}
"""Without Python stacks, and with them: what is in no operator can only be named by its frame."""


def named(folder: Path) -> list[Finding]:
    """Return the findings that name some ranks of a job only."""
    analysis = analyse_paths([folder], partial(run_here, processes=1))
    return [each for each in analysis.cluster.findings if 0 < len(each.ranks) < RANKS]


def judge(plan: Plan, found: Sequence[Finding]) -> Counter[str]:
    """Return what counts of one job: findings that name the culprit alone, others, and whether it was missed."""
    if plan.fault == HEALTHY:
        return Counter(healthy=1, healthy_named=bool(found), wrong=len(found))
    mine = [each for each in found if tuple(each.ranks) == (plan.culprit,)]
    cause, function = EXPECTED[plan.fault][plan.with_stack]
    explained = any(each.cause == cause and function in each.subject for each in mine)
    return Counter(
        faulty=1, culprit=bool(mine), explained=explained, right=len(mine[:1]), wrong=len(found) - len(mine[:1])
    )


def report(total: Counter[str]) -> tuple[str, bool]:
    """Return the figures as text, and whether precision and recall of the named ranks reach LEAST."""
    precision = total["right"] / max(total["right"] + total["wrong"], 1)
    recall = total["culprit"] / max(total["faulty"], 1)
    text = (
        f"healthy: {total['healthy_named']} of {total['healthy']} jobs have a rank named\n"
        f"faulty: the rank is named in {total['culprit']} of {total['faulty']} jobs, cause and function too in "
        f"{total['explained']}\n"
        f"of the findings that name ranks: precision {precision:.2f}, recall {recall:.2f}, least {LEAST}"
    )
    return text, min(precision, recall) >= LEAST


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Let some processes compute meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def score(folder: Path, seeds: Sequence[int]) -> Counter[str]:
    """Record and analyse the job of each seed, and print what was found; return the counts."""
    total: Counter[str] = Counter()
    for seed in seeds:
        job = folder / str(seed)
        plan = Plan.of(seed) if (job / "rank0.json.gz").exists() else record(job, seed)
        found = named(job)
        total += judge(plan, found)
        stacks = "stacks" if plan.with_stack else "no stacks"
        length = f" {1e3 * plan.seconds:.0f} ms on {plan.culprit}"
        injected = plan.fault + (length if plan.fault != HEALTHY else "")
        shown = "; ".join(f"{each.cause} {each.subject[-60:]} on {list(each.ranks)}" for each in found) or "none named"
        print(f"{seed} {injected}, {stacks}: {shown}", flush=True)
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--into", type=Path, help="folder in which the recordings stay")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name, busy_processes(given.busy):
        total = score(given.into or Path(name), range(given.first_seed, given.first_seed + given.jobs))
        load = os.getloadavg()[0]
    text, is_good = report(total)
    print(f"{text}\n{given.busy} busy processes, load {load:.1f} on {os.cpu_count()} cores")
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
