"""The memory of this node's ranks: read from the kernel on each tick, and tested for growth from step to step."""

from exporter.memory.memory_watch import MemoryWatch, RankMemoryView
from exporter.memory.reading import MemoryHeadroom

__all__ = ["MemoryHeadroom", "MemoryWatch", "RankMemoryView"]
