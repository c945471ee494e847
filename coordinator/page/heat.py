# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""The rank x step heat map: own work and waits of the last undisturbed steps, in no more bytes than a screen can show.

Pure: rows evaluated by the detectors in, plain values out. `lines.py` decides which ranks get a row of the map. The map
does not evaluate the run: colours show figures, the detectors find incidents.

Shapes: K steps, R ranks, L lines of the map.
"""

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.page.lines import Layout, lay_out
from coordinator.page.rank_figures import RankFigures, figures, waits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.decide.explain import ExplanationContext
    from coordinator.decide.incidents import Incident

    Floats = NDArray[np.floating]

WORST_RANKS = 16  # ranks that are listed individually
MARKS_MAX = 64  # incidents marked in the map
MISSING = 255  # a cell without a measurement
_LEVELS = 254  # the largest level of a cell; the eye cannot distinguish steps of 0.4 % of the scale
_LEAST_SPREAD = 0.1  # least extent of the scale around the median: noise alone must not look like a fault
_TOP_QUANTILE = 99.5  # per cent of cells below the end of the scale: a single pause must not flatten the rest
_NAME_MAX = 64  # characters of a name
_SAMPLE_CELLS = 1 << 16  # cells from which the scale is derived; more take ten times as long for the same result


def worst(found: RankFigures, scene: "ExplanationContext") -> list[dict[str, Any]]:
    """Return the ranks whose own work exceeds that of their peers most, the worst first, with their last steps.

    `levels` are own work by step on the scale of the map, 0 to 8; None if not measured.
    """
    order = np.argsort(-np.nan_to_num(found.excess_R, nan=-np.inf), kind="stable")[:WORST_RANKS]
    self_KR = np.stack([row.self_seconds for row in scene.rows])
    low, high = _scale(self_KR, found.self_R, is_wait=False)
    levels_RK = quantised(self_KR[:, order].T, low, high)
    return [
        {
            "rank": int(found.ranks[column]),
            "hostname": scene.hostname(int(found.ranks[column]))[:_NAME_MAX],
            "self_seconds": _number(found.self_R[column]),
            "wait_seconds": _number(found.wait_R[column]),
            "excess_ratio": _number(found.excess_R[column]),
            "levels": [None if level == MISSING else round(8 * int(level) / _LEVELS) for level in levels_K],
        }
        for column, levels_K in zip(order, levels_RK, strict=True)
    ]


def slowest(scene: "ExplanationContext") -> list[dict[str, Any]]:
    """Return the slowest ranks of a run in the form of `worst`; empty before the first step."""
    found = figures(scene)
    return [] if found is None else worst(found, scene)


def heat_map(scene: "ExplanationContext", incidents: "Sequence[Incident]", by: str) -> dict[str, Any]:
    """Return the map of one run as plain values: at most `lines.LINES_MAX` rows, and all recent steps.

    `by` is `node` or a kind of the run's domains. Cells are bytes in base64, row by row, on a linear scale from
    `low_seconds` (0) to `high_seconds` and above (254); 255 means not measured.
    """
    found = figures(scene)
    if found is None:
        return {"steps": [], "ranks": 0, "grouped_by": by}
    layout = lay_out(scene, found, incidents, by)
    steps = [row.step for row in scene.rows]
    self_KR = np.stack([row.self_seconds for row in scene.rows])
    wait_KR = np.stack([waits(row) for row in scene.rows])
    return {
        "steps": steps,
        "ranks": len(found.ranks),
        "grouped_by": by,
        "quantities": {
            "self": _cells(self_KR, found.self_R, layout, is_wait=False),
            "wait": _cells(wait_KR, found.wait_R, layout, is_wait=True),
        },
        "rows": layout.rows_json(),
        "groups": layout.groups_json(),
        "note": layout.note,
        "incidents": [_mark(incident, layout, steps) for incident in incidents[:MARKS_MAX]],
        "worst": worst(found, scene),
    }


def quantised(values: "Floats", low: float, high: float) -> "NDArray[np.uint8]":
    """Return the level of each value on the scale from `low` to `high`."""
    span = max(high - low, 1e-12)
    known = np.nan_to_num(values, nan=low)
    levels: NDArray[np.uint8] = np.rint(np.clip((known - low) / span, 0, 1) * _LEVELS).astype(np.uint8)
    levels[np.isnan(values)] = MISSING
    return levels


def _cells(values_KR: "Floats", recent_R: "Floats", layout: Layout, *, is_wait: bool) -> dict[str, Any]:
    low, high = _scale(values_KR, recent_R, is_wait=is_wait)
    cells_LK = quantised(layout.lines_of(values_KR), low, high)
    return {
        "low_seconds": low,
        "high_seconds": high,
        "cells": base64.b64encode(cells_LK.tobytes()).decode(),
    }


def _scale(values_KR: "Floats", recent_R: "Floats", *, is_wait: bool) -> tuple[float, float]:
    """Return both ends of the colour scale. It includes the recently slowest rank, but not every outlier step."""
    some = values_KR[:, :: 1 + values_KR.size // _SAMPLE_CELLS]
    known = some[~np.isnan(some)]
    if not len(known):
        return 0.0, 1.0
    usual = float(np.median(known))
    first, top = (float(each) for each in np.percentile(known, (0.5, _TOP_QUANTILE)))
    recent = recent_R[~np.isnan(recent_R)]
    high = max(top, float(recent.max(initial=0.0)), (1 + _LEAST_SPREAD) * usual)
    return (0.0 if is_wait else min(first, (1 - _LEAST_SPREAD) * usual)), high


def _mark(incident: "Incident", layout: Layout, steps: list[int]) -> dict[str, Any]:
    """Return the position of an incident in the map; `column` is -1 if it began before the first step shown.

    An incident without an onset step is placed at the last step.
    """
    onset_step = steps[-1] if incident.onset_step is None else incident.onset_step
    column = next((place for place, step in enumerate(steps) if step >= onset_step), len(steps) - 1)
    return {
        "id": incident.id,
        "kind": incident.kind,
        "cause": incident.cause,
        "onset_step": incident.onset_step,
        "column": -1 if onset_step < steps[0] else column,
        "rows": layout.spans_of(incident.ranks),
    }


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
