"""Ways to bucket gradients, each with the predicted end of communication (Hermes, appendix E)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.diagnosis.gradient_fusion import StepGradients, SummingLink
from lockstep.simulator.fusion import Fusion, Task, exact, fixed_buckets, forward_search, one_bucket, unfused

_MIB = 2**20
_CAPS_MIB = (1, 2, 5, 10, 15, 25, 40, 50, 75, 100, 150, 200, 300, 400, 600, 800)
"""Fixed bucket sizes to try for a framework that supports nothing else."""
EXACT = "exact"
_ALIKE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionPlan:
    """One plan: when communication ends, from the step's beginning, and the bytes of each bucket in order."""

    name: str
    end_s: float
    buckets_bytes: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """All plans; `ready_s` is when the last gradient is ready; the best fixed size, `cap_mib`, ends at `cap_end_s`."""

    link: SummingLink
    plans: tuple[FusionPlan, ...]
    ready_s: float
    cap_mib: int
    cap_end_s: float
    measured_end_s: float | None
    count: int

    @property
    def best(self) -> FusionPlan:
        """The plan with the fewest buckets among those that end first."""
        first_s = min(plan.end_s for plan in self.plans) * (1 + _ALIKE)
        return min((plan for plan in self.plans if plan.end_s <= first_s), key=lambda plan: len(plan.buckets_bytes))

    def as_json(self) -> dict[str, Any]:
        """Return the plans as a JSON-compatible dict."""
        return {
            "gradients": self.count,
            "last_ready_seconds": self.ready_s,
            "measured_end_seconds": self.measured_end_s,
            "link": {
                "latency_seconds": self.link.latency_s,
                "bytes_per_second": self.link.bytes_per_second,
                "source": self.link.source,
            },
            "plans": [
                {
                    "name": plan.name,
                    "end_seconds": plan.end_s,
                    "tail_seconds": plan.end_s - self.ready_s,
                    "buckets_bytes": list(plan.buckets_bytes),
                }
                for plan in self.plans
            ],
            "suggested_buckets_bytes": list(self.best.buckets_bytes),
            "bucket_cap_mib": self.cap_mib,
            "bucket_cap_end_seconds": self.cap_end_s,
        }


def plans_of(gradients: StepGradients, link: SummingLink, *, bucket_bytes: float) -> Plans:
    """Return all plans for sending `gradients` over `link`; `bucket_bytes` is the size of fixed buckets."""
    task = gradients.task(link)
    ways = (
        ("unfused", unfused(task)),
        ("one bucket", one_bucket(task)),
        (f"buckets of {bucket_bytes / _MIB:.3g} MiB", fixed_buckets(task, bucket_bytes)),
        ("greedy (Hermes)", forward_search(task)),
        (EXACT, exact(task)),
    )
    capped = ((cap, fixed_buckets(task, cap * _MIB)) for cap in _CAPS_MIB)
    cap_end_s, _, cap = min((way.end_s, len(way.segments), cap) for cap, way in capped)
    return Plans(
        link=link,
        plans=tuple(_plan(name, way, task) for name, way in ways),
        ready_s=gradients.ready_s[-1],
        cap_mib=cap,
        cap_end_s=cap_end_s,
        measured_end_s=gradients.end_s,
        count=task.count,
    )


def _plan(name: str, way: Fusion, task: Task) -> FusionPlan:
    return FusionPlan(name=name, end_s=way.end_s, buckets_bytes=_sizes(way.segments, task))


def _sizes(segments: Sequence[int], task: Task) -> tuple[float, ...]:
    sizes, begin = [], 0
    for count in segments:
        sizes.append(task.volume_bytes(begin, begin + count))
        begin += count
    return tuple(sizes)
