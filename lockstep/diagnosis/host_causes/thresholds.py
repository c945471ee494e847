"""All limits of the host's rules, with their sources. Rules read them here and nowhere else.

"own" marks a limit of this project and is followed by its reason.
"""

from collections.abc import Mapping

from lockstep.diagnosis.threshold import Threshold

_ADVISOR = "msprof-analyze advisor"

OCCURS_RATIO = Threshold(
    0.1, "ratio of the mean step's loss", "own: a step with a smaller loss does not count as affected"
)

LOADER_NS = Threshold(10e6, "ns per step", f"{_ADVISOR}, dataloader check")
LOADER_RATIO = Threshold(0.1, "ratio of the window", "TraceML, step_time policy: share of input that causes a warning")
"""For short steps, which never reach 10 ms."""
LOADER_LEAST_RATIO = Threshold(0.03, "ratio of the window", "own: in a step of a minute, 10 ms are not a bottleneck")
FETCHING_RATIO = Threshold(
    0.1, "ratio of the window", "TraceML, step_time policy: share of host-to-device copies that causes a warning"
)
MAIN_PART_RATIO = Threshold(
    0.5, "ratio of the loader's time", "own: the stage that takes most of the time is its cause"
)
QUEUE_EMPTY_RATIO = Threshold(
    0.5, "ratio of the samples", "own, for Hermes figure 8: a queue that is mostly empty counts as empty"
)

COMPILE_RATIO = Threshold(
    0.01, "ratio of the window", "own: a smaller share is not worth a finding; a warmed-up run compiles nothing"
)
CHANGING_RATIO = Threshold(
    0.5, "ratio of the steps", "own: with new shapes in every other step, compilation never ends"
)
CHANGING_STEPS = Threshold(
    3, "count of steps", "own: two steps may differ by chance, and the shapes of the first are always new"
)
COMPILE_CALLS = Threshold(20, "count", f"{_ADVISOR}, op dispatch: aclopCompileAndExecute")

SMALL_KERNEL_NS = Threshold(10_000, "ns", "Hermes 4.2.2 and HolisticTraceAnalysis: the cost of one launch")
SMALL_KERNEL_RATIO = Threshold(
    0.3, "ratio of the kernels", "own: healthy traces have less, host-bound ones 0.43 and more"
)
STARVED_RATIO = Threshold(0.1, "ratio of the window", "TraceML, step_time policy: residual share that causes a warning")
FUSED_RATIO = Threshold(
    0.05,
    "ratio of the window",
    "PerfTracker 4.1: 5 % is a fluctuation; applies where the device does not wait for launches",
)
LAUNCH_GAP_NS = Threshold(
    1e6, "ns", "own: launching one operator takes 5 to 100 us; in a longer gap the host does something else"
)
SEQUENCE_LENGTH = Threshold(10, "count of operators", f"{_ADVISOR} and Hermes 4.2.2: sequences of 2 to 10")
SEQUENCE_COUNT = Threshold(5, "count", f"{_ADVISOR}, fusible sequences")
SEQUENCE_RATIO = Threshold(0.01, "ratio of the window", f"{_ADVISOR}, fusible sequences")
SEQUENCE_BUSY_RATIO = Threshold(
    0.4, "ratio of kernel to wall time", f"{_ADVISOR}, fusible sequences: below this they are host-bound"
)

SYNC_RATIO = Threshold(
    0.02,
    "ratio of the window",
    "own: idle device time that the calls cause; the cause of an incident also counts from 2 % of the step on",
)
SYNC_ONCE_RATIO = Threshold(
    0.5,
    "ratio of the window",
    "own: if steps are not marked and one call takes most of the window, it does not belong to a step",
)
SYNC_LAUNCH_RATIO = Threshold(
    0.5, "ratio of the launches", f"{_ADVISOR}, sync stream: above this, blocking launches are switched on"
)
SYNC_LAUNCHES = Threshold(10, "count", "own: in traces of a few operators, half of fewer launches wait by chance")
SYNC_BATCH_NORM = Threshold(20, "count per step", f"{_ADVISOR}, SyncBatchNorm")
READ_BACK_RATIO = Threshold(
    0.05, "ratio of the window", "PerfTracker 4.1: 5 % is a fluctuation; applies on a CPU, where no call waits"
)

GC_NS = Threshold(1e6, "ns", f"{_ADVISOR}, GC: shorter collections do not count as events")
GC_RATIO = Threshold(
    0.01, "ratio of the window", "own: as for sequences; collections of the young generation take less in healthy runs"
)
GAP_NS = Threshold(200e6, "ns", f"{_ADVISOR}, presumed GC")
GAP_MOST_NS = Threshold(
    5e9, "ns", "own: no collection takes that long; such a gap is a start-up, a checkpoint or a broken trace"
)
GAP_EVENTS = Threshold(0.0001, "host events per us", f"{_ADVISOR}, presumed GC")
GAP_BUSY_RATIO = Threshold(0.01, "ratio of the gap", f"{_ADVISOR}, presumed GC: time in the runtime's calls")

RUN_QUEUE_RATIO = Threshold(0.05, "ratio of the time", "PerfTracker 4.1: 5 % is a fluctuation")
THROTTLED_RATIO = Threshold(0.01, "ratio of the time", "own: a healthy limit never throttles")
OTHERS_RATIO = Threshold(
    0.5, "ratio of the cores", "own: two busy processes share cores; Hermes 5.1.2 found one process with 4000 %"
)

BY_CAUSE: Mapping[str, tuple[str, ...]] = {
    "data_reading": ("LOADER_NS", "LOADER_RATIO", "LOADER_LEAST_RATIO", "MAIN_PART_RATIO", "QUEUE_EMPTY_RATIO"),
    "data_processing": ("LOADER_NS", "LOADER_RATIO", "LOADER_LEAST_RATIO", "MAIN_PART_RATIO", "QUEUE_EMPTY_RATIO"),
    "data_fetching": ("FETCHING_RATIO", "MAIN_PART_RATIO", "QUEUE_EMPTY_RATIO"),
    "compilation": ("COMPILE_RATIO", "COMPILE_CALLS", "OCCURS_RATIO"),
    "dynamic_shapes": ("COMPILE_RATIO", "COMPILE_CALLS", "CHANGING_RATIO", "CHANGING_STEPS"),
    "dispatch": (
        "SMALL_KERNEL_NS",
        "SMALL_KERNEL_RATIO",
        "STARVED_RATIO",
        "FUSED_RATIO",
        "LAUNCH_GAP_NS",
        "SEQUENCE_LENGTH",
        "SEQUENCE_COUNT",
        "SEQUENCE_RATIO",
        "SEQUENCE_BUSY_RATIO",
    ),
    "synchronisation": (
        "SYNC_RATIO",
        "SYNC_ONCE_RATIO",
        "LAUNCH_GAP_NS",
        "SYNC_LAUNCH_RATIO",
        "SYNC_LAUNCHES",
        "SYNC_BATCH_NORM",
        "READ_BACK_RATIO",
    ),
    "gc": ("GC_NS", "GC_RATIO", "GAP_NS", "GAP_MOST_NS", "GAP_EVENTS", "GAP_BUSY_RATIO"),
    "cpu_contention": ("RUN_QUEUE_RATIO", "THROTTLED_RATIO", "OTHERS_RATIO"),
}
"""The limits by which each cause is evaluated, as names of this module; docs/causes.md is rendered from it."""
