"""Sizes of collectives: too small for their latency, or not aligned (Hermes, section 4.2.2, table 3)."""

from math import ceil

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.finding import COMMUNICATION, MEDIUM, Finding, NotEvaluated
from lockstep.diagnosis.communication_causes.collectives import BARRIER, RankCollectives
from lockstep.diagnosis.communication_causes.thresholds import (
    ALIGNMENT_BYTES,
    COLLECTIVES,
    SMALL_FOR_ONE,
    SMALL_LOST_RATIO,
    SMALL_MESSAGE_BYTES,
    SMALL_SHARE,
)
from lockstep.simulator.hardware.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from lockstep.trace.columns import ABSENT
from lockstep.trace.intervals import merged

SMALL_PACKETS, UNALIGNED = ("small_packets", "unaligned")
_FUSIBLE = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)
"""Operations that frameworks gather into buckets."""
_UNDISTURBED = 0.25
"""Quantile of a step's small collectives (ten or more) that certainly contains no waiting: the ranks have just met."""


def misaligned(collectives: RankCollectives) -> NDArray[np.int64]:
    """Return the indices of the collectives whose size is not a multiple of 512 bytes."""
    size = collectives.bytes
    return np.flatnonzero((size != ABSENT) & (size % int(ALIGNMENT_BYTES.value) != 0))


def find_misaligned(collectives: RankCollectives, *, vendor: str) -> list[Finding] | NotEvaluated:
    """Return the collectives whose size is unaligned for HCCS; for other links the rule is not evaluated."""
    known = collectives.bytes != ABSENT
    if not known.any():
        return NotEvaluated(rule=UNALIGNED, reason="the trace does not record the sizes of collectives")
    at = misaligned(collectives)
    sizes = sorted({int(size) for size in collectives.bytes[at]}, reverse=True)
    reported = (
        f"{len(at)} of {int(known.sum())} collectives are no multiple of {ALIGNMENT_BYTES.value:.0f} bytes, the "
        f"largest of {', '.join(str(size) for size in sizes[:3])} bytes"
    )
    if vendor != "ascend":
        return NotEvaluated(
            rule=UNALIGNED, reason=f"only HCCS is known to want aligned sizes, not {vendor}'s links; {reported}"
        )
    large = at[collectives.bytes[at] >= SMALL_MESSAGE_BYTES.value]
    if not len(large):
        return []
    spent_ns = int(collectives.duration_ns[large].sum())
    return [
        Finding(
            bottleneck=COMMUNICATION,
            cause=UNALIGNED,
            ranks=(collectives.rank,),
            evidence=(
                reported,
                f"those of {SMALL_MESSAGE_BYTES.value / 1e6:.0f} MB and more take {spent_ns / 1e6:.3f} ms",
            ),
            confidence=MEDIUM,
        )
    ]


def find_small_messages(
    collectives: RankCollectives, window_ns: int, *, steps: int = 1
) -> list[Finding] | NotEvaluated:
    """Return a finding if many small collectives cost more latency than a few fused ones would.

    For backends that record no packets: more than 20 % of all collectives are below 1 MB, at least ten could be
    replaced by one (in each of `steps`), and their latency is at least 5 % of the window. The latency is the lower
    quartile of the small collectives' durations: longer ones contain waiting, and the very shortest are luck on a busy
    machine. The saving is limited to the time in which any of them runs.
    """
    size = collectives.bytes
    fusible = np.array([kind in _FUSIBLE for kind in collectives.kinds], np.bool_) & (size > 0)
    if int(fusible.sum()) < COLLECTIVES.value:
        return NotEvaluated(rule=SMALL_PACKETS, reason="the trace has no collectives of known size that could be fused")
    data = np.array([kind != BARRIER for kind in collectives.kinds], np.bool_)
    small = fusible & (size < SMALL_MESSAGE_BYTES.value)
    if not small.any() or small.sum() <= SMALL_SHARE.value * data.sum():
        return []
    latency_ns = int(np.quantile(collectives.duration_ns[small], _UNDISTURBED, method="lower"))
    needed = max(ceil(int(size[small].sum()) / SMALL_MESSAGE_BYTES.value), steps, 1)
    start_ns, duration_ns = collectives.start_ns[small], collectives.duration_ns[small]
    running_ns = merged(start_ns, start_ns + duration_ns).measure_ns()
    spared_ns = min((int(small.sum()) - needed) * latency_ns, running_ns)
    if small.sum() < SMALL_FOR_ONE.value * needed or spared_ns < SMALL_LOST_RATIO.value * window_ns:
        return []
    return [
        Finding(
            bottleneck=COMMUNICATION,
            cause=SMALL_PACKETS,
            ranks=(collectives.rank,),
            evidence=(
                (
                    f"{int(small.sum())} of {int(data.sum())} collectives are below "
                    f"{SMALL_MESSAGE_BYTES.value / 1e6:.0f} MB, {int(np.median(size[small]))} bytes in the middle"
                ),
                (
                    f"a quarter of them take at most {latency_ns / 1e6:.3f} ms; {needed} of full size would carry the "
                    "same bytes"
                ),
            ),
            lost_ns=spared_ns,
            confidence=MEDIUM,
        )
    ]
