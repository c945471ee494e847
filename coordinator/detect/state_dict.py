"""State of learning objects as arrays by name, so that it outlives a restart of the coordinator.

Pure. Stored state is restored only if it fits, and an object restores all of its attributes or none.
"""

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    StateDict = dict[str, NDArray[np.generic]]


class Learner:
    """An object whose state is its attributes `LEARNT`: numbers, deques of numbers, arrays, and learners.

    Arrays have the names of the attributes, without leading underscores.
    """

    __slots__ = ()

    LEARNT: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> "StateDict":
        """Return the learnt state: a 0-d array for a number, a 1-d array for a deque, and arrays themselves."""
        state: StateDict = {}
        for name in self.LEARNT:
            value, kept = getattr(self, name), name.strip("_")
            if isinstance(value, Learner):
                state |= nested({kept: value.state_dict()})
            else:
                state[kept] = value if isinstance(value, np.ndarray) else np.array(value, dtype=np.float64)
        return state

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore the result of `state_dict`; if any value does not fit, nothing is restored."""
        figures, parts = {}, {}
        for name in self.LEARNT:
            value, kept = getattr(self, name), name.strip("_")
            if isinstance(value, Learner):
                parts[kept] = value
            elif kept in state and _fits(value, state[kept]):
                figures[name] = _as(value, state[kept])
            else:
                return
        for name, figure in figures.items():
            setattr(self, name, figure)
        for kept, part in parts.items():
            part.load_state_dict(part_of(state, kept))


def _fits(value: Any, kept: "NDArray[np.generic]") -> bool:
    """Whether a stored array has the shape of the attribute; a deque may have any length."""
    return kept.ndim == 1 if isinstance(value, deque) else kept.shape == np.shape(value)


def _as(value: Any, kept: "NDArray[np.generic]") -> Any:
    """Convert a stored array to the type of the attribute."""
    if isinstance(value, np.ndarray):
        return kept.astype(value.dtype)
    figures: Any = kept.astype(np.float64).tolist()
    return deque(figures, maxlen=value.maxlen) if isinstance(value, deque) else type(value)(figures)


def nested(parts: "Mapping[str, StateDict]") -> "StateDict":
    """Merge the states of several parts, with the part's name and a dot as prefix."""
    return {f"{name}.{key}": value for name, state in parts.items() for key, value in state.items()}


def part_of(state: "Mapping[str, NDArray[np.generic]]", name: str) -> "StateDict":
    """Return the state that `nested` stored for the part `name`."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
