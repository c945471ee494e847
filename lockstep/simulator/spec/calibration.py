"""The section `calibration`: results of fits, in the specification itself or in a file next to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.yaml_text import Places, read_yaml
from lockstep.simulator.forecast import Forecast
from lockstep.simulator.hardware.cluster import Cluster
from lockstep.simulator.spec.check import check, nearest
from lockstep.simulator.spec.field import SECTION, Field
from lockstep.simulator.spec.machine import CALIBRATION

_FILE_CHARS_MAX = 1 << 16
_SECTION = Field(kind=SECTION, help="what measured steps have taught", fields=CALIBRATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """Results of a fit to measured steps: parameters of `calibrate`, and the error on held-out steps, None if unknown.

    `overhead_seconds` is the time of a step outside its timeline if each rank has a core or a device of its own.
    """

    parameters: Mapping[str, float] = field(default_factory=dict)
    overhead_seconds: float = 0.0
    error_band_ratio: float | None = None
    source: str = ""


def build_calibration(
    values: Mapping[str, Any], cluster: Cluster, places: Places, folder: Path | None
) -> CalibrationResult:
    """Return the calibration of the checked section `values`; a file that it names is read from `folder`.

    Raises
    ------
    MalformedError
        The file cannot be used, or is named together with other values, or the cluster has no such level.
    """
    if values["file"] is not None:
        values = {**values, "parameters": [value for value in values["parameters"].values() if value is not None]}
        given = [name for name, value in values.items() if name != "file" and value]
        if given:
            place = ("calibration", given[0])
            raise places.refuse(place, got=f"{given[0]} and a file", expected="one of file, the other fields")
        values, places = _read_file(values["file"], places, folder)
        return build_calibration(values, cluster, places, None)
    parameters = {name: value for name, value in values["parameters"].items() if value is not None}
    levels = tuple(level.name for level in cluster.levels)
    for name, ratios in values["links"].items():
        if name not in levels:
            path = ("calibration", "links", name)
            raise places.refuse(path, got=f"the unknown level {name!r}", expected=nearest(name, levels), key=True)
        parameters |= {f"{name}/{ratio}": value for ratio, value in ratios.items()}
    return CalibrationResult(
        parameters=parameters,
        overhead_seconds=values["overhead_seconds"],
        error_band_ratio=values["error_band_ratio"],
        source=values["source"],
    )


def with_overhead(found: Forecast, calibration: CalibrationResult, *, core_share: float = 1.0) -> Forecast:
    """Return the forecast with the time that a step takes outside its timeline, in which the mean rank is idle.

    That time is host work: if each rank has a `core_share` of a core, it is that much longer.
    """
    extra_s = max(calibration.overhead_seconds / core_share, -_OVERHEAD_MOST_RATIO * found.step_seconds)
    step_s = found.step_seconds + extra_s
    ratio = found.step_seconds / step_s
    return replace(
        found,
        step_seconds=step_s,
        tokens_per_second=found.tokens_per_second * ratio,
        mfu_ratio=found.mfu_ratio * ratio,
        device_hours_per_billion_tokens=found.device_hours_per_billion_tokens / ratio,
        bubble_seconds=found.bubble_seconds + extra_s,
        error_band_ratio=calibration.error_band_ratio,
    )


_OVERHEAD_MOST_RATIO = 0.5
"""A negative overhead shortens a timeline by at most this share."""


def _read_file(name: str, places: Places, folder: Path | None) -> tuple[Mapping[str, Any], Places]:
    path = ("calibration", "file")
    if folder is None:
        raise places.refuse(path, got=repr(name), expected="the values themselves: files are not read here")
    file = (folder / name).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise places.refuse(path, got=repr(name), expected="a file next to the specification")
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(_FILE_CHARS_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        got = getattr(error, "strerror", None) or error
        raise MalformedError("calibration", where=name, got=got, expected="a YAML file") from None
    document, own = read_yaml(text, name)
    values = check(document, _SECTION, own)
    if values["file"] is not None:
        raise own.refuse(("file",), got=repr(values["file"]), expected="values, no other file")
    return values, own
