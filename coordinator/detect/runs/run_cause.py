"""Why a whole run is slower: its own work (data, compute, host, gc), time off the CPU, communication, or unknown.

Pure. Compares seconds per step by part, before and now, each the median over the ranks of the stage that sets the pace.
What takes longer on all ranks is on the critical path, so a part's growth is compared with the growth of the step.
Waiting grows with anything that grows on a few ranks, so communication is the cause only if neither own work nor the
slowest ranks explain a large enough share of the growth.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.detect.anomalies import LINK, UNKNOWN
from coordinator.detect.ranks.components import COMPUTE, GC, SELF, SLEEPS, WAIT, is_asleep, slowed_alike
from coordinator.intake.views import OFF_CPU, VIEWS
from lockstep.contracts.records import COMPUTE_PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.settings.policy import CausePolicy

HIGH, MEDIUM, LOW = "high", "medium", "low"
_HIGH_SHARE, _MEDIUM_SHARE = 0.6, 0.4  # of the step's growth; a pipeline's bubble grows with its stages, up to as much
_HIGH_SECOND, _MEDIUM_SECOND = 0.5, 0.8  # of the largest growth, up to which the second largest may come
_TITLES = {OFF_CPU: "off the CPU"}
_LISTED_SHARE = 0.05  # of the step's growth; smaller parts are not listed


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCause:
    """Cause of a slower run: confidence is high, medium or low; `growth` is seconds per step by part, largest first.

    `share` is the part of the step's growth (`step_growth_seconds`) that the cause explains. `views` is the growth of
    the phases of compute and of time off the CPU, which the parts already contain. `evidence` states `numbers` as text.
    """

    cause: str
    confidence: str
    share: float
    step_growth_seconds: float
    growth: dict[str, float]
    views: dict[str, float]
    evidence: tuple[str, ...]

    @property
    def numbers(self) -> dict[str, float]:
        """The growth of the step and of each part, seconds, and the share explained."""
        parts = {f"{name}_growth_seconds": value for name, value in (self.growth | self.views).items()}
        return {"step_growth_seconds": self.step_growth_seconds, "explained_share": self.share, **parts}


def explain_run(
    before: "Mapping[str, float]",
    now: "Mapping[str, float]",
    policy: "CausePolicy",
    *,
    few_ranks_seconds: float = 0.0,
    longest_growth: "Mapping[str, float] | None" = None,
    unsynchronised_gc_seconds: float = 0.0,
) -> RunCause:
    """Explain why steps are longer now than before.

    `before` and `now` hold seconds by part (`components.PARTS`); parts missing in either are left out.
    `few_ranks_seconds` is the excess of the slowest ranks over their peers, `unsynchronised_gc_seconds` the time per
    step for which garbage collections on any rank hold up the others: both appear as waiting on all other ranks, and
    are no fault of a link. The same holds for the growth of the rank with most own work, which may be another one in
    each step: `longest_growth` by part.
    """
    most = longest_growth or {}
    growth = {name: now[name] - before[name] for name in now if name in before}
    views = {name: growth.pop(name) for name in VIEWS if name in growth}
    total = _step_growth(growth)
    measured = {name: value for name, value in growth.items() if name not in (SELF, WAIT)}
    own = slowed_alike(measured, before, views.get(OFF_CPU))
    if unsynchronised_gc_seconds > 0:
        measured[GC] = measured.get(GC, 0.0) + unsynchronised_gc_seconds
        own[GC] = own.get(GC, 0.0) + unsynchronised_gc_seconds
    measured = dict(sorted(measured.items(), key=lambda item: -item[1]))
    own = dict(sorted(own.items(), key=lambda item: -item[1]))
    few_ranks_seconds = max(few_ranks_seconds, most.get(SELF, 0.0) - growth.get(SELF, 0.0), 0.0)
    waiting = growth.get(WAIT, 0.0) - few_ranks_seconds - max(unsynchronised_gc_seconds, 0.0)
    cause, explained, rest = UNKNOWN, 0.0, total
    largest = next(iter(own), UNKNOWN)
    turns = slowed_alike({name: most[name] for name in own if name in most}, before, most.get(OFF_CPU))
    by_turns = max(own.values(), default=0.0) < policy.run_share_min * total > waiting and bool(turns)
    grown = turns if by_turns else own  # by the longest rank of each step, or by all
    largest = max(grown, key=lambda name: grown[name], default=largest)
    if total > 0 and grown and grown[largest] >= policy.run_share_min * total:
        cause, explained = largest, grown[largest]
        if largest in SLEEPS and is_asleep(views.get(OFF_CPU), explained, before, policy):
            cause = OFF_CPU
        rest = max((value for name, value in grown.items() if name != largest), default=0.0)
    elif total > 0 and waiting >= policy.run_share_min * total:
        cause, explained, rest = LINK, waiting, max(own.values(), default=0.0)
    share = min(explained / total, 1.0) if total > 0 else 0.0
    turn = f"{largest}: {explained * 1e3:.1f} ms a step more on the rank with most own work, another one in each step"
    parts = measured | ({WAIT: growth[WAIT]} if WAIT in growth else {})
    return RunCause(
        cause=cause,
        confidence=_confidence(share, max(rest, 0.0) / explained) if cause != UNKNOWN else LOW,
        share=share,
        step_growth_seconds=total,
        growth=parts,
        views=views,
        evidence=(
            *([turn] if by_turns and cause != UNKNOWN else []),
            *_lines(parts, before, now, total),
            *_lines(_shown(views, largest), before, now, total),
        ),
    )


def _shown(views: "Mapping[str, float]", largest: str) -> dict[str, float]:
    """Return the views that explain the part that grew most, by display name."""
    phases = COMPUTE_PHASES if largest == COMPUTE else ()
    return {name: views[name] for name in (*phases, OFF_CPU) if name in views}


def _step_growth(growth: "Mapping[str, float]") -> float:
    """Return the growth of the step: own work and waiting add up to it, if both were measured."""
    if SELF in growth and WAIT in growth:
        return growth[SELF] + growth[WAIT]
    return sum(max(0.0, value) for name, value in growth.items() if name != SELF)


def _confidence(share: float, second: float) -> str:
    if share >= _HIGH_SHARE and second <= _HIGH_SECOND:
        return HIGH
    return MEDIUM if share >= _MEDIUM_SHARE and second <= _MEDIUM_SECOND else LOW


def _lines(
    parts: "Mapping[str, float]", before: "Mapping[str, float]", now: "Mapping[str, float]", total: float
) -> list[str]:
    listed = {name: seconds for name, seconds in parts.items() if total > 0 and seconds > _LISTED_SHARE * total}
    return [
        f"{_TITLES.get(name, name)}: {before[name] * 1e3:.1f} ms a step before, {now[name] * 1e3:.1f} ms now, "
        f"{min(seconds / total, 1.0):.0%} of what the step grew by"
        for name, seconds in sorted(listed.items(), key=lambda item: -item[1])
        if name in now and name in before
    ]
