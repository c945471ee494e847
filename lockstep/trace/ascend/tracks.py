"""Classifies the rows of trace_view.json by the name of their process, their thread, and the type of their task.

Device rows carry no category; the metadata event "process_name" of their process decides. Process names were read from
torch_npu, msprof and MindStudio Insight; task types from the enumerations of msprof and from recordings.
"""

import re
from enum import IntEnum

from lockstep.trace.columns import COPY, FILL, KERNEL, OPERATOR, PYTHON, RUNTIME, SYNC, WorkKind

ENQUEUE = "enqueue"
DEQUEUE = "dequeue"
"""What torch_npu puts into its task queue on the training thread, and takes out on a thread of its own."""
PART = "communication_task"
"""A step of a collective's algorithm (a copy, a wait for a peer): a detail of the collective's own row."""
TASK = "ascend_task"
"""What the device's scheduler does for itself."""
OVERLAP = "overlap_analysis"
OTHER = "ascend"

GC_NAME = "Python GC"
"""Kineto's name for a garbage collection."""


class Track(IntEnum):
    """Role of a process in the trace."""

    UNKNOWN = 0
    PYTHON = 1
    GC = 2
    CANN = 3
    HARDWARE = 4
    COMMUNICATION = 5
    OVERLAP = 6
    MARKS = 7
    COUNTERS = 8


_PROCESSES = {
    "Python": Track.PYTHON,
    "Python GC": Track.GC,
    "CANN": Track.CANN,
    "AscendCL": Track.CANN,
    "Runtime": Track.CANN,
    "Ascend Hardware": Track.HARDWARE,
    "Task Scheduler": Track.HARDWARE,
    "HCCL": Track.COMMUNICATION,
    "Communication": Track.COMMUNICATION,
    "Overlap Analysis": Track.OVERLAP,
    "MsTx": Track.MARKS,
    "MSTX": Track.MARKS,
    "msproftx": Track.MARKS,
}
_LABEL_DEVICE = re.compile(r"NPU (\d{1,6})", re.ASCII)
_PLANE_PREFIX = "Plane"

_CORES = {
    *("AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV", "AI_CPU", "AIC", "AIV", "DSA", "DVPP", "FFTS+", "FFTS_PLUS"),
    *("KERNEL_AICORE", "KERNEL_AIVEC", "KERNEL_AICPU", "KERNEL_MIX_AIC", "KERNEL_MIX_AIV"),
}
_PARTS = {
    *("NOTIFY_WAIT", "NOTIFY_RECORD", "WRITE_VALUE", "SDMA", "RDMASEND", "RDMA_SEND", "REDUCE_INLINE", "REDUCE_TBE"),
    *("CAPTURE_WAIT", "CAPTURE_RECORD", "CCU"),
}
_QUEUE_SUFFIX = "_SQE"
_MARK_PREFIXES = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)#", "lockstep.step#")
"""What Kineto writes as annotations and torch_npu as operators: record_function of torch itself and of the agent."""


def track_of(name: str, labels: str) -> Track:
    """Return the role of a process; one that only has a label for the host contains calls into CANN."""
    known = _PROCESSES.get(name)
    if known is not None:
        return known
    if not name and labels == "CPU":
        return Track.CANN
    return Track.COUNTERS if name else Track.UNKNOWN


def device_of(labels: str, absent: int) -> int:
    """Return the device of a process's label "NPU 3", or `absent`; older writers have "NPU" only."""
    found = _LABEL_DEVICE.fullmatch(labels)
    return int(found[1]) if found else absent


def is_part(thread_name: str) -> bool:
    """Whether a thread of the communication process holds parts of collectives instead of collectives."""
    return thread_name.startswith(_PLANE_PREFIX)


def task_of(name: str, task_type: str) -> tuple[str, WorkKind]:
    """Return category and work of a device row; parts of collectives have no work, only the collective's row does."""
    what, kind = _plain(name), _plain(task_type)
    if what.startswith("MEMCPY"):
        return COPY, WorkKind.MEMORY
    if what.startswith("MEMSET") and kind not in _CORES:
        return FILL, WorkKind.MEMORY
    if what.startswith("EVENT_"):
        return (SYNC if "WAIT" in what else TASK), WorkKind.NOTHING
    if kind not in _CORES and (kind in _PARTS or what in _PARTS):
        return PART, WorkKind.NOTHING
    return (TASK, WorkKind.NOTHING) if what == kind else (KERNEL, WorkKind.COMPUTE)


def _plain(text: str) -> str:
    return text.upper().replace(" ", "_").removesuffix(_QUEUE_SUFFIX)


def is_mark(name: str) -> bool:
    """Whether torch_npu writes as an operator what Kineto writes as an annotation."""
    return name.startswith(_MARK_PREFIXES)


def host_category(category: str) -> tuple[str, WorkKind]:
    """Return category and work of a row of the Python process; both ends of the task queue call CANN."""
    if category in (ENQUEUE, DEQUEUE):
        return RUNTIME, WorkKind.HOST
    return category, WorkKind.HOST if category in (OPERATOR, PYTHON) else WorkKind.NOTHING
