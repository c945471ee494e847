"""What other exporters of the node publish of its devices and host, kept for minutes as evidence of incidents."""

from exporter.neighbours.reading import NeighbourReader, NeighbourStatus

__all__ = ["NeighbourReader", "NeighbourStatus"]
