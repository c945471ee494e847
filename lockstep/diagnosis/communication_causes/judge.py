"""All communication rules over the traces of one window."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.diagnosis.communication_causes.bandwidth import judge_bandwidth
from lockstep.diagnosis.communication_causes.collectives import Group, RankCollectives, collectives_of
from lockstep.diagnosis.communication_causes.contention import computing, find_contention
from lockstep.diagnosis.communication_causes.links import (
    LinkTransfers,
    find_link_contention,
    find_misaligned_packets,
    find_retransmission,
    find_small_packets,
    judge_links,
)
from lockstep.diagnosis.communication_causes.matching import CollectiveTable, match_collectives
from lockstep.diagnosis.communication_causes.messages import find_misaligned, find_small_messages
from lockstep.diagnosis.communication_causes.settings import find_settings
from lockstep.diagnosis.communication_causes.transmission import judge_transmission
from lockstep.diagnosis.communication_causes.waiting import judge_waiting
from lockstep.diagnosis.finding import Finding, NotJudged
from lockstep.trace.columns import TraceColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationCauses:
    """What the rules found, the costliest first, which of them could not answer, and the collectives side by side."""

    findings: tuple[Finding, ...]
    not_judged: tuple[NotJudged, ...]
    table: CollectiveTable


def judge_communication(
    traces: Mapping[int, TraceColumns],
    window_ns: int,
    *,
    steps: int = 1,
    vendor_collectives: Sequence[RankCollectives] = (),
    transfers: Sequence[LinkTransfers] = (),
    expected: Mapping[Group, float] | None = None,
    environments: Mapping[int, Mapping[str, str]] | None = None,
) -> CommunicationCauses:
    """Ask all rules about the ranks' traces, by rank; what is not given was not recorded, and rules report that.

    `vendor_collectives` take the place of the traces' own for waiting, where the vendor records transmission times;
    `transfers` are its links. `expected` are bus bandwidths of groups in bytes a second, `environments` the variables
    of the ranks.
    """
    parts = {rank: collectives_of(columns, rank=rank) for rank, columns in sorted(traces.items())}
    table = match_collectives(list(parts.values()))
    reported = match_collectives(vendor_collectives) if vendor_collectives else table
    compute = {rank: computing(columns) for rank, columns in traces.items()}
    answers: list[list[Finding] | NotJudged] = [
        judge_waiting(reported, window_ns, compute),
        judge_transmission(reported, window_ns),
        judge_bandwidth(table, window_ns, expected),
        find_contention(table, compute, window_ns),
        find_settings(environments or {}),
    ]
    for rank, part in parts.items():
        answers += [
            find_small_messages(part, window_ns, steps=steps),
            find_misaligned(part, vendor=traces[rank].about.vendor),
        ]
    for each in transfers:
        answers += _of_links(each, window_ns)
    findings = [finding for answer in answers if isinstance(answer, list) for finding in answer]
    return CommunicationCauses(
        findings=tuple(sorted(findings, key=lambda each: -(each.lost_ns or 0))),
        not_judged=tuple(dict.fromkeys(answer for answer in answers if isinstance(answer, NotJudged))),
        table=table,
    )


def _of_links(transfers: LinkTransfers, window_ns: int) -> list[list[Finding] | NotJudged]:
    return [
        judge_links(transfers, window_ns),
        find_small_packets(transfers, window_ns),
        find_retransmission(transfers),
        find_link_contention(transfers, window_ns),
        find_misaligned_packets(transfers, window_ns),
    ]
