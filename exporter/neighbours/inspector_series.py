"""The Inspector's sums as series that a node stores for evidence; the names are those of its `/metrics`. Pure."""

from collections.abc import Mapping

from exporter.host_watch.host_reading import Key
from exporter.inspector import OPERATION_VALUES, InspectorView
from exporter.neighbours.sample_history import Labels
from lockstep.contracts.neighbour_series import INSPECTOR_METRICS

InspectorSums = Mapping[Key, InspectorView]
"""By run and rank, and by communicator and operation."""


def inspector_samples(sums: InspectorSums, instance: str) -> dict[Labels, float]:
    """Return the value of each series; those of one rank, communicator and operation are adjacent."""
    return {
        (
            ("__name__", name),
            ("communicator", communicator),
            ("instance", instance),
            ("operation", operation),
            ("rank", str(rank)),
            ("run", run),
        ): OPERATION_VALUES[name](totals)
        for (run, rank), view in sums.items()
        for (communicator, operation), totals in view.items()
        for name in INSPECTOR_METRICS
    }
