"""Incident lines, as `lockstep replay --json` prints them, against the truth of a case.

Nothing but the lines is read: what an operator would see. A thing named is a rank, a node, a group, the job, or the
rank that has not arrived. The right thing after its fault began is a find; the job, while something else is wrong, and
the groups that a slow node or network passes through are symptoms; all else is wrong. Lines about imbalance are
information.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from benchmarks.holdout.job import GROUP, HANG, JOB, LINK, NODE, RANK, RANKS_PER_NODE, Case, Layout, Truth

if TYPE_CHECKING:
    from numpy.typing import NDArray

Thing = tuple[str, tuple[int, ...]]
_SHOWN = 4  # things of a line that a note spells out


@dataclass(slots=True)
class Tally:
    """Sums over runs; `notes` list what was wrong or missed, one line each."""

    wanted: int = 0
    found: int = 0
    wrong_ranks: int = 0
    wrong_others: int = 0
    false_in_health: int = 0
    healthy_steps: int = 0
    causes_right: int = 0
    latency_steps: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add another run's."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


def things_of(line: Mapping[str, Any]) -> list[Thing]:
    """Return what a line names."""
    ranks = tuple(sorted(line["ranks"]))
    scope = line["scope"]
    if scope == JOB:
        return [(JOB, ())]
    if scope == NODE and line["kind"] == "slow_link":
        return [(NODE, (node,)) for node in sorted({rank // RANKS_PER_NODE for rank in ranks})]
    if scope in (RANK, NODE):
        return [(RANK, (rank,)) for rank in ranks]
    return [(GROUP, ranks)]


def things_wanted(truth: Truth, layout: Layout) -> list[Thing]:
    """Return what must be named for a fault."""
    if truth.scope in (RANK, HANG):
        return [(RANK, (rank,)) for rank in truth.ranks]
    if truth.scope == NODE:
        return [(NODE, (truth.ranks[0] // RANKS_PER_NODE,))]
    if truth.scope == JOB:
        return [(JOB, ())]
    return [
        (GROUP, tuple(group))
        for kind in truth.kinds
        for group in layout.groups[kind].tolist()
        if set(truth.ranks) <= set(group)
    ]


def tally(case: Case, layout: Layout, step_W: "NDArray[Any]", lines: Iterable[Mapping[str, Any]]) -> Tally:  # noqa: N803
    """Return the score of one run; `step_W` is the step index of each row."""
    wanted = {thing: truth for truth in case.truths for thing in things_wanted(truth, layout)}
    begin = min((truth.begin for truth in case.truths), default=case.rows)
    begin_step = int(step_W[begin]) if case.truths else int(step_W.max()) + 1
    result = Tally(wanted=len(wanted), healthy_steps=begin)
    first: dict[Thing, Mapping[str, Any]] = {}
    for line in lines:
        if line["cause"] == "imbalance":
            continue
        early = line["detected_step"] < begin_step
        wrong = []
        for thing in things_of(line):
            if thing in wanted and not early:
                first.setdefault(thing, line)
            elif early or not _is_symptom(thing, case):
                wrong.append(thing)
        result.wrong_ranks += sum(thing[0] == RANK for thing in wrong)
        result.wrong_others += sum(thing[0] != RANK for thing in wrong)
        result.false_in_health += early
        if wrong:
            shown = ", ".join(f"{kind} {list(which)}" for kind, which in wrong[:_SHOWN])
            more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            what = f"{line['kind']}/{line['cause']} at step {line['detected_step']}"
            result.notes.append(f"{_where(case)}: WRONG {what}: {shown}{more}")
    result.found = len(first)
    for thing, truth in wanted.items():
        if thing not in first:
            result.notes.append(f"{_where(case)}: missed {thing} {truth.cause} {truth.ratio} from {truth.begin}")
            continue
        result.latency_steps.append(first[thing]["detected_step"] - int(step_W[truth.begin]) + 1)
        right = truth.scope == HANG or first[thing]["cause"] == truth.cause
        result.causes_right += right
        if not right:
            result.notes.append(f"{_where(case)}: cause {first[thing]['cause']} of {thing}, is {truth.cause}")
    return result


def _where(case: Case) -> str:
    return f"{case.name}, {case.degrees}, seed {case.seed}"


def _is_symptom(thing: Thing, case: Case) -> bool:
    if not case.truths:
        return False
    if thing[0] == JOB:
        return True
    wide = [t for t in case.truths if t.cause == LINK and t.scope in (NODE, JOB)]
    return thing[0] == GROUP and any(set(t.ranks) & set(thing[1]) for t in wide)
