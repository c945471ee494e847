"""What a soak has shown, with its budgets. Pure: figures in, rows out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean, median, quantiles
from typing import NamedTuple

from benchmarks.checks import Check, equal, has_missed
from benchmarks.services import Samples, Stored, Usage, total
from benchmarks.soak.job import RUN, JobPlan
from benchmarks.soak.nodes import FleetCounts

BUDGET_CORES = {1250: 0.15, 12_500: 1.0}
"""CPU of the coordinator, transport included, by number of nodes at one step a second."""
FOUND_STEPS_MAX = 3
FLAT_CPU_MAX, FLAT_MEMORY_MAX = 1.15, 1.05
"""Last third of the measured time over the first third."""
BEHIND_STEPS_MAX = 6
"""Steps that the evaluated one may be behind the job's: a second of batching, gathering and the page that is read."""
_SECONDS_MIN = 6
_PREFIX = "lockstep_coordinator"


class Second(NamedTuple):
    """What coordinator and broker had taken at a moment."""

    at_s: float
    coordinator: Usage
    broker: Usage


class ScrapeSample(NamedTuple):
    """What a scrape has shown: by how many steps the evaluated one is behind the job's, and what waits to be settled.

    `reference_cpu_s` is what a fixed computation took just then: it grows where neighbours share caches and cores.
    """

    behind_steps: int
    unsettled: int
    reference_cpu_s: float


@dataclass(slots=True, kw_only=True)
class Soaked:
    """All that was seen; `seconds` and `scrapes` are of the time in which the job ran, without its first sixth.

    `found_s` is from the end of the first faulty step to the incident in the API.
    """

    plan: JobPlan
    seconds: list[Second] = field(default_factory=list)
    scrapes: list[ScrapeSample] = field(default_factory=list)
    fleet: FleetCounts = field(default_factory=FleetCounts)
    fleet_cores: float = 0.0
    samples: Samples = field(default_factory=dict)
    stored: Stored | None = None
    found_step: int | None = None
    found_ranks: tuple[int, ...] = ()
    found_s: float | None = None
    is_drained: bool = False
    outage_s: float = 0.0
    """How long the broker was away in the midst."""


def cores(seconds: Sequence[Second], process: str) -> list[float]:
    """Return the share of a core that a process took in each second."""
    usages: list[tuple[float, Usage]] = [(second.at_s, getattr(second, process)) for second in seconds]
    return [(after.cpu_s - before.cpu_s) / (at_s - before_s) for (before_s, before), (at_s, after) in pairwise(usages)]


def growth(values: Sequence[float]) -> float:
    """Return the mean of the last third over that of the first."""
    third = max(1, len(values) // 3)
    return mean(values[-third:]) / mean(values[:third])


def checks_of(soaked: Soaked) -> list[Check]:
    """Return the table."""
    return [*_delivery_checks(soaked), *_finding_checks(soaked), *_cost_checks(soaked)]


def keeps_up(soaked: Soaked) -> bool:
    """Whether the coordinator was never far behind the job, and nothing was lost."""
    is_near = bool(soaked.scrapes) and all(sample.behind_steps <= BEHIND_STEPS_MAX for sample in soaked.scrapes)
    return is_near and not has_missed(_delivery_checks(soaked))


def _delivery_checks(soaked: Soaked) -> list[Check]:
    records, samples = soaked.fleet.records, soaked.samples
    expected = soaked.plan.ranks * soaked.plan.steps
    stored = soaked.stored
    lost = total(samples, f"{_PREFIX}_records_lost_total")
    rejected = total(samples, f"{_PREFIX}_records_rejected_total")
    frames = {
        verdict: int(total(samples, f"{_PREFIX}_frames_total", f'"{verdict}"'))
        for verdict in ("taken", "duplicate", "gap", "refused")
    }
    checks = [
        equal("records sent by the nodes", records, expected),
        equal("records evaluated (metric)", int(total(samples, f"{_PREFIX}_records_evaluated_total")), records),
        equal("records lost, all reasons (metric)", int(lost), 0),
        equal("records rejected, all reasons (metric)", int(rejected), 0),
        Check(
            "frames taken / duplicate / behind a gap",
            f"{frames['taken']:,} / {frames['duplicate']:,} / {frames['gap']:,}",
        ),
        equal("frames of one node too many", frames["refused"], 0),
        Check("all committed and freed on the nodes", "yes" if soaked.is_drained else "no", "yes", soaked.is_drained),
    ]
    if stored is not None:
        checks += [
            equal("records settled (ledger)", stored.settled, records),
            equal("records evaluated (store)", stored.evaluated.get(RUN, 0), records),
            Check("records lost (ledger)", str(stored.lost or "none"), "none", not stored.lost),
            equal("store", stored.integrity, "ok"),
        ]
    return checks


def _finding_checks(soaked: Soaked) -> list[Check]:
    plan, stored = soaked.plan, soaked.stored
    if plan.fault_step >= plan.steps:
        return []
    found = None if soaked.found_step is None else soaked.found_step - plan.fault_step
    ranks = soaked.found_ranks
    incidents = 0 if stored is None else len(stored.incidents)
    late = "never" if soaked.found_s is None else f"{soaked.found_s:.1f} s"
    return [
        Check("ranks named", str(list(ranks)), f"[{plan.slow_rank}]", ranks == (plan.slow_rank,)),
        Check("incidents in all", str(incidents), "1", incidents == 1),
        Check(
            "steps from the fault to its anomaly",
            "never" if found is None else str(found),
            f"<= {FOUND_STEPS_MAX}",
            found is not None and 0 <= found <= FOUND_STEPS_MAX,
        ),
        Check("end of the first faulty step to the API", late),
    ]


def _cost_checks(soaked: Soaked) -> list[Check]:
    steady = soaked.seconds
    if len(steady) < _SECONDS_MIN or not soaked.scrapes:
        return [Check("seconds measured", str(len(steady)), f">= {_SECONDS_MIN}", is_met=False)]
    own, broker = cores(steady, "coordinator"), cores(steady, "broker")
    resident = [second.coordinator.resident_bytes for second in steady]
    budget = next((limit for nodes, limit in sorted(BUDGET_CORES.items()) if soaked.plan.nodes <= nodes), None)
    behind = sorted(sample.behind_steps for sample in soaked.scrapes)
    unsettled = [sample.unsettled for sample in soaked.scrapes]
    references = [sample.reference_cpu_s for sample in soaked.scrapes]
    seconds = steady[-1].at_s - steady[0].at_s
    return [
        Check("seconds measured", f"{seconds:.0f}"),
        Check(
            "coordinator, cores: mean",
            f"{mean(own):.3f}",
            "" if budget is None else f"<= {budget:g}",
            None if budget is None else mean(own) <= budget,
        ),
        Check("coordinator, cores: 95th percentile / max", f"{quantiles(own, n=20)[-1]:.3f} / {max(own):.3f}"),
        Check(
            "coordinator, ready to run without a core",
            f"{(steady[-1].coordinator.waited_s - steady[0].coordinator.waited_s) / seconds:.0%} of the time",
        ),
        Check("coordinator, cores: last third / first", *_flat(soaked, growth(own), FLAT_CPU_MAX)),
        Check("coordinator, MB resident: last / max", f"{resident[-1] / 1e6:.0f} / {max(resident) / 1e6:.0f}"),
        Check("coordinator, MB resident: last third / first", *_flat(soaked, growth(resident), FLAT_MEMORY_MAX)),
        Check("broker, cores: mean; MB resident", f"{mean(broker):.3f}; {steady[-1].broker.resident_bytes / 1e6:.0f}"),
        Check(
            "steps behind the job: median / max",
            f"{behind[len(behind) // 2]} / {behind[-1]}",
            *(("", None) if soaked.outage_s else (f"<= {BEHIND_STEPS_MAX}", behind[-1] <= BEHIND_STEPS_MAX)),
        ),
        Check("frames unsettled: last / max", f"{unsettled[-1]} / {max(unsettled)}"),
        Check(
            "nodes: connections dropped / frames resent",
            f"{soaked.fleet.drops} / {soaked.fleet.frames_resent}",
        ),
        Check("a fixed computation, CPU: median over least", f"{median(references) / min(references):.2f}"),
        Check("nodes, cores; latest batch", f"{soaked.fleet_cores:.2f}; {soaked.fleet.late_s_max:.2f} s late"),
    ]


def _flat(soaked: Soaked, ratio: float, limit: float) -> tuple[str, str, bool | None]:
    """Return what a ratio is, and its limit; where the broker was away nothing is flat."""
    if soaked.outage_s:
        return f"{ratio:.2f}", "", None
    return f"{ratio:.2f}", f"<= {limit:g}", ratio <= limit


_COLUMNS = (
    *("nodes", "keeps up", "cores", "max", "broker", "MB", "behind", "unsettled", "gaps", "resent", "lost"),
    *("rejected", "detect ms", "late s"),
)


def ladder_head() -> str:
    """Return the head of `ladder_line`."""
    return "  ".join(f"{column:>9}" for column in _COLUMNS)


def ladder_line(soaked: Soaked) -> str:
    """Return a soak in one line: where it breaks, one of these figures shows it."""
    own, broker, samples = cores(soaked.seconds, "coordinator"), cores(soaked.seconds, "broker"), soaked.samples
    gaps = total(samples, f"{_PREFIX}_frames_total", '"gap"')
    lost = total(samples, f"{_PREFIX}_records_lost_total")
    rejected = total(samples, f"{_PREFIX}_records_rejected_total")
    detect_s = total(samples, f"{_PREFIX}_detection_time_seconds_total") / (
        total(samples, f"{_PREFIX}_detections_total") or 1
    )
    cells = (
        f"{soaked.plan.nodes:,}",
        "yes" if keeps_up(soaked) else "no",
        f"{mean(own):.3f}",
        f"{max(own):.2f}",
        f"{mean(broker):.2f}",
        f"{soaked.seconds[-1].coordinator.resident_bytes / 1e6:.0f}",
        f"{max(sample.behind_steps for sample in soaked.scrapes)}",
        f"{max(sample.unsettled for sample in soaked.scrapes):,}",
        f"{gaps:,.0f}",
        f"{soaked.fleet.frames_resent:,}",
        f"{lost:,.0f}",
        f"{rejected:,.0f}",
        f"{1e3 * detect_s:.1f}",
        f"{soaked.fleet.late_s_max:.2f}",
    )
    return "  ".join(f"{cell:>9}" for cell in cells)
