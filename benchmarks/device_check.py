"""Compares the agent's figures of a device with what a training that synchronises with it measures itself.

    python -m benchmarks.device_check [--width N] [--steps N]

One rank for each CUDA device, at most two, trains a small DDP model over NCCL with the agent in it, in phases: with a
look at the device after each step, so that the host's own clock shows how long each took; without, where only the whole
phase can be timed; with loading that hides behind the device and with loading that does not; with a full garbage
collection while the device has work; and, with two devices, with more work on the second rank. Each claim is printed
with both figures.

Exit code 0 when all agree, 1 when one does not, 2 where there is no CUDA device: nothing was checked then.
"""

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import lockstep
from lockstep.accounting.block_reader import BlockReader
from lockstep.accounting.step_builder import StepBuilder
from lockstep.agent import bootstrap
from lockstep.agent.device.device_streams import TorchStream
from lockstep.contracts.marks import BLOCK_BYTES
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, RECORD_FIELDS, RECORD_STRUCT
from lockstep.contracts.ring import BLOCKS_OFFSET

RANKS_MAX = 2
WARM_UP_STEPS = 24  # iterations are learnt, the allocator's pool grown, the timeline begun
LAYERS = 6
ROWS = 8192
LOADING_S = 0.03
HIDDEN_LOADING_S = 0.002
MS = 1e6

Record = dict[str, int]


@dataclass(frozen=True)
class Claim:
    """One figure of the agent's, the one to hold it against, and by how much they may differ."""

    what: str
    agent_ms: float
    expected_ms: float
    tolerance_ms: float

    @property
    def holds(self) -> bool:
        """Whether they agree; a figure that is missing (not a number) does not."""
        return abs(self.agent_ms - self.expected_ms) <= self.tolerance_ms


class Batches(IterableDataset[torch.Tensor]):
    """The same batch for ever; loading one takes `loading_s`."""

    def __init__(self) -> None:
        self.loading_s = 0.0

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield without end."""
        batch = torch.ones(8)
        while True:
            time.sleep(self.loading_s)
            yield batch


class Training:
    """One rank's model and loop, and the records that its agent writes."""

    def __init__(self, width: int) -> None:
        layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
        self.model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.value = torch.randn(ROWS, width, device="cuda")
        self.batches = Batches()
        self.loader = iter(DataLoader(self.batches, batch_size=None))
        self.extra_layers = 0
        self.records: list[Record] = []
        agent = bootstrap._agent  # noqa: SLF001  (the check looks inside)
        assert agent is not None
        self.agent = agent
        self._builder = StepBuilder()
        self._reader: BlockReader | None = None

    def read(self) -> int:
        """Add the records of what the agent has written since the last call; return the number of the running step."""
        ring = self.agent.ring
        assert ring is not None, "the agent records nothing"
        if self._reader is None:
            self._reader = BlockReader(ring.block_count)
        self.agent.marks.flush()
        read = self._reader.read(
            lambda first, count: os.pread(ring.file, count * BLOCK_BYTES, BLOCKS_OFFSET + first * BLOCK_BYTES)
        )
        for block in read.blocks:
            for step in self._builder.add(block):
                self.records.append(dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(step.record), strict=True)))
        return self._builder.step

    def step(self, *, collect: bool = False) -> None:
        """Train one step; the host does not wait for the device."""
        next(self.loader)
        self.optimizer.zero_grad()
        value = self.value
        for _ in range(self.extra_layers):
            value = torch.mm(value, self.model.module[0].weight.detach()).mul_(0.01)
        loss = self.model(value).square().mean()
        if collect:
            gc.collect()
        loss.backward()
        self.optimizer.step()

    def run(self, steps: int, *, synchronised: bool = False, collect: bool = False) -> tuple[list[Record], list[float]]:
        """Train so many steps; return their records and how long each took by the host's clock, in ms.

        Without synchronisation the host can measure only the last entry: the mean over the whole phase.
        """
        torch.cuda.synchronize()
        first, began = self.read(), time.monotonic()
        times = []
        for _ in range(steps):
            step_began = time.monotonic()
            self.step(collect=collect)
            if synchronised:
                torch.cuda.synchronize()
            times.append((time.monotonic() - step_began) * 1e3)
        torch.cuda.synchronize()
        if not synchronised:
            times = [(time.monotonic() - began) * 1e3 / steps]
        self.step()  # the events of steps that the device is done with are read where a step ends
        torch.cuda.synchronize()
        self.step()
        self.read()
        return [record for record in self.records if first <= record["step"] < first + steps], times


def median_ms(records: list[Record], *names: str) -> float:
    """Return the median of the sum of these fields, not a number if one is missing anywhere."""
    sums = [[record[name] for name in names] for record in records]
    if not sums or any(MISSING in row for row in sums):
        return float("nan")
    return statistics.median(sum(row) for row in sums) / MS


def unaccounted_ns(record: Record) -> int:
    """Return a step's time less its parts: 0 by contract."""
    waits = [record[f"{kind}_wait_ns"] for kind in DOMAIN_KINDS]
    own = sum(record[name] for name in ("data_ns", "compute_ns", "host_ns", "gc_ns"))
    return record["end_ns"] - record["start_ns"] - own - sum(wait for wait in waits if wait != MISSING)


def wait_name(records: list[Record]) -> str:
    """Return the field of the kind that this job's collectives are of."""
    return next((f"{kind}_wait_ns" for kind in DOMAIN_KINDS if records[-1][f"{kind}_count"] > 0), "world_wait_ns")


def check(training: Training, steps: int) -> list[Claim]:
    """Run all phases but those that need a second rank."""
    claims = []
    records, times = training.run(steps, synchronised=True)
    step_ms = statistics.median(times)
    slack_ms = 0.1 * step_ms + 0.3  # what the host does between its own two looks at the clock is in neither
    claims.append(Claim("steps one by one", median_ms(records, "device_step_ns"), step_ms, slack_ms))

    records, times = training.run(steps)
    whole_ms = sum(record["device_step_ns"] for record in records) / MS / steps
    claims.append(Claim("steps in a row, mean", whole_ms, times[0], 0.05 * times[0] + 0.1))
    claims.append(Claim("wait of all ranks alike", median_ms(records, wait_name(records)), 0.0, 0.3 * step_ms))

    training.batches.loading_s = LOADING_S
    records, _ = training.run(steps, synchronised=True)
    claims.append(Claim("loading that shows", median_ms(records, "data_ns"), LOADING_S * 1e3, 3.0))

    training.batches.loading_s = HIDDEN_LOADING_S
    records, _ = training.run(steps)
    claims.append(Claim("loading that hides", median_ms(records[2:], "data_ns"), 0.0, 0.5))
    training.batches.loading_s = 0.0

    gc.collect()
    records, _ = training.run(steps, collect=True)
    parts = median_ms(records[2:], "compute_ns", "gc_ns", wait_name(records))
    claims.append(Claim("collection: parts and the step", parts, median_ms(records[2:], "device_step_ns"), slack_ms))

    sums = [float(unaccounted_ns(record)) for record in training.records]
    claims.append(Claim("parts less the step, greatest", max(map(abs, sums)) / MS, 0.0, 0.0))
    gaps = [
        float(latter["start_ns"] - former["end_ns"])
        for former, latter in zip(training.records, training.records[1:], strict=False)
    ]
    claims.append(Claim("gap between steps, greatest", max(map(abs, gaps)) / MS, 0.0, 0.0))
    return claims


def check_straggler(training: Training, rank: int, steps: int) -> list[Claim]:
    """Give the second rank more work: it must wait less than the first one, by that work."""
    before, _ = training.run(steps)
    training.extra_layers = 8 * rank * LAYERS
    after, _ = training.run(steps)
    training.extra_layers = 0
    name = wait_name(after)
    mine = torch.tensor([median_ms(before, name), median_ms(after, name), median_ms(after, "compute_ns")]).cuda()
    all_of = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(all_of, mine)
    quick, slow = (row.tolist() for row in all_of)
    extra_ms = slow[2] - quick[2]
    return [
        Claim("wait for the slow rank", quick[1], slow[1] + extra_ms, 0.15 * extra_ms + 0.5),
        Claim("the slow rank's own wait", slow[1], slow[0], 0.2 * extra_ms + 0.5),
    ]


def measure_cost_us() -> float:
    """Return the host time of recording one event that was used before, median of a thousand."""
    stream = TorchStream(torch.cuda)
    times = []
    for _ in range(1000):
        began = time.perf_counter_ns()
        stamp = stream.record()
        times.append(time.perf_counter_ns() - began)
        assert stamp is not None
        stream.reuse([stamp])
    torch.cuda.synchronize()
    return statistics.median(times) / 1e3


@contextmanager
def joined(rank: int, world_size: int, directory: str) -> Iterator[None]:
    """Make this process a rank that the agent watches."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size}
    os.environ |= {name: str(value) for name, value in names.items()}
    os.environ |= {"LOCKSTEP_DIR": directory, "LOCKSTEP_RUN": "device-check"}
    os.environ.pop("LOCKSTEP_AGENT_PID", None)
    torch.cuda.set_device(rank)
    if not lockstep.install():
        raise SystemExit("the agent did not install")
    store = Path(directory) / "store"
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world_size)
    yield
    dist.destroy_process_group()
    bootstrap.uninstall()


def run_rank(rank: int, world_size: int, directory: str, width: int, steps: int) -> None:
    """Check one rank; what it prints and its exit code are the result."""
    with joined(rank, world_size, directory):
        training = Training(width)
        for _ in range(WARM_UP_STEPS):
            training.step()
            torch.cuda.synchronize()
            training.read()
        if training.agent.device is None:
            raise SystemExit(f"rank {rank}: the agent queues no events on the device")
        claims = check(training, steps)
        if world_size > 1:
            claims += check_straggler(training, rank, steps)
        agent_us = statistics.median(record["agent_ns"] for record in training.records) / 1e3
        failures = training.agent.boundary.failures
        report(rank, claims, f"event {measure_cost_us():.2f} us, agent {agent_us:.1f} us a step, failures {failures}")
    if failures or not all(claim.holds for claim in claims):
        sys.exit(1)


def report(rank: int, claims: list[Claim], costs: str) -> None:
    """Print the claims of a rank as one piece."""
    lines = [f"rank {rank}: {torch.cuda.get_device_name()}, torch {torch.__version__}; {costs}"]
    lines.append(f"  {'claim':36}{'agent ms':>12}{'expected':>12}{'within':>10}")
    for claim in claims:
        verdict = "" if claim.holds else "  DISAGREES"
        figures = f"{claim.agent_ms:>12.3f}{claim.expected_ms:>12.3f}{claim.tolerance_ms:>10.3f}"
        lines.append(f"  {claim.what:36}{figures}{verdict}")
    print("\n".join(lines), flush=True)


def main() -> int:
    """Start the ranks and check what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=4096, help="of the layers; the device's step should exceed 20 ms")
    parser.add_argument("--steps", type=int, default=40, help="of each phase")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was checked", file=sys.stderr)
        return 2
    world_size = min(torch.cuda.device_count(), RANKS_MAX)
    with tempfile.TemporaryDirectory() as directory:
        shared: tuple[Any, ...] = (world_size, directory, arguments.width, arguments.steps)
        try:
            multiprocessing.spawn(run_rank, args=shared, nprocs=world_size)
        except multiprocessing.ProcessExitedException as error:
            print(f"rank {error.error_index} disagrees (exit code {error.exit_code})", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
