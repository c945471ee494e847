"""How often `lockstep analyze` names the faulty rank of jobs that it has never seen, and a rank of healthy ones.

    taskset -c 0,1 python -m benchmarks.recorded_jobs --seeds 3000-3017 [--kinds pipeline] [--busy 0] [--into FOLDER]

Records real jobs of four ranks (`language_job`), one a seed and kind of job, and prints for each what was injected,
what that cost the recording by the kernel's counters, and which findings name some ranks only; then tables by kind of
job and of fault. With `--online` the coordinator's diagnosis of the same recordings is counted too: it gets the
summaries that nodes send, the culprit, and nothing that detectors measured. A job with a
fault is right where one finding names its rank alone, with the cause and function of EXPECTED; a healthy one where none
names a rank. Exit status 1 where precision or recall of the named ranks is below LEAST.

What the ranks' schedulers did decides whether a label is true, so the counters decide it (`benchmarks.recorded_truth`):
a fault that cost its recording less than COSTS is hidden, as other ranks came later; it counts neither as found nor as
missed, and is printed with its kind. A finding on another rank is wrong, unless that rank was the last in every
recorded step by the counters and the finding blames no function of its.

Each rank trains on one thread, which sleeps for a part of its step, and is analysed on one: two cores are enough for
four ranks. With `--into` the recordings stay, and those that are there are not recorded again. `--busy` processes
compute meanwhile; print them and the load with the figures.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.language_job import DATA_PARALLEL, FAULTS, STEPS, Plan, record
from benchmarks.language_model import HEALTHY
from benchmarks.language_trainers import RANKS, TRAINERS
from benchmarks.recorded_truth import cost_ratio, is_last_in_every_step, needed_ns
from lockstep.analysis.analyse import analyse_paths
from lockstep.analysis.capture_summary import summarise
from lockstep.analysis.workers import run_here
from lockstep.contracts.finding import Finding
from lockstep.diagnosis.communication_causes.waiting import SLOW_RANK
from lockstep.diagnosis.diagnose import UNKNOWN
from lockstep.diagnosis.explain import RANK, explain
from lockstep.diagnosis.host_causes.contention import CONTENTION
from lockstep.diagnosis.verdict import Diagnosis

LEAST = 0.9
COSTS = 0.025
"""Of the time that ranks need: the smallest slowdown that opens an incident."""
_BUSY = "while True: sum(range(10000))"
_OF_HOST = (SLOW_RANK, CONTENTION)


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
_UNANNOTATED = ("sharded", "tensor_parallel")
"""Jobs whose forward no DistributedDataParallel annotates as a whole: without stacks it is in no operator either."""


def expected(plan: Plan) -> Answer:
    """Return what is right for a fault."""
    if plan.fault == "attention" and not plan.with_stack and plan.kind in _UNANNOTATED:
        return Answer("unrecorded_time", "")
    return EXPECTED[plan.fault][plan.with_stack]


class RecordedJob(NamedTuple):
    """A job's plan, what its fault cost as a ratio (0 of a healthy one), and the ranks that were last all the time."""

    plan: Plan
    cost_ratio: float
    last: frozenset[int]

    @property
    def is_hidden(self) -> bool:
        """Whether the job has a fault that the recording does not show."""
        return self.plan.fault != HEALTHY and self.cost_ratio < COSTS


def read_job(folder: Path, plan: Plan) -> RecordedJob:
    """Return what was recorded of a plan, and how it ran by the kernel's counters."""
    needed = needed_ns(folder)
    cost = 0.0 if plan.fault == HEALTHY else cost_ratio(needed, plan.culprit, plan.seconds * 1e9)
    return RecordedJob(plan, cost, frozenset(each for each in range(RANKS) if is_last_in_every_step(needed, each)))


def named(folder: Path) -> list[Finding]:
    """Return the findings that name some ranks of a job only."""
    analysis = analyse_paths([folder], partial(run_here, processes=1))
    return [each for each in analysis.cluster.findings if 0 < len(each.ranks) < RANKS]


def evaluate(job: RecordedJob, found: Sequence[Finding]) -> Counter[str]:
    """Return what counts of one job: findings that name the culprit alone, others, and whether it was missed."""
    plan = job.plan
    mine = [each for each in found if tuple(each.ranks) == (plan.culprit,) and plan.fault != HEALTHY]
    of_host = [each for each in found if each.cause in _OF_HOST and set(each.ranks) <= job.last and each not in mine]
    wrong = len(found) - len(mine[:1]) - len(of_host)
    if plan.fault == HEALTHY:
        return Counter(healthy=1, healthy_named=int(wrong > 0), of_host=len(of_host), wrong=wrong)
    if job.is_hidden:
        return Counter(hidden=1, hidden_named=int(bool(mine)), of_host=len(of_host), wrong=wrong)
    cause, function = expected(plan)
    explained = any(each.cause == cause and function in each.subject for each in mine)
    return Counter(faulty=1, right=int(bool(mine)), explained=int(explained), of_host=len(of_host), wrong=wrong)


def table(counts: dict[str, Counter[str]], title: str) -> str:
    """Return the figures by kind, as a Markdown table."""
    lines = [
        f"| {title} | jobs, healthy | hidden by the host | rank named | cause and function too | wrong findings |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind, each in counts.items():
        jobs = each["faulty"] + each["healthy"] + each["hidden"]
        cells = (f"{jobs}, {each['healthy']}", each["hidden"], each["right"], each["explained"], each["wrong"])
        lines.append(f"| {kind} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def report(total: Counter[str]) -> tuple[str, bool]:
    """Return the figures as text, and whether precision and recall of the named ranks reach LEAST."""
    precision = total["right"] / max(total["right"] + total["wrong"], 1)
    recall = total["right"] / max(total["faulty"], 1)
    labelled = (total["right"] + total["hidden_named"]) / max(total["faulty"] + total["hidden"], 1)
    text = (
        f"healthy: {total['healthy_named']} of {total['healthy']} jobs have a rank named wrongly\n"
        f"faulty: the rank is named in {total['right']} of {total['faulty']} jobs, cause and function too in "
        f"{total['explained']}; {total['hidden']} more faults cost their recordings less than {COSTS:.1%}\n"
        f"{total['of_host']} findings on ranks that the host kept from their cores, right by the counters\n"
        f"of the findings that name ranks: precision {precision:.2f}, recall {recall:.2f}, least {LEAST}; "
        f"recall with the hidden faults {labelled:.2f}"
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


def score(folder: Path, plans: Iterable[tuple[int, Plan]], *, online: bool) -> list[tuple[Plan, Counter[str]]]:
    """Record and analyse the job of each plan, by seed, and print what was found; return the counts of each."""
    counts = []
    for seed, plan in plans:
        path = folder / str(seed) if plan.kind == DATA_PARALLEL else folder / plan.kind / str(seed)
        if not (path / f"work{RANKS - 1}.json").exists():
            record(path, plan)
        job, found = read_job(path, plan), named(path)
        evaluated = evaluate(job, found)
        text = _shown(found)
        if online and plan.fault != HEALTHY and not job.is_hidden:
            answer = diagnosed(path, plan.culprit)
            cause, function = expected(plan)
            evaluated["online"] += answer.root_cause == cause and function in answer.function
            text += f" | online: {answer.root_cause} {answer.function[-60:]}"
        counts.append((plan, evaluated))
        print(f"{path.name} {_described(job)}: {text}", flush=True)
    return counts


def diagnosed(folder: Path, culprit: int) -> Diagnosis:
    """Return what the coordinator makes of the summaries that nodes send of the same files, once it has the culprit."""
    captured = [
        summarise(folder / f"rank{rank}.json.gz", run="r", node="n", rank=rank, request_id=1, steps=STEPS)
        for rank in range(RANKS)
    ]
    suspect = captured[culprit]
    return explain(
        cause=UNKNOWN,
        scope=RANK,
        suspects=[suspect],
        peers=[each for each in captured if each is not suspect],
        step_seconds=suspect.window_ns / suspect.steps / 1e9,
        excess_seconds=0.0,
    )


def _described(job: RecordedJob) -> str:
    plan, stacks = job.plan, "stacks" if job.plan.with_stack else "no stacks"
    last = f", rank {min(job.last)} last in every step" if job.last else ""
    if plan.fault == HEALTHY:
        return f"{plan.fault}, {stacks}{last}"
    cost = f"cost {job.cost_ratio:.1%}{', hidden' if job.is_hidden else ''}"
    return f"{plan.fault} {1e3 * plan.seconds:.0f} ms on {plan.culprit}, {stacks}, {cost}{last}"


def _shown(found: Sequence[Finding]) -> str:
    return "; ".join(f"{each.cause} {each.subject[-60:]} on {list(each.ranks)}" for each in found) or "none named"


def _seeds(text: str) -> range:
    """Return the seeds of `A-B`, both included, or of one number."""
    first, _, last = text.partition("-")
    try:
        return range(int(first), int(last or first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"seeds: got {text!r}, expected A-B or A") from None


def _sum(counts: Iterable[Counter[str]]) -> Counter[str]:
    return sum(counts, Counter[str]())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_seeds, default=range(1000, 1030), metavar="A-B")
    parser.add_argument("--kinds", nargs="+", choices=TRAINERS, default=[DATA_PARALLEL], help="of jobs")
    parser.add_argument("--online", action="store_true", help="count what the coordinator diagnoses, too")
    parser.add_argument("--longer", type=int, default=1, help="times as long as on a quiet machine are the faults")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--into", type=Path, help="folder in which the recordings stay")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name, busy_processes(given.busy):
        plans = [(seed, Plan.of(seed, kind, given.longer)) for seed in given.seeds for kind in given.kinds]
        counts = score(given.into or Path(name), plans, online=given.online)
        load = os.getloadavg()[0]
    total = _sum(each for _, each in counts)
    by_kind = {kind: _sum(each for plan, each in counts if plan.kind == kind) for kind in given.kinds}
    by_fault = {fault: _sum(each for plan, each in counts if plan.fault == fault) for fault in (*FAULTS, HEALTHY)}
    text, is_good = report(total)
    print(f"\n{table({**by_kind, 'all': total}, 'job')}\n\n{table(by_fault, 'fault')}\n\n{text}")
    if given.online:
        print(f"the coordinator's diagnosis has cause and function of {total['online']} of {total['faulty']} faults")
    cores = len(os.sched_getaffinity(0))
    print(f"on {cores} of {os.cpu_count()} cores, {given.busy} busy processes, load {load:.1f}")
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
