"""The answer's form."""

from dataclasses import dataclass

INSUFFICIENT = "insufficient evidence"
"""The `function` of a diagnosis that found none."""

HIGH, MEDIUM, LOW = ("high", "medium", "low")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to do.

    `predicted_gain_ratio` is the share of today's step that would go, None where it is unknown. `source` states
    where the match of cause and remedy comes from.
    """

    suggestion: str
    how: str
    predicted_gain_ratio: float | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Where a suspect's excess stays.

    `function` is a frame as `file(line): function`, a collective, a loader, "automatic garbage collection", or
    `INSUFFICIENT`; `operator` the deepest operator or builtin below it that holds the excess, or empty; `path` the
    names from the root of the call tree down to there. `evidence` are sentences with numbers and units. `root_cause` is
    a key of the remedies and `bottleneck` its class in Hermes' hierarchy, both empty where nothing explains the excess.
    `held_ns` is what function or root cause hold of the excess, ns a step, None where that is not known.
    """

    function: str
    operator: str
    path: list[str]
    evidence: list[str]
    advice: list[Advice]
    confidence: str
    root_cause: str = ""
    bottleneck: str = ""
    held_ns: int | None = None
