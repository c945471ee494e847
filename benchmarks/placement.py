"""Where the threads of this process run while their cost is measured.

A collective hands over between the training thread and a thread of its backend. Where they run on two processors, each
wake-up is an interrupt of the other processor, which costs the thread that wakes as much as the whole collective: 40 us
on a virtual machine. The scheduler moves threads as it likes, so figures of free threads jump between the two. What
hooks compute is measured on one processor; the other case has a figure of its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_native_id

_TASKS = Path("/proc/self/task")


@contextmanager
def one_processor() -> Iterator[None]:
    """Keep all threads of this process on one processor, and those that they start."""
    processor = {max(os.sched_getaffinity(0))}
    with _placed(processor, processor):
        yield


@contextmanager
def two_processors() -> Iterator[bool]:
    """Keep the calling thread on one processor and all others on another; hand out whether there are two."""
    processors = sorted(os.sched_getaffinity(0))
    with _placed({processors[-1]}, {processors[0]}):
        yield len(processors) > 1


@contextmanager
def _placed(own: set[int], others: set[int]) -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    _place(own, others)
    try:
        yield
    finally:
        _place(allowed, allowed)


def _place(own: set[int], others: set[int]) -> None:
    for task in _TASKS.iterdir():
        thread = int(task.name)
        with suppress(ProcessLookupError):  # ended meanwhile
            os.sched_setaffinity(thread, own if thread == get_native_id() else others)
