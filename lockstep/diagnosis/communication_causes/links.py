# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""Transfers over links as reported by the vendor (communication.json, cluster_communication.json).

Per collective and kind of link: bytes, time, and packet counts by size. The totals in "Communication Time Info" are not
used, because they contain a transit time of 0 for links that moved hundreds of megabytes.

Shape suffixes: T transfers, P sizes of packets.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.finding import COMMUNICATION, Finding, NotEvaluated
from lockstep.diagnosis.communication_causes.bandwidth import SLOW_LINK
from lockstep.diagnosis.communication_causes.contention import CONTENTION
from lockstep.diagnosis.communication_causes.messages import SMALL_PACKETS, UNALIGNED
from lockstep.diagnosis.communication_causes.thresholds import (
    ALIGNMENT_BYTES,
    BANDWIDTH_RATIO,
    COLLECTIVES,
    CONTENTION_OVERLAP,
    LINK_BYTES_PER_SECOND,
    RETRANSMISSION_NS,
    SMALL_BYTES,
    SMALL_SHARE,
    WORTH_RATIO,
)
from lockstep.trace.ascend.communication import AscendCommunication
from lockstep.trace.columns import ABSENT
from lockstep.trace.intervals import Intervals
from lockstep.trace.patterns.exposure import CoveredTime

RETRANSMISSION = "retransmission"
RDMA, SUM_OF_LINKS = "RDMA", "SDMA"
_ALIGNED_LINKS = ("HCCS", "SDMA")
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTransfers:
    """Transfers of one rank. `operators` and `links` (RDMA, HCCS, SDMA, PCIE, SIO) are lists of n_transfers.

    `bytes` and `transit_ns` are int64 arrays of shape (n_transfers,); `beside_compute` bool of the same shape or None
    if unknown. Packets: `packet_transfer` (index of the transfer), `packet_bytes`, `packet_count`, int64 of shape
    (n_sizes,). The vendor counts HCCS again under SDMA: packets stand with one of them.
    """

    rank: int
    operators: list[str]
    links: list[str]
    bytes: NDArray[np.int64]
    transit_ns: NDArray[np.int64]
    packet_transfer: NDArray[np.int64]
    packet_bytes: NDArray[np.int64]
    packet_count: NDArray[np.int64]
    during_compute: NDArray[np.bool_] | None = None

    def of(self, link: str) -> NDArray[np.int64]:
        """Return the indices of the transfers over `link` that moved any bytes."""
        mine = np.fromiter((each == link for each in self.links), np.bool_, len(self.links))
        return np.flatnonzero(mine & (self.bytes > 0) & (self.transit_ns > 0))

    def undisturbed(self, link: str) -> NDArray[np.int64]:
        """Return the indices of the transfers that show the undisturbed bandwidth of `link`.

        Retried transfers and those during computation are left out unless there are no others, since they have causes
        of their own.
        """
        at = self.of(link)
        retried = (self.transit_ns[at] >= RETRANSMISSION_NS.value) & (link == RDMA)
        at = at if retried.all() else at[~retried]
        if self.during_compute is None or self.during_compute[at].all():
            return at
        return at[~self.during_compute[at]]

    def gigabytes_per_second(self, at: NDArray[np.int64]) -> float:
        """Return the bandwidth of the transfers `at`, GB/s."""
        return float(self.bytes[at].sum() / self.transit_ns[at].sum())  # bytes per ns are GB/s


def link_transfers_of(
    communication: AscendCommunication, rank: int, computing: Intervals | None = None
) -> LinkTransfers:
    """Return one rank's transfers from cluster_communication.json, or from a communication.json, which names no rank.

    `computing` is when the rank's device computes, on the clock of the file's starts; None if unknown.
    """
    mine = np.array([each.rank in (rank, ABSENT) for each in communication.named], np.bool_)
    at = np.flatnonzero(mine[communication.link_operator])
    place = np.full(len(communication.link_operator), ABSENT, np.int64)
    place[at] = np.arange(len(at))
    packets = np.flatnonzero(place[communication.packet_link] != ABSENT)
    return LinkTransfers(
        rank=rank,
        operators=[communication.named[each].operator for each in communication.link_operator[at].tolist()],
        links=[communication.link_type[each] for each in at.tolist()],
        bytes=communication.link_bytes[at],
        transit_ns=communication.link_ns[at],
        packet_transfer=place[communication.packet_link[packets]],
        packet_bytes=communication.packet_bytes[packets],
        packet_count=communication.packet_count[packets],
        during_compute=None if computing is None else _during(communication, computing)[at],
    )


def _during(communication: AscendCommunication, computing: Intervals) -> NDArray[np.bool_]:
    """Return which transfers mostly overlap computation; they end with their collective, since waiting comes first.

    Transfers of collectives with unknown times count as running alone.
    """
    operator = communication.link_operator
    start_ns, elapse_ns = communication.start_ns[operator], communication.elapse_ns[operator]
    known = (start_ns != ABSENT) & (elapse_ns > 0)
    end_ns = np.where(known, start_ns + elapse_ns, 0)
    length_ns = np.where(known, np.minimum(communication.link_ns, elapse_ns), 0)
    during_ns = length_ns - CoveredTime(computing).free(end_ns - length_ns, end_ns)
    during: NDArray[np.bool_] = (length_ns > 0) & (during_ns >= CONTENTION_OVERLAP.value * length_ns)
    return during


def evaluate_links(transfers: LinkTransfers, window_ns: int) -> list[Finding] | NotEvaluated:
    """Return the links on which this rank reaches less than 80 % of the vendor's expected bandwidth.

    Retried transfers and those that computation may have slowed down are left out if there are others (`undisturbed`),
    and losses below 1 % of the window are not reported. SDMA is the sum of HCCS, PCIE and SIO, so it is evaluated only
    if none of these is reported.
    """
    found, reached = [], 0
    has_parts = any(link in {"HCCS", "PCIE", "SIO"} for link in transfers.links)
    for link, expected in LINK_BYTES_PER_SECOND.items():
        at = transfers.undisturbed(link)
        if not len(at) or (link == SUM_OF_LINKS and has_parts):
            continue
        reached += 1
        rate, wanted = transfers.gigabytes_per_second(at), expected.value / 1e9
        spent_ns = int(transfers.transit_ns[at].sum())
        lost_ns = int(spent_ns * (1 - rate / wanted))
        if rate < BANDWIDTH_RATIO.value * wanted and lost_ns >= WORTH_RATIO.value * window_ns:
            found.append(
                _finding(
                    SLOW_LINK,
                    transfers,
                    link,
                    f"{len(at)} transfers over {link} move {rate:.2f} GB/s, {rate / wanted:.0%} of {wanted:g} GB/s "
                    f"({expected.source}; threshold {BANDWIDTH_RATIO.value:.0%})",
                    f"they take {spent_ns / 1e6:.3f} ms; {_small_reported(transfers, link)}",
                    lost_ns=lost_ns,
                )
            )
    if not reached:
        return NotEvaluated(
            rule="bandwidth of links", reason="no transfer over a link whose bandwidth is known was recorded"
        )
    return found


def find_small_packets(transfers: LinkTransfers, window_ns: int) -> list[Finding] | NotEvaluated:
    """Return the slow links on which more than 20 % of the packets are too small to reach the bandwidth.

    A link that reaches its expected bandwidth needs no cause (Hermes, section 4.2.2).
    """
    if not len(transfers.packet_count):
        return NotEvaluated(
            rule=SMALL_PACKETS, reason="the sizes of packets were not recorded (profiler level 1 has them)"
        )
    found = []
    for link, limit in SMALL_BYTES.items():
        size_P, count_P = _packets(transfers, link)
        small = int(count_P[size_P < limit.value].sum())
        if not _is_slow(transfers, link, window_ns) or not len(size_P) or small <= SMALL_SHARE.value * count_P.sum():
            continue
        found.append(
            _finding(
                SMALL_PACKETS,
                transfers,
                link,
                f"{small} of {int(count_P.sum())} packets over {link} are below {limit.value / 1e6:g} MB "
                f"({limit.source}); {_small_reported(transfers, link)}",
                f"the link moves {transfers.gigabytes_per_second(transfers.undisturbed(link)):.2f} GB/s",
            )
        )
    return found


def find_retransmission(transfers: LinkTransfers) -> list[Finding] | NotEvaluated:
    """Return the collectives with an RDMA transfer of 4 s or more, which is a timeout and a retry."""
    at = transfers.of(RDMA)
    if not len(at):
        return NotEvaluated(rule=RETRANSMISSION, reason="no transfer over RDMA was recorded")
    long = at[transfers.transit_ns[at] >= RETRANSMISSION_NS.value]
    if not len(long):
        return []
    worst = int(long[transfers.transit_ns[long].argmax()])
    return [
        _finding(
            RETRANSMISSION,
            transfers,
            transfers.operators[worst],
            f"{len(long)} of {len(at)} RDMA transfers take {RETRANSMISSION_NS.value / 1e9:.0f} s or more, the longest "
            f"{transfers.transit_ns[worst] / 1e9:.3f} s for {int(transfers.bytes[worst])} bytes",
            lost_ns=int(transfers.transit_ns[long].sum()),
        )
    ]


def find_link_contention(transfers: LinkTransfers, window_ns: int) -> list[Finding] | NotEvaluated:
    """Return the SDMA transfers during computation below 80 % of the link's bandwidth (vendor: 0.8 x 18 GB/s).

    None if they cost less than 1 % of the window, or if those without computation are as slow: then the link is slow
    and there is no contention.
    """
    at = transfers.of(SUM_OF_LINKS)
    if transfers.during_compute is None or not len(at):
        return NotEvaluated(
            rule=CONTENTION, reason="no SDMA transfer of which it is known whether it overlaps computation"
        )
    wanted = LINK_BYTES_PER_SECOND[SUM_OF_LINKS].value / 1e9
    during, alone = at[transfers.during_compute[at]], at[~transfers.during_compute[at]]
    slow = during[transfers.bytes[during] < BANDWIDTH_RATIO.value * wanted * transfers.transit_ns[during]]
    if not len(slow):
        return []
    rate = transfers.gigabytes_per_second(slow)
    lost_ns = int(transfers.transit_ns[slow].sum() * (1 - rate / wanted))
    is_known = len(alone) >= COLLECTIVES.value
    if lost_ns < WORTH_RATIO.value * window_ns or (
        is_known and rate >= BANDWIDTH_RATIO.value * transfers.gigabytes_per_second(alone)
    ):
        return []
    named = ", ".join(dict.fromkeys(transfers.operators[place] for place in slow[:_NAMED].tolist()))
    reported = f", {transfers.gigabytes_per_second(alone):.2f} GB/s in {len(alone)} without" if is_known else ""
    return [
        _finding(
            CONTENTION,
            transfers,
            SUM_OF_LINKS,
            f"{len(slow)} of {len(during)} SDMA transfers during computation move {rate:.2f} GB/s, below "
            f"{BANDWIDTH_RATIO.value:.0%} of {wanted:g} GB/s{reported}",
            f"first: {named}",
            lost_ns=lost_ns,
        )
    ]


def find_misaligned_packets(transfers: LinkTransfers, window_ns: int) -> list[Finding] | NotEvaluated:
    """Return the slow HCCS or SDMA links with packets whose size is not a multiple of 512 bytes."""
    if not len(transfers.packet_count):
        return NotEvaluated(rule=UNALIGNED, reason="the sizes of packets were not recorded (profiler level 1 has them)")
    found = []
    for link in _ALIGNED_LINKS:
        size_P, count_P = _packets(transfers, link)
        wrong = size_P % int(ALIGNMENT_BYTES.value) != 0
        if wrong.any() and _is_slow(transfers, link, window_ns):
            largest = ", ".join(str(size) for size in sorted(set(size_P[wrong].tolist()), reverse=True)[:_NAMED])
            found.append(
                _finding(
                    UNALIGNED,
                    transfers,
                    link,
                    f"{int(count_P[wrong].sum())} of {int(count_P.sum())} packets over {link} are no multiple of "
                    f"{ALIGNMENT_BYTES.value:.0f} bytes, the largest of {largest} bytes",
                )
            )
    return found


def _is_slow(transfers: LinkTransfers, link: str, window_ns: int) -> bool:
    """Whether the link is slower than expected for a relevant part of the window."""
    at = transfers.undisturbed(link)
    if not len(at) or transfers.transit_ns[at].sum() < WORTH_RATIO.value * window_ns:
        return False
    expected = LINK_BYTES_PER_SECOND[link].value / 1e9
    return transfers.gigabytes_per_second(at) < BANDWIDTH_RATIO.value * expected


def _packets(transfers: LinkTransfers, link: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sizes and counts of the packets over `link`."""
    mine = np.fromiter((each == link for each in transfers.links), np.bool_, len(transfers.links))
    at = mine[transfers.packet_transfer]
    return transfers.packet_bytes[at], transfers.packet_count[at]


def _small_reported(transfers: LinkTransfers, link: str) -> str:
    size_P, count_P = _packets(transfers, link)
    total = int(count_P.sum())
    return (
        f"packets have {int((size_P * count_P).sum()) / total / 1e6:.2f} MB on average" if total else "no packet sizes"
    )


def _finding(cause: str, transfers: LinkTransfers, subject: str, *evidence: str, lost_ns: int | None = None) -> Finding:
    return Finding(
        bottleneck=COMMUNICATION,
        cause=cause,
        ranks=(transfers.rank,),
        subject=subject,
        evidence=evidence,
        lost_ns=lost_ns,
    )
