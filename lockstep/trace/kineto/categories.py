"""Maps category names of all versions of Kineto to current ones, and to the arguments that their events can have.

Sources: libkineto's ActivityType.h and .cpp from 2021 to 2026 (one enum for all devices, with a name for each vendor),
and its forks (GCU, MLU).
"""

import re
from enum import IntEnum

from lockstep.trace import columns

_FORMER = {
    "operator": columns.OPERATOR,
    "kernel": columns.KERNEL,
    "mtia_ccp_events": columns.KERNEL,
    "mtia_workloadd": columns.KERNEL,
    "concurrent_kernel": columns.KERNEL,
    "memcpy": columns.COPY,
    "memset": columns.FILL,
    "runtime": columns.RUNTIME,
    "hpu_op": columns.RUNTIME,
    "driver": columns.DRIVER,
    "python function": columns.PYTHON,
    columns.ANNOTATION: columns.ANNOTATION,
}
_OPERATOR_2021 = "Operator"
_ANNOTATION_NAME = re.compile(
    r"ProfilerStep#\d+|enumerate\(DataLoader\)#.*|Optimizer\.\w+#.*|DistributedDataParallel\.forward|(nccl|gloo|mpi|ucc):.*"
)
_ENDINGS = {
    "_memcpy": columns.COPY,
    "_memset": columns.FILL,
    "_runtime": columns.RUNTIME,
    "_driver": columns.DRIVER,
    "_sync": columns.SYNC,
    "_user_annotation": columns.DEVICE_ANNOTATION,
}
COLLECTIVE = "collective_comm"
"""Communication of devices whose backend records it apart from kernels."""
NO_WORK = (
    "cuda_event",
    "cuda_profiler_range",
    "cpu_instant_event",
    "external_correlation",
    "gpu_pm_counter",
    "mtia_counters",
    "mtia_insight",
    "overhead",
    "Overhead",
    "Trace",
)
"""Marks, counters and the profiler's own rows, some of which name a stream."""


class ArgumentSet(IntEnum):
    """Which arguments are read of an event: as few as its category can have, for each costs."""

    NONE = 0
    OPERATOR = 1
    CALL = 2
    KERNEL = 3
    DEVICE = 4


_READINGS = {
    columns.PYTHON: ArgumentSet.NONE,
    columns.OPERATOR: ArgumentSet.OPERATOR,
    columns.ANNOTATION: ArgumentSet.OPERATOR,
    columns.RUNTIME: ArgumentSet.CALL,
    columns.DRIVER: ArgumentSet.CALL,
    columns.KERNEL: ArgumentSet.KERNEL,
}


def today(category: str) -> str:
    """Return the current name of `category`, whatever wrote it; unknown ones are unchanged."""
    small = category.lower()
    if small in _FORMER:
        return _FORMER[small]
    return next((now for ending, now in _ENDINGS.items() if small.endswith(ending)), category)


def reading(category: str) -> ArgumentSet:
    """Return what is read of events of `category`, today's name; unknown ones may be work of a device."""
    return _READINGS.get(category, ArgumentSet.DEVICE)


def mixes_annotations(category: str) -> bool:
    """Whether `category`, as the file has it, holds operators and annotations alike."""
    return category == _OPERATOR_2021


def is_annotation(name: str) -> bool:
    """Whether an event of this name is an annotation in today's traces."""
    return _ANNOTATION_NAME.fullmatch(name) is not None
