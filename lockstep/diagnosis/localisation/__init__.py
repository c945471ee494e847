"""Which functions behave abnormally on which workers, and how: PerfTracker, section 4.3.

`gather` combines the summaries of all ranks (`matrix`). `localise` evaluates them by the robust rule (`robust`,
followed by a search inside communication groups, `outlier_ranks`) or by the published one (`paper_rule`, `far_peers`),
against `expected` ranges and `limits`. `findings_of` converts the result (`abnormal`) into findings of the diagnosis.
"""

from lockstep.diagnosis.localisation.abnormal import AbnormalFunction, Difference, Localisation, ReferenceKind
from lockstep.diagnosis.localisation.findings import findings_of
from lockstep.diagnosis.localisation.localise import Rule, localise
from lockstep.diagnosis.localisation.matrix import Function, PatternMatrix, gather
from lockstep.diagnosis.localisation.outlier_ranks import NO_GROUP, OutlierBy

__all__ = [
    "NO_GROUP",
    "AbnormalFunction",
    "Difference",
    "Function",
    "Localisation",
    "OutlierBy",
    "PatternMatrix",
    "ReferenceKind",
    "Rule",
    "findings_of",
    "gather",
    "localise",
]
