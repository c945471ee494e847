"""The segments from which a pass is compiled: work, transfers, sums of gradients and gathers of weights."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from lockstep.simulator.hardware.cluster import Device
from lockstep.simulator.hardware.collectives import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER
from lockstep.simulator.lowering.costs import pace_ratio
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.placement import Transfer

SCATTER_AXIS = "tp"
_LATE_SUM_SHARE = 0.33
"""Share of the peak memory bandwidth that torch.sum reaches for a few parts: the middle of 23 to 43 %
(pytorch/pytorch, pull request 191803)."""


@dataclass(frozen=True, slots=True)
class Work:
    """Computation of `seconds` on a device at full speed; that of a matrix `product` may overlap transfers.

    The host issues its kernels in `host_s`.
    """

    seconds: float
    product: bool = False
    host_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Feature:
    """A transfer that the pass waits for, in parallel to work of `hides_s` at full speed.

    A part of a transfer has a `latency_share` of its latency.
    """

    transfer: Transfer
    hides_s: float = 0.0
    latency_share: float = 1.0


@dataclass(frozen=True, slots=True)
class GradientReduction:
    """Gradients of `total_bytes` are ready: partial sums along `sums`, to be sharded over `kept`.

    Sharded gradients are summed in `every_pass`, others in the last of a step. The copy to the send buffer takes
    `copy_s`.
    """

    total_bytes: float
    sums: frozenset[str]
    kept: frozenset[str]
    every_pass: bool
    copy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WeightGather:
    """Sharded weights are needed whole from here on: a transfer that may be issued early, then a copy of `copy_s`."""

    transfer: Transfer
    copy_s: float = 0.0


Segment = Work | Feature | GradientReduction | WeightGather


def work_seconds(segments: Iterable[Segment]) -> float:
    """Return the seconds of the work among `segments`."""
    return sum(each.seconds for each in segments if isinstance(each, Work))


def tidied(segments: list[Segment]) -> list[Segment]:
    """Return a block's segments with its weights gathered together at the start, and consecutive work merged."""
    gathered: dict[tuple[str, frozenset[str]], tuple[float, float]] = {}
    tidied: list[Segment] = []
    for segment in segments:
        if isinstance(segment, WeightGather):
            kind, axes, volume_bytes = segment.transfer.kind, segment.transfer.axes, segment.transfer.volume_bytes
            before_bytes, before_s = gathered.get((kind, axes), (0.0, 0.0))
            gathered[kind, axes] = (before_bytes + volume_bytes, before_s + segment.copy_s)
        elif (
            isinstance(segment, Work)
            and tidied
            and isinstance(last := tidied[-1], Work)
            and segment.product == last.product
        ):
            tidied[-1] = Work(last.seconds + segment.seconds, last.product, last.host_s + segment.host_s)
        else:
            tidied.append(segment)
    return [*(WeightGather(Transfer(*key, volume), copy_s) for key, (volume, copy_s) in gathered.items()), *tidied]


def paced(segments: list[Segment], *, blocking: bool) -> list[Segment]:
    """Return a block's segments with the host's time included.

    The host runs ahead of the device, so that the slower of the two determines the time of a block; if launches are
    `blocking`, each waits for the other.
    """
    device_s = work_seconds(segments) + sum(each.hides_s for each in segments if isinstance(each, Feature))
    host_s = sum(segment.host_s for segment in segments if isinstance(segment, Work))
    longer = pace_ratio(device_s, host_s, blocking=blocking)
    return [_longer(segment, longer) for segment in segments]


def _longer(segment: Segment, ratio: float) -> Segment:
    if isinstance(segment, Work):
        return Work(segment.seconds * ratio, segment.product)
    return replace(segment, hides_s=segment.hides_s * ratio) if isinstance(segment, Feature) else segment


def during_products(segments: list[Segment], mesh: Mesh, *, summing: Device | None = None) -> list[Segment]:
    """Return segments in which transfers along `tp` overlap the matrix product that needs or produces their data.

    Both are divided into as many parts as ranks; all parts of the product but one are computed while other parts are in
    transit (Transformer Engine's overlap with user buffers). A product overlaps one transfer. A device that is
    `summing` adds the parts of a reduce-scatter when all have arrived (PyTorch's async tensor parallelism), otherwise
    they are added as they arrive.
    """
    found = list(segments)
    sums: dict[int, Work] = {}
    parts = mesh.degree(SCATTER_AXIS)
    for place, segment in enumerate(found):
        if (
            not isinstance(segment, Feature)
            or segment.transfer.axes != {SCATTER_AXIS}
            or segment.transfer.kind not in (ALL_GATHER, REDUCE_SCATTER)
        ):
            continue
        for near in (_next_work(found, place, 1), _next_work(found, place, -1)):
            work = None if near is None else found[near]
            if near is not None and isinstance(work, Work) and work.product:
                found[place] = Feature(segment.transfer, work.seconds * (1 - 1 / parts))
                found[near] = Work(work.seconds / parts)
                if summing and segment.transfer.kind == REDUCE_SCATTER:
                    sums[place] = _late_sum(segment.transfer.volume_bytes, parts, summing)
                break
    return [
        each
        for place, segment in enumerate(found)
        for each in ((segment, sums[place]) if place in sums else (segment,))
    ]


def during_another_pass(
    forward: list[Segment], backward: list[Segment], *, occupied: float = 0.0
) -> tuple[list[Segment], list[Segment]]:
    """Return the passes of a block in which tokens of experts are exchanged while another micro-batch computes.

    A block's forward pass of one micro-batch runs together with the backward pass of another, and each waits for the
    other after every exchange. An exchange of the backward pass hides the forward work that precedes the corresponding
    one, an exchange of the forward pass the backward work that follows it (Megatron-LM's
    `TransformerLayerSchedulePlan.run`: combine's backward next to attention's forward, both dispatches next to the
    experts, combine's forward next to attention's backward). What precedes or follows all exchanges in the same pass is
    not hidden, nor are exchanges that recomputation repeats. An exchange that has the `occupied` share of the device to
    itself leaves the rest to the work: that takes as long as if this share of the exchange were not hidden, since work
    W next to an exchange T ends after max(T, W + occupied x T).
    """
    ahead, behind = _divided(forward), _divided(backward)
    exchanges = len(ahead) - 1
    if not exchanges:
        return forward, backward
    before, own = behind[:-exchanges], behind[-exchanges:]
    return (
        list(_hiding([*_without_work(ahead[:-1]), *ahead[-1]], map(work_seconds, own), occupied)),
        [*chain(*before), *_hiding(_without_work(own), map(work_seconds, ahead), occupied)],
    )


def _is_exchange(segment: Segment) -> bool:
    return isinstance(segment, Feature) and segment.transfer.kind == ALL_TO_ALL


def _divided(segments: list[Segment]) -> list[list[Segment]]:
    """Return what precedes all exchanges, then a part for each, which begins with it."""
    parts: list[list[Segment]] = [[]]
    for each in segments:
        if _is_exchange(each):
            parts.append([])
        parts[-1].append(each)
    return parts


def _without_work(parts: Iterable[list[Segment]]) -> Iterator[Segment]:
    return (each for each in chain(*parts) if not isinstance(each, Work))


def _hiding(segments: Iterable[Segment], works_s: Iterator[float], occupied: float) -> Iterator[Segment]:
    """Yield `segments` with each exchange in parallel to the next of `works_s`."""
    for each in segments:
        if not (isinstance(each, Feature) and _is_exchange(each)):
            yield each
            continue
        for share, work_s in ((occupied, 0.0), (1 - occupied, next(works_s))):
            if share or work_s:
                part = replace(each.transfer, volume_bytes=each.transfer.volume_bytes * share)
                yield Feature(part, work_s, latency_share=share)


def _late_sum(total_bytes: float, parts: int, device: Device) -> Work:
    """Return the sum of one part from each rank; all parts are read, and the result has the size of one."""
    return Work(total_bytes * (1 + 1 / parts) / (device.memory_bytes_per_second * _LATE_SUM_SHARE))


def _next_work(segments: list[Segment], place: int, way: int) -> int | None:
    """Return the place of the next work in one direction, None if a transfer comes first for which the pass waits."""
    place += way
    while 0 <= place < len(segments):
        if isinstance(segments[place], Work):
            return place
        if isinstance(segments[place], Feature):
            return None
        place += way
    return None
