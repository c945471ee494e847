"""What other exporters of the node publish, and what its Inspectors time: kept for minutes as evidence of incidents."""

from exporter.neighbours.reading import NeighbourReader, NeighbourStatus

__all__ = ["NeighbourReader", "NeighbourStatus"]
