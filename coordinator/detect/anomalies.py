"""The detectors' results for one step, as plain values without behaviour."""

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
    """One problem that slows a run down, as of one step.

    `scope` is rank, node, group or job; `domain` is (kind, name) if the anomaly concerns one domain. `excess_ratio` is
    relative to the reference, `excess_seconds` is per step. `numbers` holds the values behind `evidence`: seconds,
    ratios, steps. `confidence` in the cause is high, medium or low, and empty if there is nothing to weigh. `node` is
    where the rank runs, empty if that is unknown or if several nodes are concerned. An anomaly that is not `is_sure`
    must last before it is reported. One that does not `acts` had no effect in this step; its alarm has not ended yet.
    `lost_seconds` is how much shorter the step would have been without it; None means `excess_seconds`. `part` is the
    part of own work whose test raised it, empty if it is of own work as a whole.
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
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result for one completed step.

    `is_disturbed` steps (checkpoint, evaluation, warm-up, capture and the step after) are not evaluated; they repeat
    the anomalies of the step before. `is_warm` is False until noise has been learnt. `ranks_blind` counts the ranks
    that measured no wait in any domain, so that their own work is unknown. `ranks_of_node` counts the ranks of each
    node. `mirrored_alarms` counts the units that alarmed in this step for being too fast, by `metrics.MIRRORED_UNITS`.
    `held` names the ranks that held this step up for minutes, None if none did. `imbalance_ratios` is the cost of
    legitimate differences, by kind, as a share of the step; it is information and no fault.
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
