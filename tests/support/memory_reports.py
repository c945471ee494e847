"""Reports of the memory of ranks as an exporter makes them, from sizes by step."""

from collections.abc import Callable, Mapping

from exporter.memory.series import MemorySeries
from lockstep.contracts.memory_report import HOST, MemorySlope, RankMemory

MIB = 1 << 20
GIB = 1 << 30
BASE = 800 * MIB


class ReportedRanks:
    """Ranks whose memory is `sizes[rank](step)`; `advance` goes on, `reports` states what their node would send now."""

    def __init__(
        self,
        sizes: Mapping[int, Callable[[int], float]],
        *,
        part: str = HOST,
        available_bytes: int = 64 * GIB,
        limit_bytes: int = 128 * GIB,
    ) -> None:
        self.step = -1
        self._sizes, self._part = sizes, part
        self._headroom = available_bytes, limit_bytes
        self._series = {rank: MemorySeries() for rank in sizes}

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            for rank, series in self._series.items():
                series.add(self.step, int(self._sizes[rank](self.step)))

    def reports(self) -> list[RankMemory]:
        return [self._report(rank, series) for rank, series in self._series.items()]

    def _report(self, rank: int, series: MemorySeries) -> RankMemory:
        available, limit = self._headroom
        size = int(self._sizes[rank](self.step))
        trends = [
            MemorySlope(
                part=self._part,
                level=level,
                first_step=trend.first_step,
                last_step=trend.last_step,
                bytes_per_step=trend.bytes_per_step,
                is_steady=trend.is_steady,
            )
            for level, trend in enumerate(series.trends)
            if trend is not None
        ]
        parts = {"host": {"host_bytes": size}, "workers": {"host_bytes": BASE, "workers_bytes": size}}
        device = {"host_bytes": BASE, "device_bytes": size, "device_limit_bytes": limit}
        return RankMemory(
            rank=rank,
            step=self.step,
            available_bytes=available,
            limit_bytes=limit,
            trends=trends,
            **parts.get(self._part, device),
        )


def flat(_step: int) -> float:
    return BASE


def leak(step: int, *, onset: int = 100, per_step: float = 5 * MIB) -> float:
    return BASE + per_step * max(step - onset, 0)
