"""A job of four ranks made by hand: five steps, a forward, a kernel and an all-reduce in each.

Every step is STEP_NS long plus what the slowest rank sleeps in its forward; all ranks leave the all-reduce together.
"""

from lockstep.trace.columns import (
    ANNOTATION,
    KERNEL,
    OPERATOR,
    PYTHON,
    RUNTIME,
    CollectiveArguments,
    TraceColumns,
    TraceMetadata,
    WorkKind,
)
from tests.trace.made import columns_of, made

RANKS = (0, 1, 2, 3)
STEPS = 5
STEP_NS = 60_000_000
MS = 1_000_000
BASE_NS = 1_790_857_026_000_000_000
FORWARD = "train.py(20): forward"
SLEEP = "<built-in function sleep>"


def metadata(rank: int) -> TraceMetadata:
    """Return what the trace of a rank states of itself."""
    return TraceMetadata(
        vendor="nvidia",
        devices=("NVIDIA H100",),
        backend="nccl",
        rank=rank,
        world_size=len(RANKS),
        host="node",
        groups={"0": RANKS},
        clock_is_shared=True,
    )


def rank_columns(rank: int, *, slept_ms: dict[int, int] | None = None, has_rank: bool = True) -> TraceColumns:
    """Return one rank's trace; `slept_ms` is what ranks sleep in each forward."""
    slept = {each: ms * MS for each, ms in (slept_ms or {}).items()}
    mine, longest = slept.get(rank, 0), max(slept.values(), default=0)
    events = []
    for step in range(STEPS):
        begin = BASE_NS + step * (STEP_NS + longest)
        events += _step(step, begin, mine, longest, rank)
    return columns_of(events, metadata=metadata(rank) if has_rank else TraceMetadata(vendor="nvidia"))


def _step(step: int, begin: int, mine: int, longest: int, rank: int) -> list:
    number = 100 * step
    ready = begin + 30 * MS + mine + rank % 2 * 10_000
    end = begin + 50 * MS + longest
    reduced = CollectiveArguments(
        name="allreduce", group="0", ranks=RANKS, group_size=4, in_elements=1 << 20, out_elements=1 << 20,
        dtype="Float", sequence=step,
    )  # fmt: skip
    sleeps = [made(SLEEP, PYTHON, 1, begin + 6 * MS, mine)] if mine else []
    return [
        made(f"ProfilerStep#{step}", ANNOTATION, 1, begin, STEP_NS + longest),
        made(FORWARD, PYTHON, 1, begin + 1 * MS, 9 * MS + mine),
        *sleeps,
        made("aten::mm", OPERATOR, 1, begin + 7 * MS + mine, 2 * MS, external=number),
        made("cudaLaunchKernel", RUNTIME, 1, begin + 8 * MS + mine, MS // 2, correlation=number + 1, external=number),
        made("gemm", KERNEL, (0, 7), begin + 9 * MS + mine, 20 * MS, stream=7, correlation=number + 1, external=number),
        made("cudaLaunchKernel", RUNTIME, 1, begin + 10 * MS + mine, MS // 2, correlation=number + 2),
        made(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            KERNEL,
            (0, 20),
            ready,
            end - ready,
            work=WorkKind.COMMUNICATION,
            stream=20,
            correlation=number + 2,
            collective=reduced,
        ),
        made("cudaDeviceSynchronize", RUNTIME, 1, begin + 12 * MS + mine, end - begin - 12 * MS - mine),
    ]
