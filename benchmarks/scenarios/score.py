"""What was named against the truth of a scenario.

A thing is a rank, a group, a node or the job. Naming the right thing once its fault has begun is a find; a thing that
only feels the fault (the job that a slow rank holds back) is a symptom and counts neither way; everything else is
wrong, before the fault just as in a healthy job.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.scenarios.job import HANG, LINK, PHASES
from benchmarks.scenarios.recording import RANKS_PER_NODE
from coordinator.detect.anomalies import FLUCTUATION, SLOW_LINK, UNKNOWN
from coordinator.record.backtest import to_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.scenarios.job import Fault, Scenario
    from coordinator.record.backtest import ReplayResult
    from lockstep.contracts.domains import Topology

Thing = tuple[str, object]
COMPUTE = "compute"
JOB: Thing = ("job", "")
_NOTES_MAX = 8  # a rule that names everybody needs no list of them


@dataclass(frozen=True, slots=True)
class Named:
    """A thing named after a row of the recording; `cause` is None for a method that names none."""

    row: int
    thing: Thing
    cause: str | None = None
    page: str = ""
    """The incident that it was named in: things of one page are one false alarm."""


@dataclass(slots=True, kw_only=True)
class Score:
    """Sums over runs: things wanted, found, wrongly named (ranks among them), pages and rows without a fault."""

    wanted: int = 0
    found: int = 0
    wrong: int = 0
    wrong_ranks: int = 0
    alarms_in_health: int = 0
    healthy_rows: int = 0
    latency_rows: list[int] = field(default_factory=list)
    causes_named: int = 0
    causes_right: int = 0
    notes: list[str] = field(default_factory=list)
    """What was wrong or missed in one run, the first `_NOTES_MAX` of it; not summed."""

    def add(self, other: "Score") -> None:
        """Add another run's."""
        for name in ("wanted", "found", "wrong", "wrong_ranks", "alarms_in_health", "healthy_rows", "latency_rows"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.causes_named += other.causes_named
        self.causes_right += other.causes_right


def named_by(replayed: "ReplayResult", scenario: "Scenario") -> "Iterator[Named]":
    """Yield what the incidents of a replay name, each thing of an incident once, with the cause it ended with."""
    steps = [row - scenario.rolled_back(row) for row in range(scenario.steps)]
    seen: set[tuple[str, Thing]] = set()
    row = 0
    for change in replayed.changes:
        incident = change.incident
        last = to_line(replayed.incidents[incident.id], ranks_per_node=RANKS_PER_NODE)
        step = incident.detected_step if change.step < 0 else change.step
        row = next((at for at in range(row, len(steps)) if steps[at] == step), row)  # changes are reported in order
        if last["cause"] == "imbalance":  # reported as information
            continue
        cause = HANG if incident.kind == HANG and last["cause"] == UNKNOWN else last["cause"]
        for thing in _things(incident.kind, incident.ranks, last["scope"]):
            if (incident.id, thing) not in seen:
                seen.add((incident.id, thing))
                yield Named(row, thing, cause, incident.id)


def _things(kind: str, ranks: tuple[int, ...], scope: str) -> list[Thing]:
    if scope == "job" or kind == FLUCTUATION:  # reported as the job's before its culprit was clear
        return [JOB]
    if scope == "group":
        return [("group", tuple(sorted(ranks)))]
    if scope == "node" and kind == SLOW_LINK:
        return [("node", ranks[0] // RANKS_PER_NODE)]
    return [("rank", rank) for rank in ranks]


def score(scenario: "Scenario", topology: "Topology", named: "Iterable[Named]") -> Score:
    """Return the score of one run."""
    wanted = {thing: fault for fault in scenario.faults for thing in _wanted(fault, topology)}
    begin = min((fault.begin for fault in scenario.faults), default=scenario.steps)
    result = Score(wanted=len(wanted), healthy_rows=begin)
    first: dict[Thing, Named] = {}
    pages: set[object] = set()
    for each in named:
        fault = wanted.get(each.thing)
        if fault is not None and each.row >= fault.begin:
            first.setdefault(each.thing, each)
        elif each.row < begin or not _is_symptom(each.thing, scenario):
            result.wrong += 1
            if len(result.notes) < _NOTES_MAX:
                result.notes.append(f"wrong {each.thing} at row {each.row}, cause {each.cause}")
            result.wrong_ranks += each.thing[0] == "rank"
            if each.row < begin:
                pages.add(each.page or each)
    result.alarms_in_health = len(pages)
    missing = [thing for thing in wanted if thing not in first]
    result.notes += [
        f"missed {thing}, {wanted[thing].cause} from row {wanted[thing].begin}" for thing in missing[:_NOTES_MAX]
    ]
    result.found = len(first)
    for thing, each in first.items():
        result.latency_rows.append(each.row - wanted[thing].begin + 1)
        if each.cause is not None:
            result.causes_named += 1
            cause = wanted[thing].cause
            result.causes_right += each.cause == (COMPUTE if cause in PHASES else cause)
    return result


def _wanted(fault: "Fault", topology: "Topology") -> list[Thing]:
    if not fault.wanted:
        return []
    if fault.wanted == "rank":
        return [("rank", rank) for rank in fault.ranks]
    if fault.wanted == "node":
        return [("node", fault.ranks[0] // RANKS_PER_NODE)]
    if fault.wanted == "job":
        return [JOB]
    return [
        ("group", domain.ranks)
        for domain in topology.domains
        if domain.kind in fault.kinds and fault.ranks[0] in domain.ranks
    ]


def _is_symptom(thing: Thing, scenario: "Scenario") -> bool:
    """Whether naming a thing adds nothing, for the fault is only felt there."""
    if not scenario.faults:
        return False
    if thing == JOB:
        return True
    wide = [fault for fault in scenario.faults if fault.cause == LINK and fault.wanted in ("node", "job")]
    kind, members = thing
    return kind == "group" and any(set(fault.ranks).intersection(members) for fault in wide)  # type: ignore[arg-type]
