"""I/O: whether the loader holds up training, and in which stage (Hermes 4.2.2, figure 5).

The paper inspects the queues: if the device's is not empty, I/O is no bottleneck; else if the host's is not empty,
fetching is; else if the data queue is not empty, processing is; else reading. torch's loader has only the host's queue,
whose depth the agent notes; the others' state follows from the trace and the workers:

- device queue: only time in which the device had no work counts,
- host queue: batches ready when training asks (`LoaderSamples`), else what the thread does inside `__next__`: ready
  batches are returned at once, and the remaining time is unpickling and copying,
- data queue: blocked workers read, workers on a CPU process; in a loader without workers, calls that read files or
  sockets are reading, and the rest is processing.
"""

import re
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.finding import HIGH, IO, LOW, MEDIUM, Finding, NotEvaluated
from lockstep.diagnosis.host_causes import thresholds as limits
from lockstep.diagnosis.host_causes.nesting import is_user_code, own_ns_by_name
from lockstep.diagnosis.host_causes.view import LOADER_PREFIX, HostView, overlap_ns
from lockstep.trace.columns import PYTHON, Mask, WorkKind
from lockstep.trace.intervals import Intervals, merged, without

READING, PROCESSING, FETCHING = "data_reading", "data_processing", "data_fetching"

_RULE = "data"
_WORKERS = "MultiProcessing"
_WORKERS_FACTOR = 16
"""Advising this many times the present workers is useless: the work itself has to shrink."""
_READ_BUILTIN = re.compile(
    r"<built-in (?:function|method) "
    r"(?:open|open_code|read\w*|recv\w*|pread\w*|load|fromfile|mmap|stat|scandir|listdir|getxattr)(?: of .*)?>"
)
_READ_FRAME = re.compile(
    r"(?P<file>[^()]+)\(\d+\): (?:open|read|read_\w+|readinto|recv\w*|urlopen|fetch_\w+|download\w*|fromfile|memmap)"
)
_NOT_STORAGE = ("multiprocessing/", "torch/multiprocessing/", "queue.py", "PIL/", "zipfile", "tarfile", "gzip")
"""Files whose functions with such names pass batches between processes, or unpack what the calls below them read."""
_TAKES_OVER = re.compile(r".*multiprocessing/.*\(\d+\): .*")
_WAIT_BUILTIN = re.compile(r"<built-in (?:function|method) (?:poll|select|acquire|wait|sleep)(?: of .*)?>")
_TO_DEVICE = re.compile(r"HtoD|HostToDevice|HOST_TO_DEVICE")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSamples:
    """What the agent saw of a DataLoader with workers at each request for a batch.

    `ready` and `outstanding` are int64 arrays of shape (n_samples,): batches that were ready, and batches that workers
    still had to make. `cpu_ratio` is the share of their time that workers were on a CPU or waited for one, None if the
    kernel does not count it; `blocked_ratio` is the share of samples that found one blocked in the kernel, as in a
    read.
    """

    ready: NDArray[np.int64]
    outstanding: NDArray[np.int64]
    workers: int
    cpu_ratio: float | None = None
    blocked_ratio: float = 0.0

    @property
    def empty_ratio(self) -> float:
        """Return how often no batch was ready on request: the host queue in Hermes' rule."""
        return float((self.ready <= 0).mean()) if len(self.ready) else 1.0


def evaluate_loader(view: HostView, *, loader: LoaderSamples | None = None) -> list[Finding] | NotEvaluated:
    """Return the stage in which torch's loader holds the training thread while the device has nothing to do."""
    mine = view.host & (view.columns.thread == view.thread)
    loaders = view.named(lambda name: name.startswith(LOADER_PREFIX), mine)
    if not loaders.any():
        return NotEvaluated(rule=_RULE, reason=f"no span {LOADER_PREFIX}... on the training thread")
    exposed = view.exposed(view.spans(loaders))
    lost_ns = exposed.measure_ns()
    if not _is_bottleneck(view, lost_ns):
        return []
    names = sorted({view.columns.names[code] for code in np.unique(view.columns.name[loaders]).tolist()})
    frames = _inside(view, mine & (view.columns.category == view.columns.category_code(PYTHON)), loaders)
    cause, confidence, why = (
        _stage_with_workers(view, frames, exposed, loader)
        if any(_WORKERS in name for name in names)
        else _stage_alone(view, frames, exposed, _inside(view, mine & ~loaders, loaders))
    )
    held = f"the loader holds the training thread {view.per_step(lost_ns)}, {view.meanwhile}"
    return [
        Finding(
            bottleneck=IO,
            cause=cause,
            ranks=view.ranks,
            evidence=(held, *why, *_heaviest(view, frames)),
            subject=", ".join(names),
            lost_ns=lost_ns,
            steps=view.occurrence(exposed),
            confidence=confidence,
        )
    ]


def evaluate_fetching(view: HostView) -> list[Finding] | NotEvaluated:
    """Return whether the device is idle while batches are copied to it."""
    if not view.has_device:
        return NotEvaluated(rule="data fetching", reason="no device: nothing is copied to one")
    columns = view.columns
    copies = view.named(
        lambda name: _TO_DEVICE.search(name) is not None, view.device & (columns.work == WorkKind.MEMORY)
    )
    works = view.device & np.isin(columns.work, (WorkKind.COMPUTE, WorkKind.COMMUNICATION))
    exposed = without(view.spans(copies), view.spans(works))
    lost_ns = exposed.measure_ns()
    if view.share(lost_ns) < limits.FETCHING_RATIO.value:
        return []
    pageable = view.named(lambda name: "Pageable" in name, copies)
    sentence = f"the device only receives copies from the host for {view.per_step(lost_ns)}"
    memory = f"{np.count_nonzero(pageable)} of {np.count_nonzero(copies)} copies come from pageable memory"
    return [
        Finding(
            bottleneck=IO,
            cause=FETCHING,
            ranks=view.ranks,
            evidence=(sentence, memory),
            subject="copies from host to device",
            lost_ns=lost_ns,
            steps=view.occurrence(exposed),
            confidence=HIGH if pageable.any() else MEDIUM,
        )
    ]


def _is_bottleneck(view: HostView, lost_ns: int) -> bool:
    share = view.share(lost_ns)
    long = lost_ns / view.steps > limits.LOADER_NS.value and share >= limits.LOADER_LEAST_RATIO.value
    return long or share >= limits.LOADER_RATIO.value


def _inside(view: HostView, among: Mask, loaders: Mask) -> Mask:
    """Return which events begin inside a loader's span."""
    spans = merged(view.columns.start_ns[loaders], view.columns.end_ns[loaders])
    at = np.searchsorted(spans.start_ns, view.columns.start_ns, side="right") - 1
    within: Mask = among & (at >= 0) & (view.columns.end_ns <= spans.end_ns[at])
    return within


def _stage_alone(view: HostView, frames: Mask, exposed: Intervals, callees: Mask) -> tuple[str, str, tuple[str, ...]]:
    """Evaluate a loader that works on the training thread itself."""
    lost_ns = exposed.measure_ns()
    if not frames.any():
        operators_ns = overlap_ns(view.spans(callees), exposed)
        sentence = f"operators hold {100 * operators_ns / lost_ns:.0f} % of it; without frames reading cannot be seen"
        return PROCESSING, MEDIUM if operators_ns else LOW, ("batches are made on the training thread itself", sentence)
    read_ns = overlap_ns(_reads(view, frames), exposed)
    sentence = f"{100 * read_ns / lost_ns:.0f} % of it is spent in calls that read files or sockets"
    return _main(READING, PROCESSING, read_ns / lost_ns), HIGH, (sentence,)


def _stage_with_workers(
    view: HostView, frames: Mask, exposed: Intervals, loader: LoaderSamples | None
) -> tuple[str, str, tuple[str, ...]]:
    """Evaluate a loader with worker processes, by its measured queue if there is one."""
    if loader is not None and len(loader.ready):
        return _stage_by_queue(loader, view.share(exposed.measure_ns()))
    lost_ns = exposed.measure_ns()
    waits = view.named(lambda name: _WAIT_BUILTIN.fullmatch(name) is not None, frames)
    if frames.any():
        waited_ns = overlap_ns(view.spans(waits), exposed)
        if waited_ns < limits.MAIN_PART_RATIO.value * lost_ns:
            sentence = (
                f"only {100 * waited_ns / lost_ns:.0f} % of it is waiting: batches are there and taking them costs"
            )
            return FETCHING, MEDIUM, (sentence,)
    sentence = "the workers' own time is not in the trainer's trace: reading and processing cannot be distinguished"
    return PROCESSING, LOW, (sentence,)


def _stage_by_queue(loader: LoaderSamples, share: float) -> tuple[str, str, tuple[str, ...]]:
    """Evaluate by the batches that were ready on request, then by what the workers did meanwhile.

    `share` is the share of the window in which training waits for the loader: workers that never rest keep up with the
    remaining time once there are 1 / (1 - share) times as many.
    """
    asked = len(loader.ready)
    often, mean = 100 * loader.empty_ratio, loader.ready.mean()
    depth = f"no batch is ready in {often:.0f} % of {asked} requests, {mean:.1f} are on average"
    if loader.empty_ratio < limits.QUEUE_EMPTY_RATIO.value:
        return FETCHING, HIGH, (f"{depth}: taking them over costs",)
    needed = ceil(loader.workers / max(1 - share, 1 / _WORKERS_FACTOR))
    enough = f"about {needed} workers keep up" + ("" if share <= 1 - 1 / _WORKERS_FACTOR else " at least")
    behind = f"{loader.workers} workers have {loader.outstanding.mean():.1f} batches to make; {enough}"
    if loader.cpu_ratio is None:
        return PROCESSING, MEDIUM, (depth, behind)
    busy, blocked = 100 * loader.cpu_ratio, 100 * loader.blocked_ratio
    sentence = f"{behind}; they are {busy:.0f} % on a CPU or waiting for one, and blocked in {blocked:.0f} % of looks"
    is_reading = loader.blocked_ratio > loader.cpu_ratio
    return READING if is_reading else PROCESSING, HIGH, (depth, sentence)


def _reads(view: HostView, frames: Mask) -> Intervals:
    """Return when the thread reads from storage; passing batches between processes does not count."""
    passing = view.spans(view.named(lambda name: _TAKES_OVER.fullmatch(name) is not None, frames))
    return without(view.spans(view.named(_is_read, frames)), passing)


def _is_read(name: str) -> bool:
    if _READ_BUILTIN.fullmatch(name):
        return True
    match = _READ_FRAME.fullmatch(name)
    return match is not None and not any(each in match["file"] for each in _NOT_STORAGE)


def _main(first: str, second: str, share_of_first: float) -> str:
    return first if share_of_first >= limits.MAIN_PART_RATIO.value else second


def _heaviest(view: HostView, frames: Mask) -> tuple[str, ...]:
    """Return the user's function, else the call, with most self time in the loader."""
    own_ns = own_ns_by_name(view, frames)
    if not own_ns:
        return ()
    users = [name for name in own_ns if is_user_code(name)]
    name = next(iter(own_ns))
    sentences = [f"most time of its own has {name}: {view.per_step(own_ns[name])}"]
    if users and users[0] != name:
        sentences.append(f"of the user's functions {users[0]}: {view.per_step(own_ns[users[0]])}")
    return tuple(sentences)
