"""Cause to remedy, as data. New matches are new rows; `advice.py` only picks and orders them.

The match of cause and optimization follows Hermes (Table 4: 135 cases of training on Ascend chips, of which CPU
37.0 %, computation 31.9 %, communication 17.0 %, I/O 8.9 %, parallelism 5.2 %), in PyTorch's terms. Rows of other
origin say so.
"""

from dataclasses import dataclass

EXPLAINED = "explained"
"""The remedy removes what the named function holds beyond the peers."""
EXCESS = "excess"
"""The remedy removes the rank's whole excess."""
REST = "rest"
"""The remedy removes what the named function does not hold; everything where none was named."""
UNKNOWN = "unknown"
"""How much it removes cannot be told from the capture."""

_HERMES = "Hermes, Table 4"
_HERMES_IO = f"{_HERMES}: I/O"
_HERMES_CPU = f"{_HERMES}: CPU"
_HERMES_COMPUTE = f"{_HERMES}: Computation"
_HERMES_COMMUNICATION = f"{_HERMES}: Communication"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One row: what to do, for which cause and call path.

    It applies where `cause` is the cause and, if given, `when` is part of a name on the path and `unless` of none.
    `suggestion` may hold `{function}` and `{operator}`.
    """

    cause: str
    suggestion: str
    how: str
    removes: str
    source: str
    when: str = ""
    unless: str = ""


REMEDIES: tuple[Remedy, ...] = (
    # I/O: reading, processing, fetching
    Remedy(
        cause="data",
        when="_SingleProcessDataLoaderIter",
        suggestion="Load batches in worker processes: {function} runs on the training thread",
        how="DataLoader(..., num_workers=4, persistent_workers=True, prefetch_factor=4)",
        removes=EXPLAINED,
        source=f"{_HERMES_IO}, slow data processing (num_workers)",
    ),
    Remedy(
        cause="data",
        when="_MultiProcessingDataLoaderIter",
        suggestion="Give the loader more workers and a deeper queue",
        how="raise num_workers up to the CPU cores of the rank, prefetch_factor to 4; look at the workers with py-spy",
        removes=EXPLAINED,
        source=f"{_HERMES_IO}, slow data processing (num_workers)",
    ),
    Remedy(
        cause="data",
        suggestion="Make reading cheaper: local storage, no zip or tar archives, no work repeated for every sample",
        how="stage the rank's shards on local disk before training; decode and tokenise once, offline",
        removes=EXPLAINED,
        source=f"{_HERMES_IO}, slow data reading and processing",
    ),
    Remedy(
        cause="data",
        suggestion="Check the CPU binding of the loader's processes",
        how="taskset -cp <pid> of trainer and workers: a mask of one core makes all workers share it",
        removes=UNKNOWN,
        source=f"{_HERMES_IO}, slow data processing (process binding)",
    ),
    Remedy(
        cause="data",
        suggestion="Overlap the copy to the device with compute",
        how="DataLoader(..., pin_memory=True) and tensor.to(device, non_blocking=True)",
        removes=UNKNOWN,
        source=f"{_HERMES_IO}, slow data fetching (pin_memory, prefetch)",
    ),
    # CPU: garbage collection
    Remedy(
        cause="gc",
        when="function collect",
        suggestion="Take gc.collect() out of the step: {function} calls it",
        how="delete the call, or collect on all ranks together every few hundred steps",
        removes=EXPLAINED,
        source=f"{_HERMES_CPU}, garbage collection",
    ),
    Remedy(
        cause="gc",
        unless="function collect",
        suggestion="Stop automatic collection in the step, and collect on all ranks at the same step",
        how="gc.freeze(); gc.disable() after set-up, then gc.collect() every few hundred steps on every rank",
        removes=EXCESS,
        source=f"{_HERMES_CPU}, garbage collection",
    ),
    Remedy(
        cause="gc",
        unless="function collect",
        suggestion="Collect less often",
        how="gc.set_threshold(100_000, 50, 50); fewer small Python objects made in the step",
        removes=UNKNOWN,
        source=f"{_HERMES_CPU}, garbage collection (threshold)",
    ),
    # CPU and computation: what one function or operator does too long
    *(
        Remedy(
            cause=cause,
            suggestion="Remove, cache or shorten what {function} does on this rank only",
            how="compare its inputs and branches with a healthy rank's: shapes, rank-dependent code, debug checks",
            removes=EXPLAINED,
            source=f"{_HERMES_CPU}, and the captured call trees",
        )
        for cause in ("compute", "host")
    ),
    Remedy(
        cause="compute",
        when="sleep>",
        suggestion="Something waits on purpose: {function} sleeps",
        how="find the time.sleep (rate limit, retry, polling) and move it off the training thread",
        removes=EXPLAINED,
        source="the captured call trees",
    ),
    Remedy(
        cause="compute",
        when="_local_scalar_dense",
        suggestion="Avoid reading values back in the step ({operator} makes the host wait for the device)",
        how="accumulate on the device, call .item() every n steps; no nonzero() or masks of changing shape",
        removes=EXPLAINED,
        source=f"{_HERMES_CPU}, operator dispatch (synchronising operators)",
    ),
    Remedy(
        cause="compute",
        when="aten::",
        suggestion="Fuse the small operators around {operator}",
        how="torch.compile on the module, fused=True in the optimizer, static shapes",
        removes=UNKNOWN,
        source=f"{_HERMES_CPU}, operator dispatch (fusion)",
    ),
    Remedy(
        cause="compute",
        suggestion="If the code is the same everywhere, suspect the machine",
        how="look for other processes (top) and a lower clock (turbostat, nvidia-smi -q -d CLOCK); isolate the node",
        removes=REST,
        source=f"{_HERMES_COMPUTE} (frequency, slow nodes) and CPU (resource contention)",
    ),
    Remedy(
        cause="host",
        suggestion="Take work off the training thread, and other processes off its cores",
        how="log and write checkpoints less often or asynchronously; check top and the CPU limits of the container",
        removes=REST,
        source=f"{_HERMES_CPU}, resource contention and environment (logging level)",
    ),
    # Communication
    Remedy(
        cause="link",
        suggestion="Test the rank's link against its peers'",
        how="time an all-reduce with and without this rank; check cable, NIC counters, switch port",
        removes=EXCESS,
        source=f"{_HERMES_COMMUNICATION}, RDMA retransmission and network configuration",
    ),
    Remedy(
        cause="link",
        suggestion="Send fewer and larger messages",
        how="DistributedDataParallel(..., bucket_cap_mb=100, gradient_as_bucket_view=True)",
        removes=UNKNOWN,
        source=f"{_HERMES_COMMUNICATION}, small packets (gradient fusion)",
    ),
    Remedy(
        cause="link",
        suggestion="Keep other traffic off the link while gradients travel",
        how="move checkpoint upload and data download to another network or to another time",
        removes=UNKNOWN,
        source=f"{_HERMES_COMMUNICATION}, bandwidth contention",
    ),
    # Parallelism: legitimate differences between ranks, which cost all the same
    Remedy(
        cause="imbalance",
        suggestion="Give every replica the same work: pack or bucket sequences by their cost, not by their count",
        how="sort a global batch by sum of squared lengths and deal it out to replicas; balance experts by capacity",
        removes=EXPLAINED,
        source=f"{_HERMES}: Parallelism; sequence-length imbalance as in arXiv 2505.05713",
    ),
    Remedy(
        cause="imbalance",
        suggestion="Move layers from the long pipeline stage to the others",
        how="the last stage also holds the vocabulary's loss: give it one or two layers fewer",
        removes=UNKNOWN,
        source="stage imbalance as in arXiv 2505.05713",
    ),
    Remedy(
        cause="unknown",
        suggestion="Compare the machine of this rank with a healthy one",
        how="clock, temperature, memory bandwidth, other processes, container limits, library versions",
        removes=REST,
        source=f"{_HERMES_COMPUTE} and CPU (environment)",
    ),
)
