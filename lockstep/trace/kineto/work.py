"""The class of work of each event of a Kineto trace: nothing, host, compute, memory or communication.

Decided by category first, never by the presence of a stream (a Triton operator of the host has one). On the device a
collective is recognised by its arguments if the writer records them, else by the kernel's name, but never by "Sync" in
it, because SyncBatchNorm computes. On the host it is the backend's annotation on the backend's own thread, which spans
the transfer; the same annotation on a thread that calls collectives is only a mark.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.columns import (
    ANNOTATION,
    COPY,
    DEVICE_ANNOTATION,
    DRIVER,
    FILL,
    KERNEL,
    OPERATOR,
    PYTHON,
    RUNTIME,
    SYNC,
    Mask,
    WorkKind,
)
from lockstep.trace.kineto import categories

_BY_CATEGORY = {
    PYTHON: WorkKind.HOST,
    OPERATOR: WorkKind.HOST,
    RUNTIME: WorkKind.HOST,
    DRIVER: WorkKind.HOST,
    KERNEL: WorkKind.COMPUTE,
    COPY: WorkKind.MEMORY,
    FILL: WorkKind.MEMORY,
    categories.COLLECTIVE: WorkKind.COMMUNICATION,
    ANNOTATION: WorkKind.NOTHING,
    DEVICE_ANNOTATION: WorkKind.NOTHING,
    SYNC: WorkKind.NOTHING,
    **dict.fromkeys(categories.NO_WORK, WorkKind.NOTHING),
}
ON_DEVICE = (KERNEL, COPY, FILL, categories.COLLECTIVE)

# From the libraries' sources: NCCL, RCCL, oneCCL, HCCL, MSCCL(++), NVSHMEM and ROC-SHMEM; DeepEP and pplx (MoE).
# Kernels: torch symmetric memory, vLLM, SGLang, TensorRT-LLM, FlashInfer, aiter, Transformer Engine.
_COLLECTIVE_KERNEL = re.compile(
    r"""(^|[^a-z]) (nccl | rccl | oneccl | hccl | hcom_ | mscclpp | msccl | nvshmem | roc_?shmem | xccl)
    | (deep_?ep | pplx) (::|_)
    | (one|two|multimem)_?(shot|kernel)?_?all_?(reduce|gather)
    | (one|two)shot_?all_?reduce | allreduce_(one|two)_?shot | (allreduce|all_reduce)_fusion_kernel
    | cross_device_reduce | quickreduce | quick_all_?reduce | custom_?all_?reduce | lamport_?\w*all_?reduce
    | multimem_ | all_?to_?allv? | alltoall | reduce_?scatter | all_?gather_?(kernel|into) | moe_?a2a | moeCommKernel
    | userbuffers_
    """,
    re.VERBOSE | re.IGNORECASE,
)
_PARTS = (
    *("ccl", "hcom_", "shmem", "deep", "pplx", "reduce", "gather", "multimem", "toall", "to_all", "a2a", "moecomm"),
    "userbuffers",
)
"""One of these is part of every name above: the search through a long name takes 0.2 ms, this a thousandth of it."""
_WAITS = ("event_wait",)
"""What MTIA's command processors record among kernels while a queue waits for another."""
_FUSED = ("triton_",)  # inductor names a kernel after all operators that it fuses, views of what was gathered as well
_NAME_CHARS = 2048  # of a kernel's name, template arguments included; one of a megabyte is not searched whole
_HOST_BACKENDS = ("gloo:", "mpi:", "ucc:")
_CALLS = ("c10d::", "_c10d_functional::")
_POINT_TO_POINT = re.compile(r"(send|recv)", re.IGNORECASE)


def is_collective_kernel(name: str) -> bool:
    """Whether a device event of this name moves data between ranks."""
    searched = name[:_NAME_CHARS]
    folded = searched.casefold()
    if name.startswith(_FUSED) or not any(part in folded for part in _PARTS):
        return False
    return _COLLECTIVE_KERNEL.search(searched) is not None


def work_of(
    name: NDArray[np.int32],
    category: NDArray[np.int32],
    thread: NDArray[np.int32],
    *,
    names: Sequence[str],
    category_names: Sequence[str],
    with_stream: Mask,
    collectives: Mapping[int, object],
) -> NDArray[np.int8]:
    """Return the `WorkKind` of every event, int8 array of shape (n_events,).

    Codes as in `TraceColumns`. `with_stream` states which events ran on a stream, which of a category that no one knows
    makes compute; `collectives` are the events that name their collective.
    """
    by_category = np.array([_BY_CATEGORY.get(each, WorkKind.NOTHING) for each in category_names], np.int8)
    work = by_category[category]
    unknown = np.array([each not in _BY_CATEGORY for each in category_names], np.bool_)[category]
    work[unknown & with_stream] = WorkKind.COMPUTE
    work[np.array([each in _WAITS for each in names], np.bool_)[name] & (work == WorkKind.COMPUTE)] = WorkKind.NOTHING
    work[_moving(name, np.flatnonzero(work == WorkKind.COMPUTE), names)] = WorkKind.COMMUNICATION
    named_collectives = np.array(list(collectives), np.int64)
    work[named_collectives[work[named_collectives] == WorkKind.COMPUTE]] = WorkKind.COMMUNICATION
    work[_of_host_backends(name, category, thread, names, category_names)] = WorkKind.COMMUNICATION
    return work


def _moving(name: NDArray[np.int32], events: NDArray[np.intp], names: Sequence[str]) -> NDArray[np.intp]:
    """Return which of these events have the name of a collective kernel; each of their names is looked at once."""
    used, place = np.unique(name[events], return_inverse=True)
    moves = np.array([is_collective_kernel(names[code]) for code in used.tolist()], np.bool_)
    return events[moves[place]]


def _of_host_backends(
    name: NDArray[np.int32],
    category: NDArray[np.int32],
    thread: NDArray[np.int32],
    names: Sequence[str],
    category_names: Sequence[str],
) -> Mask:
    """Return which events are a host backend's communication: its annotations on threads that call none.

    Sends and receives have no thread of their own: they are annotated on the calling thread, from call to end.
    """
    is_of_backend = np.array([each.startswith(_HOST_BACKENDS) for each in names], np.bool_)
    found: Mask = is_of_backend[name]
    found &= np.array([each == ANNOTATION for each in category_names], np.bool_)[category]
    if found.any():
        calls = np.array([each.startswith(_CALLS) for each in names], np.bool_)[name]
        pairs = np.array([_POINT_TO_POINT.search(each[:_NAME_CHARS]) is not None for each in names], np.bool_)
        found &= pairs[name] | ~np.isin(thread, np.unique(thread[calls]))
    return found
