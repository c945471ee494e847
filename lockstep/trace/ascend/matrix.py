"""communication_matrix.json and cluster_communication_matrix.json: what each collective moved between which ranks.

Layouts and units as in `communication`; a cluster's file joins the links of all ranks below one operator.

Shape suffix: M links between two ranks.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.trace.ascend.communication import COMMUNICATION_MAX_BYTES, Named, bytes_of_mb, entries, ns_of_ms

LINKS_MAX = 1 << 24
_PAIR = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)


class _Link(msgspec.Struct):
    transport: str = msgspec.field(name="Transport Type", default="")
    size: float = msgspec.field(name="Transit Size(MB)", default=float("nan"))
    time: float = msgspec.field(name="Transit Time(ms)", default=float("nan"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMatrix:
    """Links between ranks by operator; arrays of shape (n_links,).

    `operator` is an index into `named`, `source` and `target` are ranks (int64), `transport` is a name (LOCAL within a
    device, HCCS, PCIE, RDMA, SIO), `bytes` and `duration_ns` are int64, ABSENT where not recorded.
    """

    named: tuple[Named, ...]
    operator: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    transport: tuple[str, ...]
    bytes: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    dropped_count: int

    def __len__(self) -> int:
        return len(self.operator)

    @property
    def bandwidth(self) -> NDArray[np.float64]:
        """Return bytes per second of every link, NaN where it moved nothing or has no time."""
        known = (self.duration_ns > 0) & (self.bytes > 0)
        return np.where(known, self.bytes * 1e9 / np.where(known, self.duration_ns, 1), np.nan)


def load_matrix(path: Path, *, max_bytes: int = COMMUNICATION_MAX_BYTES) -> LinkMatrix:
    """Return the content of a communication_matrix.json or cluster_communication_matrix.json.

    Raises
    ------
    MalformedError
        The file cannot be read, is too large, or is not of one of the two layouts.
    """
    gatherer = MatrixGatherer()
    for named, raw in entries(path, msgspec.Raw, max_bytes=max_bytes):
        gatherer.begin(named)
        try:
            links = msgspec.json.decode(raw or b"", type=dict[str, _Link])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            gatherer.dropped_count += 1
            continue
        for pair, link in links.items():
            gatherer.add(pair, link.transport, link.size, link.time)
    return gatherer.matrix()


class MatrixGatherer:
    """Puts links together, from any reader."""

    def __init__(self) -> None:
        self.dropped_count = 0
        self._named: list[Named] = []
        self._links: list[tuple[int, int, int, str, float, float]] = []

    def begin(self, named: Named) -> None:
        """Begin the links of an operator."""
        self._named.append(named)

    def add(self, pair: str, transport: str, size_mb: float, time_ms: float) -> None:
        """Take over one link of the operator begun last; `pair` is `source-target`."""
        ranks = _PAIR.fullmatch(pair)
        if ranks is None or len(self._links) >= LINKS_MAX:
            self.dropped_count += 1
        else:
            self._links.append((len(self._named) - 1, int(ranks[1]), int(ranks[2]), transport, size_mb, time_ms))

    def matrix(self) -> LinkMatrix:
        """Return all that was added."""
        operator, source, target, transport, size, time = zip(*self._links, strict=True) if self._links else ((),) * 6
        return LinkMatrix(
            named=tuple(self._named),
            operator=np.array(operator, np.int64),
            source=np.array(source, np.int64),
            target=np.array(target, np.int64),
            transport=tuple(transport),
            bytes=bytes_of_mb(list(size)),
            duration_ns=ns_of_ms(list(time)),
            dropped_count=self.dropped_count,
        )
