"""Collectives of one node's processes, measured and compared with their model: `python -m benchmarks.intracard`.

CSC (one publish, one synchronisation, direct reads) against the ring (n - 1 rounds) against gloo over loopback, 1 KB to
64 MB of float32, 2 and 4 ranks. A turn takes what its slowest rank takes; methods take turns, so that a neighbour on
the machine meets all of them. The median is printed, the best turn, and the CPU time of a rank, all its threads, which
which is all that counts where neighbours keep the cores busy. Ratios and the model are of `--of`: `best` or `cpu`.
Half of the sizes fit the model, the other half are predicted. `--ranks 2 --largest 1` for a look.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.intracard_collectives import CSC, RING
from benchmarks.intracard_collectives.group import SLOT_BYTES
from benchmarks.intracard_collectives.mesh import LOOKS
from benchmarks.intracard_fit import Point, error_ratio, fit, predict_s
from benchmarks.intracard_rank import GATHER, GLOO, SCATTER
from lockstep.simulator.hardware.collectives import Link
from lockstep.simulator.hardware.intracard import (
    SUNWAY,
    bandwidth_large,
    csc_bandwidth,
    csc_bandwidth_small,
    ring_bandwidth_small,
)

SIZES = [1 << power for power in range(10, 27, 2)]
_LIMIT_S = 900
_COLUMNS = {"median_s": 8, "best_s": 7, "cpu_s": 7}


def measure(ranks: int, sizes: list[int], slot_bytes: int, looks: int) -> dict[str, Any]:
    """Return what rank 0 of a job found; see `intracard_rank`."""
    command = [sys.executable, "-W", "ignore::FutureWarning", "-m", "benchmarks.intracard_rank"]
    with tempfile.TemporaryDirectory() as directory:
        processes = [
            subprocess.Popen(
                [*command, directory, *map(str, (rank, ranks, slot_bytes, looks, *sizes))], stdout=subprocess.PIPE
            )
            for rank in range(ranks)
        ]
        try:
            outputs = [process.communicate(timeout=_LIMIT_S)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    found: dict[str, Any] = json.loads(outputs[0])
    return found


def copies(operation: str, method: str, ranks: int) -> int:
    """Return how many V/n a rank of ours moves: publishing, reading, and its own part into an all-gather's result."""
    if operation == SCATTER or method == RING:
        return 2 * (ranks - 1) + (operation == GATHER)
    return ranks + 1


def print_measured(operation: str, ranks: int, found: dict[str, Any], sizes: list[int], of_s: str) -> None:
    """Print one table: what each method took, and equations 3 and 4 fitted to `of_s` on every other size."""
    rows = found[operation]

    def points(*, counted: bool) -> list[list[Point]]:
        return [
            [Point(m, ranks, size, row[m][of_s], copies(operation, m, ranks) if counted else None) for m in (CSC, RING)]
            for size, row in zip(sizes, rows, strict=True)
        ]

    def fitted(of: list[list[Point]]) -> Link:
        return fit([point for pair in of[::2] for point in pair], found["synchronise"][of_s])

    published = points(counted=False)
    link = fitted(published)
    name = of_s.removesuffix("_s")
    print(f"\n{operation}, {ranks} ranks, us; GB/s = V / {name}, model and ratios of {name}")
    print(
        f"{'V bytes':>8} |"
        + "".join(
            f" {m + ' med':>8} {'best':>7} {'cpu':>7} {'GB/s':>6} {'model':>7} {'error':>6} |" for m in (CSC, RING)
        )
        + f" {'gloo med':>8} {'best':>7} {'cpu':>7} | ring/CSC gloo/CSC"
    )
    for place, (size, row, pair) in enumerate(zip(sizes, rows, published, strict=True)):
        us = {m: " ".join(f"{row[m][k] * 1e6:>{w}.0f}" for k, w in _COLUMNS.items()) for m in (CSC, RING, GLOO)}
        line = f"{size:>8} |"
        for point in pair:
            error = "fitted" if place % 2 == 0 else f"{error_ratio(point, link):+6.0%}"
            line += f" {us[point.method]} {size / point.seconds / 1e9:>6.3f}"
            line += f" {predict_s(point, link) * 1e6:>7.0f} {error:>6} |"
        ratios = [row[m][of_s] / row[CSC][of_s] for m in (RING, GLOO)]
        print(f"{line} {us[GLOO]} | {ratios[0]:>8.2f} {ratios[1]:>8.2f}")
    print_model(published, points(counted=True), fitted(published), fitted(points(counted=True)))


def print_model(published: list[list[Point]], counted: list[list[Point]], link: Link, all_copies: Link) -> None:
    """Print the fitted constants, the errors on the sizes not fitted with and without all copies, and the limits."""
    for name, of, made in (
        ("equations 3, 4 as published (reads only)", published, link),
        ("with publishing writes counted", counted, all_copies),
    ):
        held_out = [abs(error_ratio(point, made)) for pair in of[1::2] for point in pair]
        print(
            f"  {name}: t_L {made.launch_s * 1e6:.1f}, t_S {made.sync_s * 1e6:.1f}, t_O {made.step_s * 1e6:.1f} us,"
            f" B {made.bytes_per_second / 1e9:.2f} GB/s; held-out error mean {sum(held_out) / len(held_out):.0%},"
            f" largest {max(held_out):.0%}"
        )
    csc, ring = published[0]
    small = csc.volume_bytes
    print(
        f"  limits: at {small} bytes eq. 6 (CSC)"
        f" {small / csc_bandwidth_small(small, link=link, entities=csc.ranks) * 1e6:.0f} us,"
        f" measured {csc.seconds * 1e6:.0f}; eq. 5 (ring)"
        f" {small / ring_bandwidth_small(small, link=link, entities=csc.ranks) * 1e6:.0f}, measured"
        f" {ring.seconds * 1e6:.0f}; at {published[-1][0].volume_bytes} bytes eq. 7, 8"
        f" {bandwidth_large(published[-1][0].volume_bytes, link=link, entities=csc.ranks) / 1e9:.2f} GB/s, measured"
        f" {' and '.join(f'{point.volume_bytes / point.seconds / 1e9:.2f}' for point in published[-1])}"
    )


def print_omission() -> None:
    """Print what equation 4 leaves out on the paper's own card: the write that publishes, of algorithm 1."""
    volume, entities = 8e6, 4
    read_s = volume / csc_bandwidth(volume)
    write_s = volume / (entities * SUNWAY.bytes_per_second) + SUNWAY.step_s
    print(
        f"\npaper's card, 8 MB: equation 4 counts the reads, {read_s * 1e6:.0f} us = {volume / read_s / 1e9:.1f} GB/s;"
        f" with the publishing write {(read_s + write_s) * 1e6:.0f} us = {volume / (read_s + write_s) / 1e9:.1f} GB/s"
    )


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--largest", type=int, default=64, help="MB")
    parser.add_argument("--of", choices=["best", "cpu"], default="best")
    parser.add_argument("--slot-bytes", type=int, default=SLOT_BYTES)
    parser.add_argument("--looks", type=int, default=LOOKS)
    given = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sizes = [size for size in SIZES if size <= given.largest << 20]
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f}; slots of {given.slot_bytes} bytes")
    for ranks in given.ranks:
        found = measure(ranks, sizes, given.slot_bytes, given.looks)
        if ranks > cores:
            print(f"\n{ranks} ranks share {cores} cores: what follows is bounded by them")
        for operation in (GATHER, SCATTER):
            print_measured(operation, ranks, found, sizes, f"{given.of}_s")
        cpu_s, wall_s = found["record_cpu_s"]
        print(
            f"\na step record of each of {ranks} ranks: exchanged, {cpu_s * 1e6:.0f} us of CPU, {wall_s * 1e6:.0f} us"
            " in all, in every rank; an exporter reads it without a rank's time (benchmarks/exporter_cost.py)"
        )
    print_omission()


if __name__ == "__main__":
    main()
