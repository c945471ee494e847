"""A rank of a test's job, in a process of its own: `python -m tests.intracard.ranks ROLE DIRECTORY JOB RANK RANKS`.

Prints as JSON what the rank saw. Every rank makes the inputs of all ranks from the seed, so it can check alone;
the seed is the job's name up to its first dash.
"""

import json
import os
import random
import signal
import sys
import zlib
from pathlib import Path

import numpy as np

from benchmarks.intracard_collectives import CSC, RING, Group, PeerLostError
from benchmarks.intracard_collectives.sums import add_in_order, kind_of

SLOT_BYTES = 4096
BFLOAT16 = "bfloat16"
KINDS = ["float16", "float32", "float64", BFLOAT16, "int8", "uint16", "int32", "int64", "complex64"]
# Nothing, less than a rank each, odd ones, one slot of 4 KiB to the element, and several slots.
SIZES = [0, 1, 3, 5, 257, 1024, 2048, 2049, 9001]


def values_of(rng, kind, size):
    """Return numbers of `kind` that overflow nowhere but in integers, which wrap."""
    if kind == BFLOAT16:
        return (rng.standard_normal(size).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    dtype = np.dtype(kind)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, size, dtype=dtype, endpoint=True)
    if dtype.kind == "c":
        return (rng.standard_normal(size) + 1j * rng.standard_normal(size)).astype(dtype)
    return (rng.standard_normal(size) * 10.0 ** rng.integers(-3, 3, size)).astype(dtype)


def sum_in_order(terms, kind):
    """Return numpy's own sum in this order: half precision in float32, rounded once."""
    if kind == BFLOAT16:
        total = np.empty_like(terms[0])
        add_in_order(terms, total, kind_of(total.dtype, bfloat16=True))  # itself held by test_sums.py
        return total
    wide = np.float32 if kind == "float16" else terms[0].dtype
    total = terms[0].astype(wide)
    for term in terms[1:]:
        total = total + term.astype(wide)
    return total.astype(terms[0].dtype)


def ring_sum(terms, kind, owner):
    """Return the ring's sum of the part of `owner`: from the next rank around to itself, rounded on every way."""
    order = [terms[(owner + 1 + step) % len(terms)] for step in range(len(terms))]
    total = order[0]
    for term in order[1:]:
        total = sum_in_order([total, term], kind)
    return total


def check_reduce_scatter(group, rng, kind, size):
    """Both algorithms give, bit for bit, the sum in their order; return its checksum."""
    all_values = [values_of(rng, kind, size) for _ in range(group.ranks)]
    parts = [np.array_split(values, group.ranks)[group.rank] for values in all_values]
    digest = 0
    for algorithm, expected in ((CSC, sum_in_order(parts, kind)), (RING, ring_sum(parts, kind, group.rank))):
        got = group.reduce_scatter(all_values[group.rank], algorithm=algorithm, bfloat16=kind == BFLOAT16)
        assert got.dtype == expected.dtype, (algorithm, kind, size)
        assert got.tobytes() == expected.tobytes(), (algorithm, kind, size)
        digest = zlib.crc32(got.tobytes(), digest)
    return digest


def check_all_gather(group, rng, sizes):
    """Both algorithms bring every byte of parts of different size."""
    parts = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    out = np.empty(sum(sizes), np.uint8)
    for algorithm, into in ((CSC, None), (RING, None), (CSC, out), (RING, out)):
        out[:] = 0
        gathered = group.all_gather(parts[group.rank], algorithm=algorithm, out=into)
        assert [part.tobytes() for part in gathered] == [part.tobytes() for part in parts], (algorithm, sizes)


def properties(group, seed):
    """Every kind of number at every size, and parts of every size at once; return a checksum of all sums."""
    rng = np.random.default_rng(seed)
    digests = [check_reduce_scatter(group, rng, kind, size) for kind in KINDS for size in SIZES]
    for _ in range(20):
        check_all_gather(
            group, rng, [int(size) for size in rng.choice([0, 1, 7, 4095, 4096, 4097, 20_000], group.ranks)]
        )
    return {"digest": zlib.crc32(repr(digests).encode())}


def reuse(group, seed):
    """Call both algorithms a thousand times on the same slots, ranks being late in turns; each call has its own bytes."""
    late = random.Random(seed + group.rank)
    for call in range(1000):
        part = np.full(1000, (call * 7 + group.rank) % 256, np.uint8)
        algorithm = RING if call % 3 == 0 else CSC
        if late.random() < 0.05:
            sum(range(late.randrange(20_000)))
        gathered = group.all_gather(part, algorithm=algorithm)
        assert [set(part.tolist()) for part in gathered] == [{(call * 7 + rank) % 256} for rank in range(group.ranks)]
    return {"calls": 1000}


def killed(group, seed):
    """After a thousand calls rank 2 is killed between two; the others report it."""
    reuse(group, seed)
    try:
        for call in range(100):
            if call == 50 and group.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            group.all_gather(np.full(10_000, call % 256, np.uint8))
    except PeerLostError as error:
        return {"calls": call, "lost": error.lost, "text": str(error)}
    return {}


ROLES = {"properties": properties, "reuse": reuse, "killed": killed}


def main():
    role, directory, job, rank, ranks = sys.argv[1:]
    with Group.join(
        job, int(rank), int(ranks), directory=Path(directory), slot_bytes=SLOT_BYTES, timeout_s=100
    ) as group:
        json.dump(ROLES[role](group, zlib.crc32(job.partition("-")[0].encode())), sys.stdout)


if __name__ == "__main__":
    main()
