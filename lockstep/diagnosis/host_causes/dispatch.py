"""Whether the host launches too slowly for kernels that are too small (Hermes 4.2.2, operator dispatch).

A kernel waited for its launch if its stream had finished all earlier work when its launch began. The device's idle time
before such kernels is attributed to the host. Gaps longer than 1 ms are left out: the host was not dispatching then.
"""

from dataclasses import dataclass

import numpy as np

from lockstep.contracts.finding import CPU, HIGH, MEDIUM, Finding, NotEvaluated
from lockstep.diagnosis.host_causes import thresholds as limits
from lockstep.diagnosis.host_causes.fusible import FusibleSequence, fusible_sequences
from lockstep.diagnosis.host_causes.view import HostView
from lockstep.diagnosis.roofline.launches import launching_operators
from lockstep.trace.columns import ABSENT, WorkKind
from lockstep.trace.intervals import Intervals
from lockstep.trace.launches import launches_of
from lockstep.trace.names import kernel_label, tidy

DISPATCH = "dispatch"


@dataclass(frozen=True, slots=True)
class SmallKernels:
    """Number and share of the window's kernels that are shorter than a launch, and their share of the kernels' time."""

    kernels: int
    count_ratio: float
    time_ratio: float


def small_kernels(view: HostView) -> SmallKernels:
    """Return the share of small compute kernels; zeros without kernels."""
    columns = view.columns
    duration_ns = columns.duration_ns[view.device & (columns.work == WorkKind.COMPUTE)]
    small = duration_ns < limits.SMALL_KERNEL_NS.value
    if not len(duration_ns):
        return SmallKernels(0, 0.0, 0.0)
    return SmallKernels(len(duration_ns), float(small.mean()), float(duration_ns[small].sum() / duration_ns.sum()))


def launch_waits(view: HostView) -> Intervals:
    """Return when the whole device was idle because the next work was not yet launched, gaps of at most 1 ms."""
    columns = view.columns
    works = np.flatnonzero(view.device)
    works = works[np.argsort(columns.start_ns[works], kind="stable")]
    idle = view.idle()
    short = idle.end_ns - idle.start_ns <= limits.LAUNCH_GAP_NS.value
    idle = Intervals(idle.start_ns[short], idle.end_ns[short])
    at = np.searchsorted(columns.start_ns[works], idle.end_ns)
    ends_work = at < len(works)
    idle, at = Intervals(idle.start_ns[ends_work], idle.end_ns[ends_work]), at[ends_work]
    launch = launches_of(columns)[works[at]]
    launched_ns = columns.end_ns[launch]
    late = (launch != ABSENT) & (launched_ns > idle.start_ns)  # gaps before unknown launches are attributed to no call
    return Intervals(idle.start_ns[late], np.minimum(idle.end_ns, launched_ns)[late])


def evaluate_dispatch(view: HostView) -> list[Finding] | NotEvaluated:
    """Return whether launching holds the device up, and which sequences of kernels to fuse."""
    if not view.has_device:
        return NotEvaluated(rule=DISPATCH, reason="no device: operators run where they are dispatched")
    small = small_kernels(view)
    if not small.kernels:
        return NotEvaluated(rule=DISPATCH, reason="no kernels in the window")
    sequences = fusible_sequences(view)
    waits = launch_waits(view)
    lost_ns = waits.measure_ns()
    starved = view.share(lost_ns) >= limits.STARVED_RATIO.value
    crowded = small.count_ratio >= limits.SMALL_KERNEL_RATIO.value
    fused_ns = sum(sequence.idle_ns for sequence in sequences)
    if not (starved and (sequences or crowded)) and view.share(fused_ns) < limits.FUSED_RATIO.value:
        return []
    shares = f"{100 * small.count_ratio:.0f} % of {small.kernels} kernels, {100 * small.time_ratio:.0f} % of their time"
    sentences = (f"{shares}, are shorter than 10 us", f"the device waits for launches {view.per_step(lost_ns)}")
    return [
        Finding(
            bottleneck=CPU,
            cause=DISPATCH,
            ranks=view.ranks,
            evidence=(*sentences, *(_sentence(view, sequence) for sequence in sequences)),
            subject=_names(view, sequences[0]) if sequences else "small kernels",
            lost_ns=max(lost_ns, fused_ns) if starved else fused_ns,
            steps=view.occurrence(waits) if starved else None,
            confidence=HIGH if sequences and starved else MEDIUM,
        )
    ]


def _sentence(view: HostView, sequence: FusibleSequence) -> str:
    share = 100 * sequence.kernel_ns / sequence.wall_ns
    again = ", over and over" if len(sequence.unit) < len(sequence.kernels) else ""
    return (
        f"{len(sequence.kernels)} kernels {sequence.count} times, {sequence.idle_ns / 1e6:.1f} ms idle inside, "
        f"{share:.0f} % of the time in kernels, {view.per_step(sequence.wall_ns)}: {_names(view, sequence)}{again}"
    )


def _names(view: HostView, sequence: FusibleSequence) -> str:
    """Return the operators that launch the repeated unit of a sequence, or a kernel's own name if none is known."""
    columns, kernels = view.columns, np.array(sequence.first[: len(sequence.unit)], np.int64)
    names = [columns.names[code] for code in columns.name[kernels].tolist()]
    operators = launching_operators(columns, kernels).tolist()
    return " + ".join(
        kernel_label(name) if operator == ABSENT else tidy(columns.names[columns.name[operator]])
        for name, operator in zip(names, operators, strict=True)
    )
