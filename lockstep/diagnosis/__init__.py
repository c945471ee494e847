"""Cause, function and advice from trace summaries: `explain` is the door.

Imports contracts and trace only. `excess` compares call trees, `communication` collectives, `advice_table` is the
cause -> remedy data, `diagnose` puts them together.
"""

from lockstep.diagnosis.diagnose import diagnose
from lockstep.diagnosis.explain import explain
from lockstep.diagnosis.verdict import INSUFFICIENT, Advice, Diagnosis

__all__ = ["INSUFFICIENT", "Advice", "Diagnosis", "diagnose", "explain"]
