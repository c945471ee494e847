"""The result of a diagnosis."""

from dataclasses import dataclass

from lockstep.contracts.finding import Advice

INSUFFICIENT = "insufficient evidence"
"""The `function` of a diagnosis that found none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Where a suspect's excess is spent.

    `function` is a frame as `file(line): function`, a collective, a loader, "automatic garbage collection", or
    `INSUFFICIENT`; `operator` is the deepest operator or builtin below it that holds the excess, or empty; `path` are
    the names from the root of the call tree down to it. `evidence` are sentences with numbers and units. `root_cause`
    is a key of the remedies and `bottleneck` its class in Hermes' hierarchy, both empty if nothing explains the excess.
    `held_ns` is how much of the excess function or root cause hold, ns per step, None if unknown.
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
