"""What an object has learnt, as arrays by name, so that it outlives a restart of the coordinator.

Pure. What comes back from outside is taken only if it fits, and an object takes all of its figures or none.
"""

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Memory = dict[str, NDArray[np.generic]]


class Learner:
    """An object whose memory is its attributes `LEARNT`: numbers, deques of numbers, and learners.

    Their names, without leading underscores, are those of the arrays.
    """

    __slots__ = ()

    LEARNT: ClassVar[tuple[str, ...]] = ()

    def memory(self) -> "Memory":
        """Return what has been learnt: an array without dimensions of a number, one with one of a deque."""
        memory: Memory = {}
        for name in self.LEARNT:
            value, kept = getattr(self, name), name.strip("_")
            if isinstance(value, Learner):
                memory |= joined({kept: value.memory()})
            else:
                memory[kept] = np.array(value, dtype=np.float64)
        return memory

    def recall(self, memory: "Mapping[str, NDArray[np.generic]]") -> None:
        """Take back what `memory` gave; of an object whose figures do not fit nothing is taken."""
        figures, parts = {}, {}
        for name in self.LEARNT:
            value, kept = getattr(self, name), name.strip("_")
            if isinstance(value, Learner):
                parts[kept] = value
            elif kept in memory and memory[kept].ndim == isinstance(value, deque):
                figures[name] = _as(value, memory[kept].astype(np.float64).tolist())
            else:
                return
        for name, figure in figures.items():
            setattr(self, name, figure)
        for kept, part in parts.items():
            part.recall(part_of(memory, kept))


def _as(value: Any, kept: Any) -> Any:
    """Return a kept number or list with the type of the attribute that it was."""
    return deque(kept, maxlen=value.maxlen) if isinstance(value, deque) else type(value)(kept)


def joined(parts: "Mapping[str, Memory]") -> "Memory":
    """Return the memories of several parts as one, the part's name before a dot."""
    return {f"{name}.{key}": value for name, memory in parts.items() for key, value in memory.items()}


def part_of(memory: "Mapping[str, NDArray[np.generic]]", name: str) -> "Memory":
    """Return what `joined` took from the part `name`."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in memory.items() if key.startswith(prefix)}
