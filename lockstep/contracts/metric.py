"""The description of a metric, and the values of its enumerated labels and buckets."""

from dataclasses import dataclass
from typing import Literal

from lockstep.contracts.records import Flag

Type = Literal["counter", "gauge", "histogram"]

Level = Literal["minimal", "default", "full"]
LEVELS: tuple[Level, ...] = ("minimal", "default", "full")
"""How much an exporter exports, least first; each level includes the ones before it."""
Below = Literal["absent", "sum", "min", "max", "zeros"]
Form = Literal["whole", "absent", "node", "zeros"]
"""How a family is exported: with all its labels, not at all, aggregated over a run's ranks on the node, or only its 0s.
"""

PHASES = ("data", "compute", "host", "gc")
"""Phases of the training thread's own work: with the waits, they sum to the step time."""

FLAGS = tuple(str(flag.name).lower() for flag in Flag)
"""What a step was in addition to a training step."""

IMBALANCES = ("stage", "replica", "work")
"""Sources of legitimate differences between ranks: pipeline stages, batches of replicas, tokens and experts."""
MIRRORED_UNITS = ("rank", "replica", "stage", "group")
"""What one test compares with its peers or its past; alarms on the test's fast side are counted."""
MEMORY_CAUSES = ("host_memory", "worker_memory", "device_memory")
"""In the order of `memory_report.MEMORY_PARTS`."""
CAUSES = ("compute", "off_cpu", "host", "data", "gc", "link", "imbalance", "process", *MEMORY_CAUSES, "unknown")
RUN_STATES = (
    *("warming", "healthy", "suspect", "profiling", "diagnosed", "recovering"),
    *("hung", "lost", "crashed", "cancelled", "finished"),
)
PROFILE_STATES = ("requested", "done", "refused", "expired")
EXPECTED_STATES = ("unspecified", "waiting", "fitting", "known", "refused")
"""The state of a run's model: no description of the job, no healthy window yet, being fitted, fitted, impossible."""
EVIDENCE_OUTCOMES = ("answered", "empty", "timeout", "unreachable", "refused", "malformed", "too_large")
"""Outcomes of a query for evidence: answered with series or without, or why its answer could not be used."""
EVIDENCE_REFUSALS = ("ambiguous", "foreign", "invalid")
"""Why a series matched no machine: contradicted by another, of none of the requested machines, or not a finite number.
"""
NOTIFICATION_TARGETS = ("webhook", "slack")
NOTIFICATION_OUTCOMES = ("sent", "failed", "dropped")
"""Outcomes of a notification: accepted by its receiver, refused or given up, or dropped from a full queue."""
NODE_PATCH_OUTCOMES = ("applied", "refused", "retried")
"""Outcomes of an attempt to set a Kubernetes node's condition: by the API server, or failed on the way and retried."""
HTTP_REFUSALS = ("401", "403")
"""Statuses of responses that deny access: no valid password or token; no valid certificate, or no token configured."""
RECORDING_STATES = ("written", "dropped")
REFUSAL_REASONS = ("rank_claimed", "group", "run", "run_of_node", "node", "degrees")
"""Why announcements are refused: another node's rank; too many groups, runs, runs of this node or nodes; degrees that
do not fit."""
POLICY_SOURCES = ("api", "file")
STEP_BUCKETS_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a toy job to the slowest published step (Hermes: 85 s falls into +Inf, which its sum still includes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric family. `values` lists the values of an enumerated label; each is exported from the start.

    `more_values` are those of a second such label; every combination is exported. `full_values` exist at level full
    only. A family of source both describes each service's own process.

    An exporter exports the family with all its labels from `level` on. At lower levels, down to `below_level`, `below`
    replaces it. That is either an aggregate without the label rank (sum, minimum or maximum over a run's ranks on the
    node), so that rules that aggregate over ranks work at every level, or the series whose value is 0 (zeros). A
    coordinator has no levels.
    """

    name: str
    type: Type
    help: str
    source: Literal["exporter", "coordinator", "both"]
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    more_values: tuple[str, ...] = ()
    full_values: tuple[str, ...] = ()
    level: Level = "minimal"
    below: Below = "absent"
    below_level: Level = "minimal"
    is_optional: bool = False
    """Whether it belongs to a part of the exporter that is off unless it is configured or used."""

    def form(self, level: Level) -> Form:
        """Return how an exporter at `level` exports the family."""
        place = LEVELS.index(level)
        if place >= LEVELS.index(self.level):
            return "whole"
        if self.below == "absent" or place < LEVELS.index(self.below_level):
            return "absent"
        return "zeros" if self.below == "zeros" else "node"

    def values_at(self, level: Level) -> tuple[str, ...]:
        """Return the values of the enumerated label at `level`."""
        return self.values if level == LEVELS[-1] else tuple(v for v in self.values if v not in self.full_values)


def exporter_metric(
    name: str,
    type_: Type,
    help_: str,
    *labels: str,
    values: tuple[str, ...] = (),
    level: Level = "minimal",
    below: Below = "absent",
    below_level: Level = "minimal",
    is_optional: bool = False,
) -> Metric:
    """Return a family of the exporter."""
    return Metric(
        name=name,
        type=type_,
        help=help_,
        source="exporter",
        labels=labels,
        values=values,
        level=level,
        below=below,
        below_level=below_level,
        is_optional=is_optional,
    )
