"""What a metric is, and the values that its enumerated labels and buckets have."""

from dataclasses import dataclass
from typing import Literal

from lockstep.contracts.records import Flag

Type = Literal["counter", "gauge", "histogram"]

Level = Literal["minimal", "default", "full"]
LEVELS: tuple[Level, ...] = ("minimal", "default", "full")
"""How much an exporter exports, least first; each level has all that the ones before it have."""
Below = Literal["absent", "sum", "min", "max", "zeros"]
Form = Literal["whole", "absent", "node", "zeros"]
"""How a family is exported: with all its labels, not, without `rank` over a run's ranks on the node, or only its 0s."""

PHASES = ("data", "compute", "host", "gc")
"""Own work of a training thread: with the waits, they sum to the step time."""

FLAGS = tuple(str(flag.name).lower() for flag in Flag)
"""What a step was besides a training step."""

IMBALANCES = ("stage", "replica", "work")
MIRRORED_UNITS = ("rank", "replica", "stage", "group")
"""What is compared with its peers or past by one test, whose other side is counted."""
"""What legitimate differences between ranks come from: pipeline stages, batches of replicas, tokens and experts."""
MEMORY_CAUSES = ("host_memory", "worker_memory", "device_memory")
"""In the order of `memory_report.MEMORY_PARTS`."""
CAUSES = ("compute", "off_cpu", "host", "data", "gc", "link", "imbalance", "process", *MEMORY_CAUSES, "unknown")
RUN_STATES = (
    *("warming", "healthy", "suspect", "profiling", "diagnosed", "recovering"),
    *("hung", "lost", "crashed", "cancelled", "finished"),
)
PROFILE_STATES = ("requested", "done", "refused", "expired")
EXPECTED_STATES = ("unspecified", "waiting", "fitting", "known", "refused")
"""How far a run's model is: no description of the job, no healthy window yet, being fitted, fitted, impossible."""
EVIDENCE_OUTCOMES = ("answered", "empty", "timeout", "unreachable", "refused", "malformed", "too_large")
"""Of a query for evidence: answered with series or without, or why its answer could not be used."""
EVIDENCE_REFUSALS = ("ambiguous", "foreign", "invalid")
"""Why a series joined no machine: contradicted by another, of none of the machines asked for, or no finite number."""
NOTIFICATION_TARGETS = ("webhook", "slack")
NOTIFICATION_OUTCOMES = ("sent", "failed", "dropped")
"""Of a notification: accepted by its receiver, refused or given up, or pushed out of a full queue."""
NODE_PATCH_OUTCOMES = ("applied", "refused", "retried")
"""Of a try to set the condition of a Kubernetes node: by the API server, or it failed on the way and is tried again."""
HTTP_REFUSALS = ("401", "403")
"""Status of answers that refuse who asks: no right password or token; no right certificate, or no token configured."""
RECORDING_STATES = ("written", "dropped")
REFUSAL_REASONS = ("rank_claimed", "group", "run", "run_of_node", "node", "degrees")
"""Of announcements: another node's rank; a group, run, run of this node or node too many; degrees that do not fit."""
POLICY_SOURCES = ("api", "file")
STEP_BUCKETS_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a toy job to the slowest published step (Hermes: 85 s falls into +Inf, which its sum still includes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One family. `values` lists the values of an enumerated label; each is exported from the start.

    `more_values` are those of a second one, of which each comes with each of the first; `full_values` are values that
    exist at level full only. What both services export speaks of each one's own process.

    An exporter exports the family with all its labels from `level` on. Below, down to `below_level`, `below` stands in
    for it: without the label rank, the sum, least or greatest of a run's ranks on the node, so that rules that
    aggregate over ranks hold at every level; or the series whose value is 0 (zeros). A coordinator knows no levels.
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
