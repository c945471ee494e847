"""Whether the agent can hang a training: tens of thousands of collectives of every kind over two gloo ranks.

    python -m benchmarks.agent_soak [--collectives 30000] [--seed 0] [--without-agent] [--timeout-s 1800]

Both ranks draw the same sequence from the seed: synchronous and asynchronous all-reduce, broadcast, all-gather,
reduce-scatter, all-to-all, barrier and functional collectives in several overlapping groups, and DDP steps whose
reducer issues its own from C++.
Asynchronous ones are waited for late and out of order. Every result is checked. Prints counts by operator, the rate,
and the agent's failures; exit code 1 when a rank hung, died, saw a wrong result or the agent failed.
"""

import argparse
import collections
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import multiprocessing
from torch.nn.parallel import DistributedDataParallel

from lockstep.agent import bootstrap

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 2
IN_FLIGHT_MAX = 16
STEP_EVERY = 25  # collectives by hand between two DDP steps
ELEMENTS = (1, 7, 64, 1000, 16_384)

Pending = tuple[Any, torch.Tensor, float]


class Soak:
    """One rank's part. `done` counts collectives by operator; DDP's own are counted by the agent only."""

    def __init__(self, rank: int, seed: int) -> None:
        self.rank = rank
        self.random = random.Random(seed)  # noqa: S311  (the same sequence on both ranks, no secret)
        torch.manual_seed(seed)
        self.groups = [None, dist.new_group([0, 1], group_desc="mesh_dp"), dist.new_group([0, 1], group_desc="mesh_tp")]
        self.model = DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8)),
            bucket_cap_mb=0.01,
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.pending: list[Pending] = []
        self.done: collections.Counter[str] = collections.Counter()
        self.steps = 0

    def run(self, collectives: int) -> None:
        """Issue that many by hand, with DDP steps in between."""
        scenes = (
            self.reduce,
            self.reduce_later,
            self.broadcast,
            self.gather,
            self.scatter,
            self.exchange,
            self.meet,
            self.function,
        )
        weights = (4, 8, 2, 2, 2, 1, 1, 2)
        for index in range(collectives):
            scene: Callable[[Any, int], None] = self.random.choices(scenes, weights)[0]
            scene(self.random.choice(self.groups), self.random.choice(ELEMENTS))
            self.done[scene.__name__] += 1
            if len(self.pending) == IN_FLIGHT_MAX:
                self.settle(self.random.randrange(IN_FLIGHT_MAX))
            if index % STEP_EVERY == 0:
                self.step()
        self.settle(len(self.pending))

    def settle(self, count: int) -> None:
        """Wait for `count` collectives in flight, in any order."""
        for _ in range(count):
            work, tensor, expected = self.pending.pop(self.random.randrange(len(self.pending)))
            work.wait()
            self.check(tensor, expected)

    def check(self, tensor: torch.Tensor, expected: float) -> None:
        """Raise if a result is not what it must be."""
        if not bool((tensor == expected).all()):
            raise ValueError(f"rank {self.rank}: got {tensor[:4]}, expected {expected} everywhere")

    def own(self, elements: int) -> torch.Tensor:
        """Return this rank's contribution: its number plus one."""
        return torch.full((elements,), self.rank + 1.0)

    def reduce(self, group: Any, elements: int) -> None:
        """Sum, synchronously."""
        tensor = self.own(elements)
        dist.all_reduce(tensor, group=group)
        self.check(tensor, 3)

    def reduce_later(self, group: Any, elements: int) -> None:
        """Sum, asynchronously."""
        tensor = self.own(elements)
        self.pending.append((dist.all_reduce(tensor, group=group, async_op=True), tensor, 3))

    def broadcast(self, group: Any, elements: int) -> None:
        """Send from either rank."""
        source = self.random.randrange(RANKS)
        tensor = self.own(elements)
        dist.broadcast(tensor, source, group=group)
        self.check(tensor, source + 1)

    def gather(self, group: Any, elements: int) -> None:
        """Gather, asynchronously, from the list form."""
        parts = [torch.empty(elements) for _ in range(RANKS)]
        work = dist.all_gather(parts, self.own(elements), group=group, async_op=True)
        self.pending.append((work, parts[0], 1))

    def scatter(self, group: Any, elements: int) -> None:
        """Reduce and scatter."""
        part = torch.empty(elements)
        dist.reduce_scatter_tensor(part, self.own(elements * RANKS), group=group)
        self.check(part, 3)

    def exchange(self, group: Any, elements: int) -> None:
        """All to all."""
        received = torch.empty(elements * RANKS)
        dist.all_to_all_single(received, self.own(elements * RANKS), group=group)
        self.check(received[:elements], 1)

    def meet(self, group: Any, _elements: int) -> None:
        """Barrier."""
        dist.barrier(group=group)

    def function(self, group: Any, elements: int) -> None:
        """Sum by the functional form."""
        self.check(functional.all_reduce(self.own(elements), "sum", group or dist.group.WORLD) + 0, 3)

    def step(self) -> None:
        """Take one DDP step."""
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 32)).square().mean().backward()
        self.optimizer.step()
        self.steps += 1

    def digest(self) -> str:
        """Return a hash of the parameters."""
        whole = hashlib.sha256()
        for parameter in self.model.parameters():
            whole.update(parameter.detach().numpy().tobytes())
        return whole.hexdigest()


def work(rank: int, root: str, options: argparse.Namespace) -> None:
    """Soak as one rank and leave `<root>/<rank>.json`."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCKSTEP_DIR=root, LOCKSTEP_RUN="soak"
    )
    torch.set_num_threads(1)
    if not options.without_agent and not bootstrap.install():
        raise SystemExit("the agent did not install")
    dist.init_process_group("gloo", init_method=f"file://{root}/store", rank=rank, world_size=RANKS)
    soak = Soak(rank, options.seed)
    began = time.monotonic()
    soak.run(options.collectives)
    took_s = time.monotonic() - began
    agent = None if options.without_agent else bootstrap.current()
    found = {
        "operators": soak.done,
        "ddp_steps": soak.steps,
        "per_second": round(sum(soak.done.values()) / took_s),
        "parameters": soak.digest(),
        "watched": agent is not None,
        "agent_failures": 0 if agent is None else agent.boundary.failures,
        "in_flight": 0 if agent is None else len(agent.marks.in_flight),
    }
    Path(root, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def soak(root: str, options: argparse.Namespace) -> list[dict[str, Any]] | None:
    """Run both ranks; return what they found, or None if they were not done in time."""
    ranks = multiprocessing.start_processes(work, args=(root, options), nprocs=RANKS, join=False, start_method="fork")
    deadline = time.monotonic() + options.timeout_s
    while not ranks.join(timeout=max(deadline - time.monotonic(), 0)):
        if time.monotonic() >= deadline:
            for process in ranks.processes:
                process.kill()
            return None
    return [json.loads(Path(root, f"{rank}.json").read_text()) for rank in range(RANKS)]


def main() -> None:
    """Soak, print, and compare with the budgets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collectives", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-agent", action="store_true")
    parser.add_argument("--timeout-s", type=float, default=1800)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        found = soak(root, options)
    if found is None:
        sys.exit(f"hung: not done after {options.timeout_s:g} s")
    for rank, result in enumerate(found):
        print(json.dumps({"rank": rank, **result}))
    good = all(result["agent_failures"] == 0 and result["watched"] != options.without_agent for result in found)
    if not good or found[0]["parameters"] != found[1]["parameters"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
