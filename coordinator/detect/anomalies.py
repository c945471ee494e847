"""What the detectors report of one step: values, no behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass, field

SLOW_RANK = "slow_rank"
SLOW_LINK = "slow_link"
FLUCTUATION = "fluctuation"
UNSYNCHRONISED_GC = "unsynchronised_gc"
HANG = "hang"
CRASH = "crash"
MEMORY_GROWTH = "memory_growth"
KINDS = (SLOW_RANK, SLOW_LINK, FLUCTUATION, UNSYNCHRONISED_GC, HANG, CRASH, MEMORY_GROWTH)
LINK = "link"
PROCESS = "process"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One thing that holds a run back, as of one step.

    `scope` is rank, node, group or job; `domain` is (kind, name) where one is meant. `excess_ratio` is relative to the
    reference, `excess_seconds` per step. `numbers` are what `evidence` was written from: seconds, ratios, steps.
    `confidence` in the cause is high, medium or low, empty where there is nothing to weigh. `node` is where the rank
    runs, empty where that is unknown or several are meant. What is not `is_sure` must last before it is reported; what
    does not `acts` had no effect in this step, its alarm is only not over yet. `lost_seconds` is what the step would
    have been shorter without it, None where that is its excess.
    """

    kind: str
    cause: str
    scope: str
    ranks: tuple[int, ...]
    domain: tuple[str, str] | None
    onset_step: int
    excess_ratio: float
    excess_seconds: float
    evidence: tuple[str, ...]
    numbers: dict[str, float] = field(default_factory=dict)
    confidence: str = ""
    node: str = ""
    is_sure: bool = True
    acts: bool = True
    lost_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What is known of one completed step.

    `is_disturbed` steps (checkpoint, evaluation, warm-up, capture and the step after) are not evaluated: they have
    the anomalies of the step before. `is_warm` is False until noise has been learnt. `ranks_blind` counts ranks that
    measured no wait in any domain, so their own work is unknown. `ranks_of_node` counts the ranks of each node.
    `mirrored_alarms` counts units that alarmed in this step for being too fast, by `metrics.MIRRORED_UNITS`.
    `held` names the ranks that held this step for minutes, None where none did.
    `imbalance_ratios` is what legitimate differences cost, by what differs, as a share of the step: information, no
    fault.
    """

    step: int
    unix_s: float
    step_seconds: float
    is_disturbed: bool
    is_warm: bool
    anomalies: tuple[Anomaly, ...]
    fluctuating: bool
    recent_step_seconds: float | None
    baseline_step_seconds: float | None
    mean_over_best_ratio: float | None
    ranks_reporting: int
    ranks_blind: int
    ranks_of_node: Mapping[str, int] = field(default_factory=dict)
    imbalance_ratios: Mapping[str, float] = field(default_factory=dict)
    held: Anomaly | None = None
    mirrored_alarms: Mapping[str, int] = field(default_factory=dict)
