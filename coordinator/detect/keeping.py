"""What an object has learnt as numbers: one array for its figures, one for each of its windows.

Pure. For objects whose memory is a few plain attributes; what comes back from outside is taken only if it fits.
"""

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Memory = dict[str, NDArray[np.generic]]

_FIGURES = "figures"


def keep(owner: Any, figures: "Sequence[str]", windows: "Sequence[str]" = ()) -> "Memory":
    """Return the named attributes: numbers and truth values, and deques of numbers."""
    memory: Memory = {_FIGURES: np.array([float(getattr(owner, name)) for name in figures])}
    return memory | {name.strip("_"): np.array(getattr(owner, name), dtype=np.float64) for name in windows}


def take_back(
    owner: Any, memory: "Mapping[str, NDArray[np.generic]]", figures: "Sequence[str]", windows: "Sequence[str]" = ()
) -> None:
    """Set the attributes that `keep` returned, each with the type it has; nothing is set unless all of it fits."""
    kept = memory.get(_FIGURES)
    lengths = {name: memory.get(name.strip("_")) for name in windows}
    if kept is None or kept.shape != (len(figures),) or any(v is None or v.ndim != 1 for v in lengths.values()):
        return
    for name, value in zip(figures, kept.astype(np.float64).tolist(), strict=True):
        setattr(owner, name, type(getattr(owner, name))(value))
    for name, values in lengths.items():
        if values is not None:
            setattr(owner, name, deque(values.astype(np.float64).tolist(), maxlen=getattr(owner, name).maxlen))


def joined(parts: "Mapping[str, Memory]") -> "Memory":
    """Return the memories of several parts as one, the part's name before a dot."""
    return {f"{name}.{key}": value for name, memory in parts.items() for key, value in memory.items()}


def part_of(memory: "Mapping[str, NDArray[np.generic]]", name: str) -> "Memory":
    """Return what `joined` took from the part `name`."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in memory.items() if key.startswith(prefix)}
