"""What a rule found in captured traces."""

from dataclasses import dataclass
from typing import Annotated

from lockstep.contracts.bounds import Count, DurationNs, Length, Name, Range, Rank
from lockstep.contracts.limits import SUMMARY_ENTRIES_MAX, SUMMARY_MAX_BYTES, WORLD_SIZE_MAX

PARALLEL = "parallel"
IO = "io"
CPU = "cpu"
COMPUTE = "compute"
COMMUNICATION = "communication"
BOTTLENECKS = (PARALLEL, IO, CPU, COMPUTE, COMMUNICATION)
"""Hermes' hierarchy (section 4.3, Table 4): between components first, then inside one."""


HIGH, MEDIUM, LOW = ("high", "medium", "low")
SummaryText = Annotated[str, Length(SUMMARY_MAX_BYTES)]
"""A text whose length the size of its summary bounds."""
SummaryTexts = Annotated[tuple[SummaryText, ...], Length(SUMMARY_ENTRIES_MAX)]
Gain = Annotated[float, Range(0.0, 1.0)]
_SEVERAL_STEPS = 3
"""Of two steps neither shows which of them is the usual one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to do.

    `predicted_gain_ratio` is the share of today's step that would go, None where it is unknown. `source` states
    where the match of cause and remedy comes from.
    """

    suggestion: SummaryText
    how: SummaryText
    predicted_gain_ratio: Gain | None
    source: SummaryText


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause, where it is, the numbers behind it and what to do.

    `cause` is a key of the remedies (`remedies.toml`). `subject` is the function, operator, collective or domain that
    it is about, empty if the whole rank. `lost_ns` is what it costs in the window, on the slowest of `ranks`, None
    where it is unknown; `predicted_gain_ratio` the share of the window that the best remedy would give back.
    `fused_ns` is what fusing collectives with their neighbours would save, None where it is unknown. `context` is what
    remedies depend on besides the subject (`when` and `unless` of `remedies.toml`). `steps` is (in how many it occurs,
    of how many), None where steps are not marked or the rule looks at the window as a whole.
    """

    bottleneck: Name
    cause: Name
    ranks: Annotated[tuple[Rank, ...], Length(WORLD_SIZE_MAX)]
    evidence: SummaryTexts
    subject: SummaryText = ""
    lost_ns: DurationNs | None = None
    advice: Annotated[tuple[Advice, ...], Length(SUMMARY_ENTRIES_MAX)] = ()
    predicted_gain_ratio: Gain | None = None
    confidence: Name = HIGH
    fused_ns: DurationNs | None = None
    context: SummaryTexts = ()
    steps: tuple[Count, Count] | None = None

    @property
    def is_once(self) -> bool:
        """Whether it occurs in one of several steps: fixing it does not shorten the others."""
        return self.steps is not None and self.steps[0] <= 1 and self.steps[1] >= _SEVERAL_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class NotJudged:
    """A rule that could not answer, and why: insufficient evidence is reported, never passed over."""

    rule: str
    reason: str
