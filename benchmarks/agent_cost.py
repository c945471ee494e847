"""What the agent costs the training thread, hot and cold, and what it cost when it accounted there; and its memory.

    make bench-agent                              # builds the kernels in C++ first; at most eight minutes
    python -m benchmarks.agent_cost [--json] [--quick]

Step: the six marks of a step without collectives (data, backward, optimizer: begin and end), made through the methods
that the hooks call, with the stores, signs of life and looks for requests that fall due meanwhile, less an empty call.
Hooks: the same where they stand, around calls of torch; the call without the agent is subtracted. Collectives:
benchmarks/collective_cost.py. Single marks, and the writer in Python: benchmarks/mark_cost.py. Share: a step and two
asynchronous collectives, of 100 ms.

Thread CPU time, on one processor (placement.py). Hot: one call after another. Cold: 64 MB are touched before each call,
which is what a training's own work does to the caches; the lower quartile of a round. One rule scales all rows of the
table from a slower machine to the one that the budgets are for: what an empty kernel in Python added in the same round,
hot by hot and cold by cold (collective_cost.py); the figures as measured are next to the scaled ones. Memory: by how
much a rank grows, its ring included. Whole step: benchmarks/agent_job.py, whose records' own `agent_ns` is an estimate
from these figures (agent.py). Rounds are counted, and the jobs have a limit of time: it ends on a busy machine as well.

Exit code 1 when a budget is missed, 2 when the C extension or the kernels in C++ are not built.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks import collective_cost, mark_cost
from benchmarks.agent_job import JobCost, JobPlan, run_job
from benchmarks.agent_memory import measure_memory
from benchmarks.agent_steps import Steps, hooked_calls, watched
from benchmarks.caches import TOUCHED_BYTES, touch
from benchmarks.checks import Check, has_missed
from benchmarks.collective_cost import FLOOR, Figure, Slowness, floor_slowness, less
from benchmarks.collective_cost import measure as measure_variants
from benchmarks.collective_variants import BARE, FLOORS, OPERATIONS, Variant
from benchmarks.cost_table import Cost, Row, table
from benchmarks.placement import one_processor
from benchmarks.thread_time import ReferenceMachine, cold_ns, empty, warm_ns
from lockstep.agent.hooks import native
from lockstep.agent.mark_writer import C_EXTENSION, mark_buffer_type

STEP_BUDGET = Cost(2_000, 15_000)
FORMER_STEP = ("9 to 13", "137 to 145")
"""Us; the agent that accounted in the training thread, on two shared cores, torch 2.13 CPU, gloo."""
_SETTLING_STEPS = 50
"""The agent acts at the boundaries of an attempt's first steps."""
SHARE_STEP_NS = 100_000_000
SHARE_HOT_BUDGET = 0.0002
SHARE_COLD_BUDGET = 0.0005
FORMER_SHARE = "0.37 % hot"
MEMORY_BUDGET_BYTES = 4 << 20
"""The ring is 2.1 MiB of it, in shared memory; what Python allocates for the agent's modules is the rest."""
WHOLE_BUDGET_RATIO = 1.01


STEP = "a step without collectives"


def measure_steps(memory: bytearray, *, rounds: int, calls: int, cold_calls: int) -> tuple[dict[str, Figure], Slowness]:
    """Return what the marks of a step cost, and what hooks add to calls of torch; and how slow this machine was.

    In each round: the floor of a synchronous collective, by which the round is scaled, then calls without the agent,
    then the same ones and the marks with it. Needs the process group.
    """
    floor, empty_kernel = FLOORS["synchronous"]
    floors = {BARE: Variant(), floor: empty_kernel}
    floor_costs: dict[str, list[Cost]] = {BARE: [], floor: []}
    found: dict[str, list[Cost]] = {}
    operations = hooked_calls()

    def cost(call: Callable[[], object]) -> Cost:
        return Cost(warm_ns(call, calls), cold_ns(call, cold_calls, memory))

    for _ in range(rounds):
        for name, costs in measure_variants(
            floors, OPERATIONS["synchronous"], rounds=1, calls=calls, cold_calls=cold_calls
        ).items():
            floor_costs[name] += costs
        bare = {STEP: cost(empty)} | {name: cost(call) for name, call in operations.items()}
        with watched() as agent:
            if agent.mark_writer != C_EXTENSION:
                raise LookupError("the C extension is not installed: python setup.py build_ext --inplace")
            steps = {STEP: Steps(agent).step} | operations
            for _ in range(_SETTLING_STEPS):
                for call in steps.values():
                    call()
            for name, call in steps.items():
                found.setdefault(name, []).append(less(cost(call), bare[name]))
    slowness = floor_slowness(floor_costs, floor, FLOOR["synchronous"])
    return {name: slowness.figure(costs) for name, costs in found.items()}, slowness


def step_rows(figures: dict[str, Figure]) -> list[Row]:
    """Return what a step without collectives and its hooks cost, as lines of a table."""
    own, hooks = figures[STEP], {name: figure for name, figure in figures.items() if name != STEP}
    return [
        Row(STEP, own.scaled, STEP_BUDGET, FORMER_STEP, own.raw),
        *(Row(name, figure.scaled, raw=figure.raw) for name, figure in hooks.items()),
    ]


def check_share(step: Cost, collective: Cost) -> list[Check]:
    """Return the share of a 100 ms step with two such collectives, with its budgets."""
    assert step.cold_ns is not None
    assert collective.cold_ns is not None
    what = "two collectives in C++, share of a 100 ms step"
    return [
        Check(f"former: {what}", FORMER_SHARE),
        _share(f"{what}, hot", step.hot_ns + 2 * collective.hot_ns, SHARE_HOT_BUDGET),
        _share(f"{what}, cold", step.cold_ns + 2 * collective.cold_ns, SHARE_COLD_BUDGET),
    ]


def _share(what: str, cost_ns: float, budget: float) -> Check:
    share = cost_ns / SHARE_STEP_NS
    return Check(what, f"{share:.4%}", f"at most {budget:.2%}", share <= budget)


def check_whole(memory_bytes: int, jobs: list[JobCost]) -> list[Check]:
    """Return memory, and what a whole step of a job of two ranks shows; `jobs` are one watched and one not."""
    found = [
        Check(
            "memory of a rank",
            f"{memory_bytes / 2**20:.2f} MiB",
            f"at most {MEMORY_BUDGET_BYTES >> 20} MiB",
            memory_bytes <= MEMORY_BUDGET_BYTES,
        )
    ]
    watched_job, floor = jobs
    for ratio, noise in zip(watched_job.ratios, floor.ratios, strict=True):
        limit = WHOLE_BUDGET_RATIO + max(noise.high - 1.0, 0.0)
        shown = f"{ratio.median:.4f} ({ratio.low:.4f} to {ratio.high:.4f})"
        found.append(Check(f"whole step, {ratio.name}, on / off", shown, f"not above {limit:.4f}", ratio.low <= limit))
    if watched_job.agent_us is not None:
        what = f"agent_ns of its records, {watched_job.collectives} collectives"
        found.append(Check(what, f"{watched_job.agent_us:.0f} us a step"))
    return found


def measure(directory: str, *, quick: bool) -> tuple[list[Row], list[Check]]:
    """Measure all of it."""
    machine, memory = ReferenceMachine(), bytearray(TOUCHED_BYTES)
    touch(memory)
    rounds, pairs, limit_s = (9, 8, 15) if quick else (25, 40, 60)
    dist.init_process_group("gloo", init_method=f"file://{Path(directory) / 'store'}", rank=0, world_size=1)
    with one_processor():
        steps, slowness = measure_steps(memory, rounds=rounds, calls=150, cold_calls=6)
        marks = mark_cost.check(*mark_cost.measure_all(machine, mark_buffer_type()[0], quick=quick))
    dist.destroy_process_group()
    added, runs = collective_cost.measure_with_agents(quick=quick)
    memory_bytes = measure_memory(directory, 1 if quick else 3)
    jobs = [
        run_job(JobPlan(name, directory, pairs, agent, limit_s))
        for name, agent in (("on", True), ("noise floor", False))
    ]
    rows = step_rows(steps) + collective_cost.rows(added)
    share = check_share(steps[STEP].scaled, added.one_processor["asynchronous"]["C++"].scaled)
    references = [slowness.check("steps"), *collective_cost.check_slowness(added), machine.check()]
    interpreted = collective_cost.check_interpreted(runs)
    return rows, [*references, *marks, *share, *interpreted, *check_whole(memory_bytes, jobs)]


def main() -> int:
    """Measure, print, compare with the budgets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="fewer calls, for a look: two minutes at most")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:  # where rings lie
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCKSTEP_RUN": "cost"}
        os.environ["LOCKSTEP_DIR"] = directory
        try:
            rows, checks = measure(directory, quick=arguments.quick)
        except (LookupError, native.NoNativeKernelsError) as error:
            print(error, file=sys.stderr)
            return 2
    print(table(rows))
    for line in checks:
        print(line.text())
    if arguments.json:
        print(json.dumps(_as_json(rows, checks)))
    return int(has_missed(checks) or any(row.is_met is False for row in rows))


def _as_json(rows: list[Row], checks: list[Check]) -> dict[str, object]:
    costs = {row.what: {"hot_ns": row.cost.hot_ns, "cold_ns": row.cost.cold_ns, "met": row.is_met} for row in rows}
    return costs | {check.what: {"value": check.value, "met": check.is_met} for check in checks}


if __name__ == "__main__":
    sys.exit(main())
