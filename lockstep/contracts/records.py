"""The step record: one per rank and step, fixed size, integers in ns and bytes.

Layout: `RECORD_FIELDS` in order, each a little-endian signed 64-bit integer. A value that was not measured is
`MISSING`, never 0; a measured zero is 0. Times are CLOCK_MONOTONIC of the node.

The breakdown of a step is exact. With `self = data + compute + host + gc`,

    end - start = self + sum over kinds of wait

holds in every record (times of the training thread; collectives hidden behind its work are not waits). This makes a
slow rank visible in a job whose ranks all end a step together: the slow rank's `self` is long and it waits least. Two
other views of the same time accompany the sum: `compute = forward + backward + optimizer`, exact if all three are
measured, and `cpu_ns`, the CPU time of the training thread in the whole step. The part of `self` that the CPU time does
not cover was spent off the CPU (`coordinator/intake/columns.py` defines when that is known).
"""

import struct
from enum import IntFlag

MISSING = -(1 << 63)
"""Not measured. The smallest int64, so that no real time, count or size can equal it."""

DOMAIN_KINDS = ("tp", "cp", "ep", "dp", "pp", "world")
"""Tensor, context, expert, data and pipeline parallelism, and groups of all ranks."""

COMPUTE_PHASES = ("forward", "backward", "optimizer")
"""The parts of compute."""

_DOMAIN_FIELDS = ("wait_ns", "comm_ns", "bytes", "bus_bytes", "count", "shortest_ns")

RECORD_FIELDS = (
    "step",  # index of this step in this attempt, from 0
    "start_ns",  # end of the previous step
    "end_ns",  # end of the optimizer step
    "flags",  # Flag
    "data_ns",  # the training thread waited for its next batch
    "compute_ns",  # forward, backward and optimizer without gc and without blocked communication
    "host_ns",  # the rest of the step: logging, checkpointing, user code in between
    "gc_ns",  # Python's garbage collector ran
    "gc_count",
    "gc_full_count",  # collections of the oldest generation, the long ones
    "forward_ns",  # part of compute: from batch (or previous backward) to backward, without waits and gc
    "backward_ns",  # part of compute, likewise
    "optimizer_ns",  # part of compute, likewise
    "cpu_ns",  # CPU time of the training thread in the whole step, waits included
    "device_step_ns",  # device clock, where there is a device
    "device_comm_ns",  # union of all collectives in flight there
    "host_lead_ns",  # least time by which the host was ahead of the device: if near 0, the device waits for launches
    "tokens",
    "samples",
    "work",  # what compute should be proportional to: sum of squared lengths, or FLOPs
    "model_flops",
    "recompilations",
    # CPU time that the agent took of the training thread, estimated: marks and collectives, each at the cost that the
    # attempt's first mark states, and the measured thread time of long operations. No wall time; at most cpu_ns.
    "agent_ns",
    # Per domain kind: blocked time; time with a collective in flight (a union; what exceeds the wait was hidden behind
    # work); payload bytes; bytes that a ring algorithm moves over the slowest link for it (bus bandwidth's numerator);
    # collectives; the shortest one (a bound without waiting).
    *(f"{kind}_{field}" for kind in DOMAIN_KINDS for field in _DOMAIN_FIELDS),
)

RECORD_INDEX = {name: index for index, name in enumerate(RECORD_FIELDS)}
RECORD_STRUCT = struct.Struct(f"<{len(RECORD_FIELDS)}q")
RECORD_BYTES = RECORD_STRUCT.size


class Flag(IntFlag):
    """What a step was in addition to a training step; any of them excludes it from the baselines."""

    WARM_UP = 1
    CHECKPOINT = 2
    EVALUATION = 4
    PROFILED = 8
    """A capture ran in this step, or its trace was written in it."""
    SKIPPED_OPTIMIZER = 16
