"""One rank of `benchmarks.intracard`: runs every collective in turns with its peers; rank 0 writes what they took."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.intracard_collectives import CSC, RING, Group
from lockstep.contracts.records import RECORD_BYTES

GATHER, SCATTER = "all-gather", "reduce-scatter"
GLOO = "gloo"
METHODS = (CSC, RING, GLOO)
BARRIERS = 400
RECORD_CALLS = 1000
_TURNS = (3, 100)
_BYTES_PER_SIZE = 64 << 20  # moved for each size: small sizes are repeated, large ones less


def calls(group: Group, operation: str, volume_bytes: int) -> dict[str, Callable[[], object]]:
    """Return what each method does for `operation`, in buffers of its own that all turns use again."""
    items = volume_bytes // 4
    whole = np.random.default_rng(group.rank).standard_normal(items).astype(np.float32)
    part = np.array_split(whole, group.ranks)[group.rank].copy()
    if operation == GATHER:
        out = np.empty(volume_bytes, np.uint8)
        gathered = torch.empty(items, dtype=torch.float32)
        return {
            CSC: lambda: group.all_gather(part, out=out, algorithm=CSC),
            RING: lambda: group.all_gather(part, out=out, algorithm=RING),
            GLOO: lambda: dist.all_gather_into_tensor(gathered, torch.from_numpy(part)),
        }
    reduced = np.empty_like(part)
    scattered = torch.empty(len(part), dtype=torch.float32)
    return {
        CSC: lambda: group.reduce_scatter(whole, out=reduced, algorithm=CSC),
        RING: lambda: group.reduce_scatter(whole, out=reduced, algorithm=RING),
        GLOO: lambda: dist.reduce_scatter_tensor(scattered, torch.from_numpy(whole)),
    }


def take_turns(group: Group, operation: str, volume_bytes: int) -> dict[str, dict[str, float]]:
    """Return the median, best and CPU seconds of each method.

    Of a turn, the seconds of the slowest rank; the CPU seconds of the mean rank, all its threads, in the median turn.
    """
    methods = calls(group, operation, volume_bytes)
    turns = int(np.clip(_BYTES_PER_SIZE // volume_bytes, *_TURNS))
    every = list(methods.values())
    order = np.random.default_rng(
        turns
    )  # the same on all ranks; who comes next finds what the one before left in cache
    seconds = np.empty((turns + 1, 2, len(methods)))
    for turn in range(turns + 1):  # one to warm up
        for place in order.permutation(len(methods)):
            group.synchronise()
            begin, cpu_begin = time.perf_counter(), time.process_time()
            every[place]()
            seconds[turn, :, place] = time.perf_counter() - begin, time.process_time() - cpu_begin
    of_all = [part.view(float).reshape(seconds.shape) for part in group.all_gather(seconds)]
    slowest = np.max(of_all, axis=0)[1:, 0]
    cpu = np.mean(of_all, axis=0)[1:, 1]
    return {
        method: {
            "median_s": float(np.median(slowest[:, place])),
            "best_s": float(np.min(slowest[:, place])),
            "cpu_s": float(np.median(cpu[:, place])),
        }
        for place, method in enumerate(methods)
    }


def synchronise_s(group: Group) -> dict[str, float]:
    """Return what one synchronisation takes, without a byte: the best of all, and a rank's CPU seconds."""
    seconds = np.empty(BARRIERS)
    cpu_begin = time.process_time()
    for place in range(BARRIERS):
        begin = time.perf_counter()
        group.synchronise()
        seconds[place] = time.perf_counter() - begin
    cpu_s = (time.process_time() - cpu_begin) / BARRIERS
    of_all = [part.view(float) for part in group.all_gather(seconds)]
    return {"best_s": float(np.min(np.max(of_all, axis=0))), "cpu_s": cpu_s}


def record_cost_s(group: Group) -> tuple[float, float]:
    """Return (CPU seconds, seconds) of a rank for one exchange of everybody's step record."""
    record, out = np.zeros(RECORD_BYTES, np.uint8), np.empty(RECORD_BYTES * group.ranks, np.uint8)
    begin, cpu_begin = time.perf_counter(), time.thread_time()
    for _ in range(RECORD_CALLS):
        group.all_gather(record, out=out)
    return (time.thread_time() - cpu_begin) / RECORD_CALLS, (time.perf_counter() - begin) / RECORD_CALLS


def main() -> None:
    """Run as `python -m benchmarks.intracard_rank DIRECTORY RANK RANKS SLOT_BYTES LOOKS SIZE...`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    for name in ("rank", "ranks", "slot_bytes", "looks"):
        parser.add_argument(name, type=int)
    parser.add_argument("sizes", type=int, nargs="+")
    given = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = dist.FileStore(str(given.directory / "store"), given.ranks)
    dist.init_process_group(GLOO, store=store, rank=given.rank, world_size=given.ranks)
    with Group.join(
        "benchmark",
        given.rank,
        given.ranks,
        directory=given.directory,
        slot_bytes=given.slot_bytes,
        looks=given.looks,
    ) as group:
        found = {
            "synchronise": synchronise_s(group),
            "record_cpu_s": record_cost_s(group),
            GATHER: [take_turns(group, GATHER, size) for size in given.sizes],
            SCATTER: [take_turns(group, SCATTER, size) for size in given.sizes],
        }
        group.synchronise()
    if given.rank == 0:
        json.dump(found, sys.stdout)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
