"""A finding: what a diagnosis rule found in captured traces."""

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
"""The hierarchy of Hermes (section 4.3, Table 4): between components first, then within one."""


HIGH, MEDIUM, LOW = ("high", "medium", "low")
SummaryText = Annotated[str, Length(SUMMARY_MAX_BYTES)]
"""A text whose length is bounded by the size of its summary."""
SummaryTexts = Annotated[tuple[SummaryText, ...], Length(SUMMARY_ENTRIES_MAX)]
Gain = Annotated[float, Range(0.0, 1.0)]
_SEVERAL_STEPS = 3
"""Two steps do not show which of them is the usual one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One recommended action.

    `predicted_gain_ratio` is the share of the current step that it would save, None if unknown. `source` is where the
    match of cause and remedy comes from.
    """

    suggestion: SummaryText
    how: SummaryText
    predicted_gain_ratio: Gain | None
    source: SummaryText


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause, its location, the numbers behind it, and what to do.

    `cause` is a key of the remedies (`remedies.toml`). `subject` is the function, operator, collective or domain
    concerned, empty for the whole rank. `lost_ns` is its cost in the window on the slowest of `ranks`, None if unknown.
    `predicted_gain_ratio` is the share of the window that the best remedy would save. `fused_ns` is what fusing
    collectives with their neighbours would save, None if unknown. `context` lists what remedies depend on apart from
    the subject (`when` and `unless` of `remedies.toml`). `steps` is (number of steps with it, number of steps), None if
    steps are not marked or the rule evaluates the window as a whole.
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
        """Whether it occurs in only one of several steps: fixing it does not shorten the others."""
        return self.steps is not None and self.steps[0] <= 1 and self.steps[1] >= _SEVERAL_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class NotEvaluated:
    """A rule that could not be evaluated, and why: insufficient evidence is reported, never ignored."""

    rule: str
    reason: str
