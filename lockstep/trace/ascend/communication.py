"""communication.json and cluster_communication.json: what each collective moved over which link, and how fast.

Two layouts: a rank's own file is `{step: {kind: {operator: {...}}}}`, a cluster's `{ranks: {step: {operator: {rank:
{...}}}}}`. Times are ms and sizes MB (10^6 bytes) in the files, ns and bytes here.

CANN 8.3 writes 0 as "Transit Time" of operators whose link blocks have size and time, so times and bandwidths come from
the link blocks. SDMA is the sum of HCCS, PCIE and SIO: adding it to them would count twice.

Shape suffixes: O operators (of one rank), L their links, P the packet sizes of links.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from lockstep.contracts import limits
from lockstep.trace.ascend.rank_metadata import read_json
from lockstep.trace.ascend.texts import durations_ns, integer, ns_of_times, number
from lockstep.trace.columns import ABSENT

COMMUNICATION_MAX_BYTES = 512 << 20
OPERATORS_MAX = 1 << 22
TOTAL = "Total Op Info"
P2P, COLLECTIVE = "p2p", "collective"
SUM_OF_LINKS = "SDMA"
_US_PER_MS = 1000.0
_BYTES_PER_MB = 1e6
_STEP_PREFIX = "step"
_SIZES_MAX = 1 << 20
_RANKS = re.compile(r"\(?\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*,?\s*\)?", re.ASCII)

Form = TypeVar("Form")


class _Times(msgspec.Struct):
    start: float | str = msgspec.field(name="Start Timestamp(us)", default=float("nan"))
    elapse: float = msgspec.field(name="Elapse Time(ms)", default=float("nan"))
    transit: float = msgspec.field(name="Transit Time(ms)", default=float("nan"))
    wait: float = msgspec.field(name="Wait Time(ms)", default=float("nan"))
    synchronization: float = msgspec.field(name="Synchronization Time(ms)", default=float("nan"))
    idle: float = msgspec.field(name="Idle Time(ms)", default=float("nan"))


class _Link(msgspec.Struct):
    size: float = msgspec.field(name="Transit Size(MB)", default=float("nan"))
    time: float = msgspec.field(name="Transit Time(ms)", default=float("nan"))
    bandwidth: float = msgspec.field(name="Bandwidth(GB/s)", default=float("nan"))
    large: float = msgspec.field(name="Large Packet Ratio", default=float("nan"))
    sizes: dict[str, list[float]] = msgspec.field(name="Size Distribution", default_factory=dict)


class _Operator(msgspec.Struct):
    times: _Times = msgspec.field(name="Communication Time Info", default_factory=_Times)
    links: dict[str, _Link] = msgspec.field(name="Communication Bandwidth Info", default_factory=dict)


@dataclass(frozen=True, slots=True)
class EntryName:
    """Location of an entry in the file: step (ABSENT without a number), kind, operator, group and rank."""

    step: int
    kind: str
    operator: str
    group: str
    ranks: tuple[int, ...]
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendCommunication:
    """Collectives with their links; read, never written.

    `named` and the time columns (int64 ns, shape (n_operators,), ABSENT where not recorded) are by operator and rank,
    without totals. Links are int64 arrays of shape (n_links,): `link_operator` is an index into `named`, `link_type` a
    name (RDMA, HCCS, PCIE, SIO, SDMA ...), `link_bytes` and `link_ns` what was moved in which time; links that moved
    nothing are left out. `large_packet_ratio` is float64, NaN where not recorded. Packets, shape (n_packets,): how many
    of which size a link moved (`packet_link`, `packet_bytes`, `packet_count`, `packet_ns`).
    """

    named: tuple[EntryName, ...]
    start_ns: NDArray[np.int64]
    elapse_ns: NDArray[np.int64]
    transit_ns: NDArray[np.int64]
    """As the file has it; use `link_transit_ns`."""
    wait_ns: NDArray[np.int64]
    synchronization_ns: NDArray[np.int64]
    idle_ns: NDArray[np.int64]
    link_operator: NDArray[np.int64]
    link_type: tuple[str, ...]
    link_bytes: NDArray[np.int64]
    link_ns: NDArray[np.int64]
    large_packet_ratio: NDArray[np.float64]
    packet_link: NDArray[np.int64]
    packet_bytes: NDArray[np.int64]
    packet_count: NDArray[np.int64]
    packet_ns: NDArray[np.int64]
    dropped_count: int
    """Entries left out because of their form."""

    def __len__(self) -> int:
        return len(self.named)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Return which links to add up: SDMA is left out where the operator has the links that it sums."""
        is_sum = np.array([each == SUM_OF_LINKS for each in self.link_type], np.bool_)
        parts = np.array([each not in (SUM_OF_LINKS, "RDMA") for each in self.link_type], np.bool_)
        has_parts = np.zeros(len(self.named), np.bool_)
        has_parts[self.link_operator[parts]] = True
        counted: NDArray[np.bool_] = ~(is_sum & has_parts[self.link_operator])
        return counted

    @property
    def link_transit_ns(self) -> NDArray[np.int64]:
        """Return the time of every operator on its links, each kind of link counted once."""
        transit_ns = np.zeros(len(self.named), np.int64)
        np.add.at(transit_ns, self.link_operator[self.counted], self.link_ns[self.counted])
        return transit_ns


def load_communication(path: Path, *, max_bytes: int = COMMUNICATION_MAX_BYTES) -> AscendCommunication:
    """Return the content of a communication.json or cluster_communication.json.

    Raises
    ------
    MalformedError
        The file cannot be read, is too large, or is not of one of the two layouts.
    """
    gatherer = CommunicationGatherer()
    for named, entry in entries(path, _Operator, max_bytes=max_bytes):
        if entry is None:
            gatherer.dropped_count += 1
        else:
            gatherer.add(named, entry)
    return gatherer.communication()


def entries(path: Path, form: type[Form], *, max_bytes: int) -> Iterator[tuple[EntryName, Form | None]]:
    """Yield the entries of a file in either layout, None for one that is not of `form`; totals are left out.

    Raises
    ------
    MalformedError
        As for `load_communication`.
    """
    layout = dict[str, dict[str, dict[str, msgspec.Raw]]]
    totals: Mapping[str, Mapping[str, Mapping[str, msgspec.Raw]]] = read_json(
        path, layout, "steps and operators", max_bytes
    )
    of_rank = any(key.startswith(_STEP_PREFIX) and set(inner) & {P2P, COLLECTIVE} for key, inner in totals.items())
    for outer, inner in totals.items():
        for key, operators in inner.items():
            step, kind = (outer, key) if of_rank else (key, P2P if outer == P2P else COLLECTIVE)
            ranks = () if of_rank else _ranks_of(outer)
            for name, raw in operators.items():
                if not name.startswith(TOTAL):
                    operation, _, group = name.partition("@")
                    where = EntryName(integer(step.removeprefix(_STEP_PREFIX)), kind, operation, group, ranks, ABSENT)
                    yield from _of_ranks(where, raw, form, of_rank=of_rank)


def _of_ranks(where: EntryName, raw: msgspec.Raw, form: Any, *, of_rank: bool) -> Iterator[tuple[EntryName, Any]]:
    try:
        if of_rank or form is msgspec.Raw:
            yield where, msgspec.json.decode(raw, type=form)
            return
        for rank, each in msgspec.json.decode(raw, type=dict[str, form]).items():
            yield EntryName(where.step, where.kind, where.operator, where.group, where.ranks, integer(rank)), each
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        yield where, None


def ns_of_ms(values: list[float]) -> NDArray[np.int64]:
    """Return ms as int64 ns, ABSENT where unknown or no time of a capture."""
    with np.errstate(over="ignore"):  # what is infinite then is no duration
        return durations_ns(np.array(values, np.float64) * _US_PER_MS)


def bytes_of_mb(values: list[float]) -> NDArray[np.int64]:
    """Return MB as bytes, ABSENT where unknown."""
    with np.errstate(over="ignore"):  # what is infinite then is not known
        moved = np.array(values, np.float64) * _BYTES_PER_MB
    known = np.isfinite(moved) & (moved >= 0) & (moved < 2.0**62)
    found: NDArray[np.int64] = np.where(known, np.rint(np.where(known, moved, 0)).astype(np.int64), ABSENT)
    return found


class CommunicationGatherer:
    """Combines operators and links from any reader."""

    def __init__(self) -> None:
        self.dropped_count = 0
        self._named: list[EntryName] = []
        self._times: list[tuple[Any, ...]] = []
        self._links: list[tuple[int, str, float, float, float]] = []
        self._packets: list[tuple[int, float, float, float]] = []

    def add(self, named: EntryName, totals: Any) -> None:
        """Add one operator; those beyond OPERATORS_MAX are dropped and counted."""
        if len(self._named) >= OPERATORS_MAX:
            self.dropped_count += 1
            return
        times = totals.times
        values = (times.start, times.elapse, times.transit, times.wait, times.synchronization, times.idle)
        self.add_operator(named, values)
        for kind, link in totals.links.items():
            if link.size > 0:
                sizes = [(number(size), *counted[:2]) for size, counted in link.sizes.items() if len(counted) > 1]
                self.add_link(len(self._named) - 1, kind, (link.size, link.time, link.large), sizes)

    def add_operator(self, named: EntryName, times: tuple[Any, ...]) -> None:
        """Add one operator's start (us), elapse, transit, wait, synchronization and idle time (ms)."""
        self._named.append(named)
        self._times.append(times)

    def add_link(
        self, operator: int, kind: str, totals: tuple[float, float, float], sizes: list[tuple[float, float, float]]
    ) -> None:
        """Add a link's size (MB), time (ms) and large packet ratio, and its packets' sizes, counts and times."""
        self._packets += [(len(self._links), *each) for each in sizes[: _SIZES_MAX - len(self._packets)]]
        self._links.append((operator, kind, *totals))

    def communication(self) -> AscendCommunication:
        """Return all that was added."""
        starts, *times = (
            (list(each) for each in zip(*self._times, strict=True)) if self._times else [[] for _ in range(6)]
        )
        operators, kinds, sizes, moved, large = zip(*self._links, strict=True) if self._links else ((),) * 5
        packets = np.array(self._packets, np.float64).reshape(-1, 4)
        counted = np.where(np.isfinite(packets[:, 2]) & (np.abs(packets[:, 2]) < 2.0**62), packets[:, 2], ABSENT)
        elapse_ns, transit_ns, wait_ns, synchronization_ns, idle_ns = map(ns_of_ms, times)
        return AscendCommunication(
            named=tuple(self._named),
            start_ns=ns_of_times(starts),
            elapse_ns=elapse_ns,
            transit_ns=transit_ns,
            wait_ns=wait_ns,
            synchronization_ns=synchronization_ns,
            idle_ns=idle_ns,
            link_operator=np.array(operators, np.int64),
            link_type=tuple(kinds),
            link_bytes=bytes_of_mb(list(sizes)),
            link_ns=ns_of_ms(list(moved)),
            large_packet_ratio=np.array(large, np.float64),
            packet_link=packets[:, 0].astype(np.int64),
            packet_bytes=bytes_of_mb(packets[:, 1].tolist()),
            packet_count=counted.astype(np.int64),
            packet_ns=ns_of_ms(packets[:, 3].tolist()),
            dropped_count=self.dropped_count,
        )


def _ranks_of(text: str) -> tuple[int, ...]:
    """Return the ranks that `3` or `(0, 1, 2)` names, none if it names none."""
    if not _RANKS.fullmatch(text):
        return ()
    ranks = tuple(int(each) for each in text.strip("() ").split(",") if each.strip())
    return ranks if len(ranks) <= limits.WORLD_SIZE_MAX else ()
