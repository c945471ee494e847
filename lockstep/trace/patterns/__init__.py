"""Behaviour patterns of functions: how long each is on the critical path, and how it used its hardware meanwhile.

PerfTracker, section 4.2. `summarise_patterns` is the door; `path` finds the critical path by class priority (with
`stacks`, `exposure` and `functions`), `critical_duration` what of an execution used the resource in `samples`, `table`
how a summary travels. What is done with the summaries of all ranks: `lockstep.diagnosis.localisation`.
"""

from lockstep.trace.patterns.pattern import FunctionClass, Pattern, PatternSummary
from lockstep.trace.patterns.samples import Resource, Samples
from lockstep.trace.patterns.summarise import summarise_patterns
from lockstep.trace.patterns.table import patterns_of, table_of

__all__ = [
    "FunctionClass",
    "Pattern",
    "PatternSummary",
    "Resource",
    "Samples",
    "patterns_of",
    "summarise_patterns",
    "table_of",
]
