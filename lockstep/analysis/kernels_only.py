"""Converts a device's tasks to a trace, for Ascend ranks with kernel_details.csv and without trace_view.json."""

import numpy as np
from numpy.typing import NDArray

from lockstep.trace.ascend.collective import arguments_of, by_suffix
from lockstep.trace.ascend.kernels import Kernels
from lockstep.trace.ascend.load import metadata_of
from lockstep.trace.ascend.rank_metadata import AscendSettings
from lockstep.trace.columns import ABSENT, KERNEL, CollectiveArguments, TraceColumns, WorkKind

_COMMUNICATION_STREAM = -2
"""Collectives without a stream run during computing, so they are none of its queue."""


def columns_of_kernels(kernels: Kernels, settings: AscendSettings) -> TraceColumns:
    """Return columns of device work alone: no host, no launches, one step; collectives by their names.

    `kernels` must have at least one row.
    """
    count = len(kernels)
    communicates = kernels.communicates
    device = np.where(kernels.device == ABSENT, 0, kernels.device)
    unknown = np.where(communicates, _COMMUNICATION_STREAM, 0)
    pairs = np.stack((device, np.where(kernels.stream == ABSENT, unknown, kernels.stream)), axis=1)
    streams, place = np.unique(pairs, axis=0, return_inverse=True)
    stream: NDArray[np.int32] = place.reshape(-1).astype(np.int32)
    return TraceColumns(
        start_ns=kernels.start_ns,
        duration_ns=kernels.duration_ns,
        name=kernels.name,
        category=np.zeros(count, np.int32),
        thread=stream,
        work=np.where(communicates, WorkKind.COMMUNICATION, WorkKind.COMPUTE).astype(np.int8),
        stream=stream,
        shapes=np.full(count, ABSENT, np.int32),
        stack=np.full(count, ABSENT, np.int32),
        occupancy=np.full(count, ABSENT, np.int32),
        correlation=_absent(count),
        external=_absent(count),
        sequence=_absent(count),
        bytes=_absent(count),
        names=kernels.texts["name"],
        categories=[KERNEL],
        threads=[(each[0], each[1]) for each in streams.tolist()],
        streams=[(each[0], each[1]) for each in streams.tolist()],
        collectives=_collectives(kernels, settings),
        metadata=metadata_of(settings, has_collectives=bool(communicates.any())),
        trace_bytes=0,
        event_count=count + kernels.dropped_count,
        dropped_count=kernels.dropped_count,
    )


def _absent(count: int) -> NDArray[np.int64]:
    return np.full(count, ABSENT, np.int64)


def _collectives(kernels: Kernels, settings: AscendSettings) -> dict[int, CollectiveArguments]:
    suffixes = by_suffix(settings.groups)
    return {
        row: arguments_of(
            kernels.text("name", row),
            count=ABSENT,
            data_type="",
            group="",
            groups=settings.groups,
            suffixes=suffixes,
            group_names=settings.group_names,
        )
        for row in np.flatnonzero(kernels.communicates).tolist()
    }
