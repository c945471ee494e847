"""Causes on the host: the loader, compilation, dispatch, synchronising calls, garbage collection, contention.

`view_host` prepares a rank's columns once. Each rule `evaluate_*` is a pure function of that view and of further
inputs, and returns findings or `NotEvaluated`. `evaluate_host` runs all rules. Limits are data in `thresholds`.
"""

from lockstep.diagnosis.host_causes.collection import Collection
from lockstep.diagnosis.host_causes.data import LoaderSamples
from lockstep.diagnosis.host_causes.host_rules import HostCauses, evaluate_host
from lockstep.diagnosis.host_causes.view import HostView, view_host

__all__ = [
    "Collection",
    "HostCauses",
    "HostView",
    "LoaderSamples",
    "evaluate_host",
    "view_host",
]
