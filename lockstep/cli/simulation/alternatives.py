"""Alternatives as text and as JSON: the predicted step of each, and its gain over the current job."""

from collections.abc import Sequence
from typing import Any

from lockstep.cli.run_cost import RunCost
from lockstep.cli.simulation.text import forecast_json, strategy_of
from lockstep.html.units import format_ns, format_rate
from lockstep.simulator.forecast import Forecast
from lockstep.simulator.spec import JobSpec
from lockstep.simulator.whatif import Alternative

_NS = 1e9
_GIB = 2**30
_SHOWN = 20
_NAME_MOST = 72


def alternatives_text(
    spec: JobSpec, now: Forecast, found: Sequence[Alternative], notes: Sequence[str], cost: RunCost
) -> str:
    """Return the table of alternatives, below the current job."""
    possible = [each for each in found if each.forecast is not None]
    refused = [each for each in found if each.forecast is None]
    shown = possible[:_SHOWN]
    width = max([len("now"), *(min(len(each.change.name), _NAME_MOST) for each in shown)])
    cost_width = max(len(cost.text(each)) for each in (now, *(each.forecast for each in shown if each.forecast)))
    lines = [spec.name, f"  {strategy_of(spec)}", ""]
    lines.append(f"    {'':<{width}}  {'step':>8}  {'tokens/s':>8}  {'memory':>9}  {'cost':>{cost_width}}  gain")
    lines.append(f"    {'now':<{width}}  {_row(now, cost, cost_width)}")
    for number, each in enumerate(shown, 1):
        assert each.forecast is not None
        assert each.gain_ratio is not None
        name = each.change.name[:_NAME_MOST]
        lines.append(f"{number:>3} {name:<{width}}  {_row(each.forecast, cost, cost_width)}  {_gain(each)}")
    if len(possible) > _SHOWN:
        lines.append(f"    ... and {len(possible) - _SHOWN} more (--json has all)")
    lines += [f"    {each.change.name}: impossible: {each.refused}" for each in refused]
    band = now.error_band_ratio
    trust = (
        f"forecasts are good to +-{band:.1%}" if band is not None else "not calibrated: trust the order, not the times"
    )
    return "\n".join([*lines, "", f"cost: {cost.title}", *notes, trust])


def alternatives_json(
    now: Forecast, found: Sequence[Alternative], *, is_whole: bool, notes: Sequence[str], cost: RunCost
) -> dict[str, Any]:
    """Return the alternatives as JSON values."""
    return {
        "now": forecast_json(now) | {"cost": cost.as_dict(now)},
        "all_tried": is_whole,
        "notes": list(notes),
        "alternatives": [
            {
                "name": each.change.name,
                "heal": list(each.change.heal),
                "set": dict(each.change.values),
                "gain_ratio": each.gain_ratio,
                "seconds_per_token": each.seconds_per_token,
                "cost": cost.as_dict(each.forecast),
                **forecast_json(each.forecast),
            }
            for each in found
            if each.forecast is not None
        ],
        "refused": [{"name": each.change.name, "why": each.refused} for each in found if each.forecast is None],
    }


def _row(found: Forecast, cost: RunCost, cost_width: int) -> str:
    memory = f"{max(found.peak_memory_bytes) / _GIB:.1f} GiB"
    step, rate = format_ns(found.step_seconds * _NS), format_rate(found.tokens_per_second, "")
    return f"{step:>8}  {rate:>8}  {memory:>9}  {cost.text(found):>{cost_width}}"


def _gain(each: Alternative) -> str:
    assert each.forecast is not None
    return f"{each.gain_ratio:+.1%}" + ("  OUT OF MEMORY" if each.forecast.out_of_memory else "")
