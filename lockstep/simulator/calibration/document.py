"""What a fit has found, as the section `calibration` of a specification: the one format of all fits.

`lockstep calibrate` writes it to a file, the coordinator's API shows it, and `simulate`, `whatif` and the coordinator
read it from a specification.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

from lockstep.simulator.calibration.calibrate import MOST

_DIGITS = 6


def calibration_document(
    parameters: Mapping[str, float],
    *,
    error_band_ratio: float | None,
    overhead_seconds: float = 0.0,
    source: str = "",
) -> dict[str, Any]:
    """Return the section; `parameters` are named as `with_parameters` takes them, `LEVEL/RATIO` for one level's links.

    The band is left out where no step was held out.
    What is beyond a physical bound by rounding is at it.
    """
    links: dict[str, dict[str, float]] = {}
    plain: dict[str, float] = {}
    for name, value in parameters.items():
        level, slash, ratio = name.rpartition("/")
        if slash:
            links.setdefault(level, {})[ratio] = _rounded(value)
        else:
            plain[name] = min(_rounded(value), MOST.get(name, inf))
    found: dict[str, Any] = {"parameters": plain}
    if error_band_ratio is not None:
        found["error_band_ratio"] = _rounded(error_band_ratio)
    if links:
        found["links"] = links
    if overhead_seconds:
        found["overhead_seconds"] = _rounded(overhead_seconds)
    return found | ({"source": source} if source else {})


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
