"""Behaviour patterns of functions: how long each is on the critical path, and how it used its hardware meanwhile.

PerfTracker, section 4.2. The entry point is `summarise_patterns`; `path` finds the critical path by class priority
(with `call_stacks`, `exposure` and `functions`), `critical_duration` finds the part of an execution that used the
resource in `samples`, `table` is the stored form of a summary. `lockstep.diagnosis.localisation` compares the summaries
of all ranks.
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
