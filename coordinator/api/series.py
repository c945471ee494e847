"""Step time, parts, throughput and MFU of a run over time, made once for all who look at the same interval."""

import json
from typing import TYPE_CHECKING

from aiohttp import web

from coordinator.api.kept import CachedWork, Kept
from coordinator.api.services import BAD, ApiError, known_run
from coordinator.record.step_series import INTERVALS_MAX, select_intervals, series_to_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEPT_MAX = 32
"""Answers kept, of at most 400 KB each."""
SERIES: web.AppKey[Kept] = web.AppKey("series", Kept)
_STEP_MAX = (1 << 62) - 1


async def show_series(request: web.Request) -> web.Response:
    """Show the step time, its parts, throughput and MFU of a run by interval, the oldest first; old ones are longer."""
    run = known_run(request)
    since_step = _whole(request, "since_step", default=0, low=0, high=_STEP_MAX)
    most = _whole(request, "points", default=INTERVALS_MAX, low=1, high=INTERVALS_MAX)

    def look() -> CachedWork:
        ranks, baseline_s = len(run.timeline.ranks), None
        if run.machine.judgement is not None:
            baseline_s = run.machine.judgement.baseline_step_seconds
        head = {"run": run.name, "ranks": ranks, "baseline_step_seconds": baseline_s}
        complete = run.series.complete()
        return CachedWork(
            (id(run), run.series.changes, ranks),
            lambda: _made(head, select_intervals(complete, since_step=since_step, most=most)),
        )

    name = f"{since_step} {most} {run.name}"
    return await request.app[SERIES].answer(request, name, look, content_type="application/json")


def _made(head: "dict[str, object]", intervals_IF: "NDArray[np.float64]") -> bytes:  # noqa: N803
    body = {**head, "points": series_to_json(intervals_IF)}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(errors="replace")


def _whole(request: web.Request, name: str, *, default: int, low: int, high: int) -> int:
    """Return a whole number of the query.

    Raises
    ------
    ApiError
        It is none, or out of its range.
    """
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < len(str(_STEP_MAX)) + 1 and low <= int(text) <= high):
        raise ApiError(BAD, f"{name}: got {text!r:.50}, expected a whole number from {low} to {high}")
    return int(text)
