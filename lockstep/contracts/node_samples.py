"""What a node sampled of its hardware and counted of a rank while it was captured: a file next to the rank's trace.

The exporter writes it (`SUFFIX` in place of the trace's), the analysis reads it. Times are nanoseconds since 1970, the
clock of captures.
"""

from dataclasses import dataclass, field
from pathlib import Path

from lockstep.contracts.messages import HostSpan

VERSION = 1
SUFFIX = ".samples.json"
MAX_BYTES = 1 << 20
SERIES_MAX = 8192
"""Readings of one resource; the exporter keeps a quarter of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSeries:
    """Readings of one resource, the i-th taken at `start_ns + i * period_ns`, as ratios of what it can do at most."""

    start_ns: int
    period_ns: int
    ratios: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSamples:
    """`resources` are cpu (the training thread's core), memory (the device's, else the host's) and nic (the node's).

    Where the node's driver counts what devices do also sm (their compute units) and nvlink.
    """

    version: int = VERSION
    resources: dict[str, ResourceSeries] = field(default_factory=dict)
    host: HostSpan | None = None


def samples_path(trace: Path) -> Path:
    """Return where the samples of the trace at `trace` lie, whether they do or not."""
    name = trace.name
    for ending in (".gz", ".json"):
        name = name.removesuffix(ending)
    return trace.with_name(name + SUFFIX)
