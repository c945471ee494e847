"""Stores, for minutes, what the node's other exporters publish and its Inspectors time, as evidence of incidents."""

from exporter.neighbours.reading import NeighbourReader, NeighbourStatus

__all__ = ["NeighbourReader", "NeighbourStatus"]
