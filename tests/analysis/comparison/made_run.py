"""A made job on devices: each rank loads, launches kernels, reduces over all ranks; every duration scatters by the seed.

A fault is a change of one `Job` field. Columns of rank r are `Job(...).columns()[r]`.
"""

from dataclasses import dataclass

import numpy as np

from lockstep.trace.columns import ANNOTATION, KERNEL, OPERATOR, RUNTIME, CollectiveArguments, TraceMetadata, WorkKind
from tests.trace.made import columns_of, made

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
KERNELS = ("gemm_forward", "softmax", "gemm_backward", "adam")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Times in ns; `noise` is the scatter of each duration, `drift` what a whole run is longer or shorter by."""

    seed: int
    ranks: int = 4
    steps: int = 8
    kernel_ns: int = 2_000_000
    host_ns: int = 40_000
    loader_ns: int = 100_000
    transfer_ns: int = 3_000_000
    launches: int = 3
    slow_rank: int | None = None
    """Where the faults below are; None is every rank."""
    operator_factor: float = 1.0
    extra_launches: int = 0
    loader_extra_ns: int = 0
    noise: float = 0.03
    drift: float = 0.01

    def columns(self):
        random = np.random.default_rng(self.seed)
        speed = 1 + random.normal(0, self.drift)
        events = [[] for _ in range(self.ranks)]
        start_ns = np.zeros(self.ranks, np.int64)
        for step in range(self.steps):
            done = [self._work(events[rank], rank, int(start_ns[rank]), random, speed) for rank in range(self.ranks)]
            end_ns = max(device_ns for _, device_ns in done) + self._about(self.transfer_ns * speed, random)
            for rank, (host_ns, device_ns) in enumerate(done):
                reduce = CollectiveArguments(
                    name="allreduce",
                    group="0",
                    ranks=tuple(range(self.ranks)),
                    out_elements=1 << 20,
                    dtype="Float",
                    sequence=step,
                )
                events[rank] += [
                    made("ncclDevKernel_AllReduce", KERNEL, (0, 20), device_ns, end_ns - device_ns,
                         work=WorkKind.COMMUNICATION, stream=20, correlation=1_000_000 + step, collective=reduce),
                    made("cudaLaunchKernel", RUNTIME, 1, host_ns, 5000, correlation=1_000_000 + step),
                    made("cudaDeviceSynchronize", RUNTIME, 1, host_ns + 5000, end_ns - host_ns - 4000),
                    made(f"ProfilerStep#{step}", ANNOTATION, 1, int(start_ns[rank]), end_ns + 1000 - int(start_ns[rank])),
                ]  # fmt: skip
                start_ns[rank] = end_ns + 1000
        return [
            columns_of(each, metadata=TraceMetadata(rank=rank, vendor="nvidia", host="node", clock_is_shared=True))
            for rank, each in enumerate(events)
        ]

    def _about(self, value_ns, random):
        return max(int(value_ns * (1 + random.normal(0, self.noise))), 1)

    def _work(self, events, rank, start_ns, random, speed):
        """Add one step's work of a rank; return when its host and its device are done."""
        is_slow = self.slow_rank in (None, rank)
        loader_ns = self.loader_ns + (self.loader_extra_ns if is_slow else 0)
        host_ns = device_ns = start_ns + self._about(loader_ns, random)
        events.append(made(LOADER, ANNOTATION, 1, start_ns, host_ns - start_ns))
        for name in KERNELS:
            factor = self.operator_factor if name == "gemm_backward" and is_slow else 1.0
            launches = self.launches + (self.extra_launches if name == "softmax" and is_slow else 0)
            for _ in range(launches):
                number = len(events)
                operator_ns = self._about(self.host_ns, random)
                kernel_ns = self._about(self.kernel_ns / self.launches * factor * speed, random)
                begin_ns = max(device_ns, host_ns + operator_ns // 2)
                events += [
                    made(f"aten::{name}", OPERATOR, 1, host_ns, operator_ns, external=number),
                    made(
                        "cudaLaunchKernel", RUNTIME, 1, host_ns + operator_ns // 4, operator_ns // 4, correlation=number
                    ),
                    made(name, KERNEL, (0, 7), begin_ns, kernel_ns, stream=7, correlation=number, external=number),
                ]
                host_ns, device_ns = host_ns + operator_ns, begin_ns + kernel_ns
        return host_ns, device_ns
