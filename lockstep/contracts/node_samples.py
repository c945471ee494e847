"""A node's hardware samples and counts of a rank during its capture: a file next to the rank's trace.

The exporter writes it (`SUFFIX` in place of the trace's), and the analysis reads it. Times are nanoseconds since 1970,
the clock of captures.
"""

from dataclasses import dataclass, field
from pathlib import Path

from lockstep.contracts.messages import HostSpan

VERSION = 1
SUFFIX = ".samples.json"
MAX_BYTES = 1 << 20
SERIES_MAX = 8192
"""Readings of one resource; the exporter stores a quarter of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSeries:
    """Readings of one resource, the i-th taken at `start_ns + i * period_ns`, as ratios of its maximum."""

    start_ns: int
    period_ns: int
    ratios: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSamples:
    """`resources` are cpu (the training thread's core), memory (the device's or else the host's) and nic (the node's).

    Where the node's driver counts device activity, also sm (compute units) and nvlink.
    """

    version: int = VERSION
    resources: dict[str, ResourceSeries] = field(default_factory=dict)
    host: HostSpan | None = None


def samples_path(trace: Path) -> Path:
    """Return the path of the samples for the trace at `trace`, whether they exist or not."""
    name = trace.name
    for ending in (".gz", ".json"):
        name = name.removesuffix(ending)
    return trace.with_name(name + SUFFIX)
