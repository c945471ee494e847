"""Plans for sending gradients, as text."""

from lockstep.diagnosis.fusion_plans import Plans
from lockstep.diagnosis.gradient_fusion import StepGradients
from lockstep.html.units import format_ns, format_rate

_NS = 1e9
_NAME = 20
_BUCKETS_SHOWN = 12


def fusion_text(gradients: StepGradients, plans: Plans) -> str:
    """Return the lines about the plans of `gradients`."""
    whole = format_rate(sum(gradients.volume_bytes), "B")
    steps = f", as in {gradients.steps} steps of the trace" if gradients.steps > 1 else ""
    link = plans.link
    rate = f"{format_rate(link.bytes_per_second, 'B')}/s"
    lines = [
        f"{plans.count} gradients of {whole} in all, the last ready after {format_ns(plans.ready_s * _NS)}{steps}",
        f"a sum takes {format_ns(link.latency_s * _NS)} and {rate} ({link.source})",
        "",
        f"{'':<{_NAME}}{'ends after':>10}  {'after the last':>14}  buckets",
    ]
    if plans.measured_end_s is not None:
        lines.append(_line("as measured", plans.measured_end_s, plans.ready_s, plans.count))
    lines += [_line(plan.name, plan.end_s, plans.ready_s, len(plan.buckets_bytes)) for plan in plans.plans]
    best = plans.best
    shown = ", ".join(format_rate(size, "B") for size in best.buckets_bytes[:_BUCKETS_SHOWN])
    more = f" and {len(best.buckets_bytes) - _BUCKETS_SHOWN} more" if len(best.buckets_bytes) > _BUCKETS_SHOWN else ""
    cap_end = format_ns(plans.cap_end_s * _NS)
    lines += [
        "",
        f"suggested: buckets of {shown}{more}, in the order of backward",
        f"with one size for all: DistributedDataParallel(bucket_cap_mb={plans.cap_mib}) ends after {cap_end}",
    ]
    if gradients.steps:
        lines.append("buckets that a framework formed before the trace cannot be split here")
    return "\n".join(lines)


def _line(name: str, end_s: float, ready_s: float, buckets: int) -> str:
    tail = format_ns(max(end_s - ready_s, 0.0) * _NS)
    return f"{name:<{_NAME}}{format_ns(end_s * _NS):>10}  {tail:>14}  {buckets:>7}"
