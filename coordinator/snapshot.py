"""The state of the coordinator at one moment as plain values: created on the event loop, read on any thread."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from coordinator.decide.incidents import Incident
from coordinator.fleet.history import SubjectRecord
from coordinator.record.earlier_attempts import EarlierAttempts
from lockstep.contracts.metric import NODE_PATCH_OUTCOMES, NOTIFICATION_OUTCOMES, NOTIFICATION_TARGETS
from lockstep.contracts.metrics import (
    EVIDENCE_OUTCOMES,
    EVIDENCE_REFUSALS,
    EXPECTED_STATES,
    HTTP_REFUSALS,
    MIRRORED_UNITS,
    RECORDING_STATES,
    REFUSAL_REASONS,
    STEP_BUCKETS_SECONDS,
)
from lockstep.serving.process import ProcessFamilies

_NOTIFICATIONS = tuple(product(NOTIFICATION_TARGETS, NOTIFICATION_OUTCOMES))


@dataclass(slots=True)
class StepHistogram:
    """Histogram of a run's step durations; `counts` has one more entry than there are buckets, for longer steps."""

    counts: list[int]
    sum_seconds: float = 0.0

    @classmethod
    def empty(cls) -> "StepHistogram":
        """Return a histogram without observations."""
        return cls([0] * (len(STEP_BUCKETS_SECONDS) + 1))

    def observe(self, seconds: float) -> None:
        """Count one step."""
        place = sum(seconds > bound for bound in STEP_BUCKETS_SECONDS)
        self.counts[place] += 1
        self.sum_seconds += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A slow rank for export."""

    rank: int
    hostname: str
    domain_kind: str
    cause: str
    excess_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """One run. Figures that are not known yet are None. `suspects` holds the worst ranks, `slow_ranks` counts all."""

    run: str
    state: str
    world_size: int
    ranks_reporting: int
    ranks_blind: int
    step: int | None
    last_step_unix_s: float | None
    recent_step_seconds: float | None
    baseline_step_seconds: float | None
    fluctuating: bool
    slow_ranks: int
    suspects: tuple[Suspect, ...]
    incidents: tuple[Incident, ...]
    incidents_total: int
    lost_device_seconds: float
    profiles: Mapping[str, int]
    step_counts: tuple[int, ...]
    step_sum_seconds: float
    hostnames: Mapping[int, str] = field(default_factory=dict)
    """Host names of the ranks that `incidents` name."""
    imbalance_ratios: Mapping[str, float] = field(default_factory=dict)
    mirrored_alarms: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(MIRRORED_UNITS, 0))
    expected_state: str = EXPECTED_STATES[0]
    expected_step_seconds: float | None = None
    expected_error_ratio: float | None = None
    memory_remaining_seconds: float | None = None
    earlier: EarlierAttempts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The coordinator as a whole."""

    runs: tuple[RunSnapshot, ...]
    messages_received: Mapping[str, int]
    messages_rejected: Mapping[str, int]
    records_rejected: Mapping[str, int]
    records_lost: Mapping[str, int]
    records_evaluated: int
    frames: Mapping[str, int]
    frames_unsettled: int
    inputs_dropped: Mapping[str, int]
    leads: bool
    peers: int
    is_connected: bool
    nodes_alive: int
    detections: int
    detection_seconds: float
    last_detection_unix_s: float | None
    policy_changes: Mapping[str, int]
    reload_ok: bool
    reload_unix_s: float
    version: str
    announcements_refused: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSAL_REASONS, 0))
    records_recorded: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(RECORDING_STATES, 0))
    http_refusals: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(HTTP_REFUSALS, 0))
    fleet: tuple[SubjectRecord, ...] = ()
    """Machines that recent incidents named at least twice, the most frequent first."""
    evidence_queries: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(EVIDENCE_OUTCOMES, 0))
    evidence_refusals: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(EVIDENCE_REFUSALS, 0))
    notifications: Mapping[tuple[str, str], int] = field(default_factory=lambda: dict.fromkeys(_NOTIFICATIONS, 0))
    """By target and outcome."""
    node_patches: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(NODE_PATCH_OUTCOMES, 0))
    process: ProcessFamilies = ()
