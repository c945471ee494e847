"""A forecast as text: the step, where its time goes, memory against capacity, and how far to trust it."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from lockstep.cli.run_cost import RunCost
from lockstep.html.units import format_ns, format_rate, format_share
from lockstep.simulator.forecast import Forecast
from lockstep.simulator.lowering.context import RING
from lockstep.simulator.spec import JobSpec
from lockstep.simulator.stage_memory import StageMemory

_NS = 1e9
_GIB = 2**30
_BAR = 30
_STAGES_SHOWN = 16
_SICK_SHOWN = 8
_NAME = 22
_STAGE = 10
_NUMBER = 5
_ITEMS = {field.name: field.name.replace("_", " ") for field in fields(StageMemory)}
"""Columns of the memory table by item."""
_KEYS = (
    *(
        "step_seconds",
        "tokens_per_second",
        "device_hours_per_billion_tokens",
        "mfu_ratio",
        "communication_seconds",
        "bubble_seconds",
    ),
    *("peak_memory_bytes", "stage_memory_bytes", "usable_memory_bytes", "out_of_memory", "error_band_ratio"),
)


def text_of(spec: JobSpec, found: Forecast, cost: RunCost | None = None) -> str:
    """Return the lines about a forecast of `spec`."""
    head = _head(spec, found, cost or RunCost())
    return "\n".join([*head, "", *_time(found), "", *_memory(spec, found), *_sick(spec)])


def strategy_of(spec: JobSpec) -> str:
    """Return the degrees above one, micro-batches and options, in one line."""
    degrees = spec.degrees
    named = [
        f"{name}={getattr(degrees, name)}" for name in ("tp", "cp", "ep", "dp", "pp") if getattr(degrees, name) > 1
    ]
    named += [f"virtual={degrees.virtual}"] * (degrees.virtual > 1) + [f"zero={degrees.zero}"] * (degrees.zero > 0)
    named += [f"{degrees.hsdp_replicas} HSDP replicas"] * (degrees.hsdp_replicas > 1)
    named += ["experts whole on a rank"] * (degrees.expert_tp == 1 and degrees.tp > 1)
    named += ["sequence parallel"] * degrees.sequence_parallel
    context = spec.options.context
    named += ["ring"] * (degrees.cp > 1 and context is not None and context.exchange == RING)
    named += [f"recompute={degrees.recompute}"] * (degrees.recompute != "none")
    count = spec.schedule.micro_batches
    micro = f"{count:,} micro-batch{'es' if count > 1 else ''}"
    return ", ".join([*(named or ["one rank"]), micro])


def _head(spec: JobSpec, found: Forecast, cost: RunCost) -> list[str]:
    parameters = format_rate(spec.model.parameters, "").replace("G", "B")  # as model sizes are usually written
    machine = f"{spec.degrees.ranks:,} x {spec.cluster.device.name} of {spec.cluster.name}"
    band = found.error_band_ratio
    trust = f"+-{format_share(band)} (calibrated)" if band is not None else "not calibrated: 5 to 30% off is usual"
    return [
        f"{spec.name}",
        f"  {spec.model.name}, {parameters} parameters, batch {spec.batch:,}, on {machine}",
        f"  {strategy_of(spec)}",
        "",
        f"{'step':<{_NAME}}{format_ns(found.step_seconds * _NS):>10}  {trust}",
        f"{'throughput':<{_NAME}}{format_rate(found.tokens_per_second, ''):>10}  tokens/s",
        f"{'cost':<{_NAME}}{cost.text(found):>10}  {cost.title}",
        f"{'MFU':<{_NAME}}{format_share(found.mfu_ratio):>10}  of peak arithmetic",
    ]


def _time(found: Forecast) -> Iterator[str]:
    step_s, communication = found.step_seconds, found.communication_seconds
    parts = {
        "computing": step_s - communication.exposed - found.bubble_seconds,
        "communicating, exposed": communication.exposed,
        "idle (bubble)": found.bubble_seconds,
    }
    yield "where the mean rank's step goes"
    for name, seconds in parts.items():
        share = seconds / step_s
        yield f"  {name:<{_NAME}}{format_ns(seconds * _NS):>10} {format_share(share):>6}  {_bar(share)}"
    hidden_s = communication.total - communication.exposed
    hidden = f", {format_ns(hidden_s * _NS)} of it overlapping computation" if communication.total else ""
    yield f"  communication in all {format_ns(communication.total * _NS)}{hidden}"
    for kind, seconds in sorted(communication.by_kind.items(), key=lambda pair: -pair[1]):
        title = f"{format_ns(seconds * _NS):>10} {format_share(seconds / step_s):>6}"
        yield f"    {kind.replace('_', '-'):<{_NAME - 2}}{title}"


def _memory(spec: JobSpec, found: Forecast) -> Iterator[str]:
    capacity = spec.cluster.device.memory_bytes
    verdict = "  OUT OF MEMORY" if found.out_of_memory else ""
    usable = f", {found.usable_memory_bytes / _GIB:.1f} usable" if found.usable_memory_bytes < capacity else ""
    yield f"peak memory by stage, GiB of {capacity / _GIB:.1f}{usable}{verdict}"
    stages = list(enumerate(found.stage_memory_bytes))
    fullest = sorted(stages, key=lambda pair: -pair[1].total)[:_STAGES_SHOWN]
    shown = [name for name in _ITEMS if any(getattr(each, name) for _, each in fullest)]
    widths = {name: max(len(_ITEMS[name]), _NUMBER) for name in shown}
    yield f"  {'':<{_STAGE}}{'total':>{_NUMBER}}  " + "  ".join(f"{_ITEMS[name]:>{widths[name]}}" for name in shown)
    for stage, each in sorted(fullest, key=lambda pair: pair[0]):
        items = "  ".join(f"{getattr(each, name) / _GIB:>{widths[name]}.1f}" for name in shown)
        mark = "  too much" if each.needed > found.usable_memory_bytes else ""
        yield f"  {f'stage {stage}':<{_STAGE}}{each.total / _GIB:>{_NUMBER}.1f}  {items}{mark}"
    if len(stages) > _STAGES_SHOWN:
        yield f"  ... the fullest {_STAGES_SHOWN} of {len(stages)} stages (--json has all)"


def _sick(spec: JobSpec) -> list[str]:
    sick = spec.sick()
    if not sick:
        return []
    named = ", ".join(sick[:_SICK_SHOWN]) + (f" and {len(sick) - _SICK_SHOWN} more" if len(sick) > _SICK_SHOWN else "")
    return ["", f"degraded: {named}; `lockstep whatif` predicts what repairing them gives back"]


def _bar(ratio: float) -> str:
    return "#" * round(min(max(ratio, 0.0), 1.0) * _BAR)


def forecast_json(found: Forecast) -> dict[str, Any]:
    """Return a forecast as JSON values, with the keys that docs/simulator.md explains."""
    values = found.as_dict()
    return {key: values[key] for key in _KEYS}
