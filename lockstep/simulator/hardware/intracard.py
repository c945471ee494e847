"""Collectives inside one accelerator card: SW-IntraCC's bandwidth limits and what fusing operators gains.

Equations are those of SW-IntraCC; `entities` is 4 on the card of the paper. Bandwidths are algorithm bandwidths, V over
the time, in bytes a second, of a gather in which V bytes arrive at everyone; reductions cost the same. What the
published figures leave out: equation 4 counts the reads and not the write that publishes, equation 11 neither V nor
launches.
"""

from lockstep.simulator.hardware.collectives import (
    ALL_GATHER,
    CSC,
    RELAUNCHED_RING,
    Link,
    collective_cost,
    collective_seconds,
)

SUNWAY = Link(bytes_per_second=100e9, launch_s=25e-6, sync_s=15e-6, step_s=5e-6)
"""The ring of the Sunway card and the fixed costs below equation 3."""


def ring_bandwidth(volume_bytes: float, *, link: Link = SUNWAY, entities: int = 4) -> float:
    """Return equation 3: every round is launched and synchronised by the host."""
    return volume_bytes / collective_seconds(ALL_GATHER, RELAUNCHED_RING, entities, volume_bytes, link)


def csc_bandwidth(volume_bytes: float, *, link: Link = SUNWAY, entities: int = 4) -> float:
    """Return equation 4: one launch, one synchronisation, direct reads of shared memory."""
    return volume_bytes / collective_seconds(ALL_GATHER, CSC, entities, volume_bytes, link)


def ring_bandwidth_small(volume_bytes: float, *, link: Link = SUNWAY, entities: int = 4) -> float:
    """Return equation 5: the ring where only fixed costs count."""
    return volume_bytes / collective_cost(ALL_GATHER, RELAUNCHED_RING, entities).latency_s(link)


def csc_bandwidth_small(volume_bytes: float, *, link: Link = SUNWAY, entities: int = 4) -> float:
    """Return equation 6: CSC where only fixed costs count."""
    return volume_bytes / collective_cost(ALL_GATHER, CSC, entities).latency_s(link)


def bandwidth_large(volume_bytes: float, *, link: Link = SUNWAY, entities: int = 4) -> float:
    """Return equations 7 and 8, which are one: launches and synchronisation left out."""
    reads = entities - 1
    return volume_bytes / (reads * (volume_bytes / (entities * link.bytes_per_second) + link.step_s))


def unfused_seconds(
    share_bytes: float, *, local_bytes_per_second: float, link: Link = SUNWAY, entities: int = 4
) -> float:
    """Return equation 9: producer, gather and consumer with their results passed through memory.

    `share_bytes` is what one entity produces, of the `entities` parts that are gathered.
    """
    local_s = (entities + 1) * share_bytes / local_bytes_per_second
    return local_s + entities * share_bytes / link.bytes_per_second + 3 * link.launch_s


def fused_seconds(
    share_bytes: float, *, local_bytes_per_second: float, link: Link = SUNWAY, entities: int = 4
) -> float:
    """Return equation 10: the gather fused with its producer and its consumer."""
    moved_s = entities * share_bytes / link.bytes_per_second
    return moved_s + share_bytes / local_bytes_per_second + 2 * link.launch_s


def fusion_gain_ratio(local_bytes_per_second: float, global_bytes_per_second: float, *, entities: int = 4) -> float:
    """Return equation 11: the share of the data movement that fusing saves, whatever the volume."""
    return entities / (entities + 1 + entities * local_bytes_per_second / global_bytes_per_second)
