"""Reads what the profiler plugins NCCL Inspector and RCCL Inspector write of each collective, and sums it by rank."""

from exporter.inspector.accounts import OPERATION_VALUES, CollectiveTotals, InspectorView
from exporter.inspector.domain_times import times_by_kind
from exporter.inspector.watch import InspectorStatus, InspectorWatch

__all__ = [
    "OPERATION_VALUES",
    "CollectiveTotals",
    "InspectorStatus",
    "InspectorView",
    "InspectorWatch",
    "times_by_kind",
]
