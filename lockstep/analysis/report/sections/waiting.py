"""Who waits for whom in collectives, by group, and what the collectives cost."""

from collections import defaultdict
from typing import Any

from lockstep.analysis.report import reading
from lockstep.analysis.report.view import ReportView
from lockstep.diagnosis.communication_causes.thresholds import WAIT_RATIO
from lockstep.diagnosis.communication_causes.waiting import blame_limit
from lockstep.html.bars import Bar, ranking
from lockstep.html.markup import Html, cell, code, folded, join, muted, section, table, tag
from lockstep.html.units import counted, format_ns, format_ranks, format_rate, format_share

NAME, TITLE = "waiting", "Waiting by group (R_wait)"
GROUPS_MAX = 40
COLLECTIVES_MAX = 40
_BLAMED_MAX = 3


def waiting(view: ReportView) -> Html:
    """Return a bar for each group with the rank that it waits for, and the collectives as a table."""
    known = [
        (ratio, each) for each in view.summary.groups if (ratio := reading.share(each.get("r_wait_ratio"))) is not None
    ]
    table_ = _collectives(view)
    if not known:
        return section(NAME, TITLE, muted("No group has a waiting ratio: no two traces share a collective."), table_)
    known.sort(key=lambda pair: -pair[0])
    bars = [_bar(ratio, each) for ratio, each in known[:GROUPS_MAX]]
    note = (
        "The share of a group's time that its ranks spend waiting for each other (Hermes, equation 2). "
        f"Dashed: {format_share(WAIT_RATIO.value)}, above which waiting is a finding if one rank causes most of it."
    )
    more = f" The {GROUPS_MAX} that wait most of {counted(len(known), 'group')}." if len(known) > GROUPS_MAX else ""
    drawn = ranking(bars, "waiting ratio by group", limit=WAIT_RATIO.value)
    return section(NAME, TITLE, muted(note, more), tag("figure", drawn), table_)


def _bar(ratio: float, stored: dict[str, Any]) -> Bar:
    ranks = reading.ranks(stored.get("ranks"))
    kind, name = reading.text(stored.get("kind")), _group_name(stored.get("group"))
    label = join(
        [
            *([kind, " "] if kind else []),
            code(name),
            f", {counted(len(ranks), 'rank')}: " if ranks else " ",
            tag("strong", _straggler(stored)),
        ]
    )
    label = tag("span", label)
    is_high = ratio >= WAIT_RATIO.value
    return Bar(label=label, figure=format_share(ratio), share=ratio, kind="communication" if is_high else "free")


def _group_name(stored: Any) -> str:
    if isinstance(stored, str):
        return stored
    return "ranks " + format_ranks(reading.ranks(stored)) if reading.ranks(stored) else "group"


def _straggler(stored: dict[str, Any]) -> str:
    blame = [
        (share, rank)
        for key, value in reading.record(stored.get("blame")).items()
        if (share := reading.share(value)) and (rank := reading.rank(key)) is not None
    ]
    blame.sort(key=lambda pair: (-pair[0], pair[1]))
    slowest = reading.rank(stored.get("slowest_rank"))
    shares = {rank: share for share, rank in blame}
    if slowest is not None and shares.get(slowest, 1.0) >= blame_limit(len(shares)):
        part = f" ({format_share(shares[slowest])} of the waiting)" if slowest in shares else ""
        return f"waits for rank {slowest}{part}"
    if blame:
        return "for each in turn: " + ", ".join(
            f"rank {rank} {format_share(share)}" for share, rank in blame[:_BLAMED_MAX]
        )
    return "no rank named"


def _collectives(view: ReportView) -> Html:
    """Return the collectives of all ranks by name and group, the one with most time first."""
    alike: dict[tuple[str, str], list[tuple[int, int, dict[str, Any]]]] = defaultdict(list)
    for rank in view.summary.ranks:
        for each in rank.collectives:
            key = reading.text(each.get("name")), _group_name(each.get("group"))
            alike[key].append((reading.nanoseconds(each.get("total_ns")) or 0, rank.number, each))
    if not alike:
        return muted("No rank has collectives.")
    rows = sorted(alike.items(), key=lambda pair: -max(each[:2] for each in pair[1])[0])
    shown = [_collective(name, group, stored) for (name, group), stored in rows[:COLLECTIVES_MAX]]
    heads = (
        "collective",
        "group",
        "ranks",
        "count",
        "most time",
        "on rank",
        "shortest one",
        "bytes",
        "slowest bus bandwidth",
    )
    more = f", {COLLECTIVES_MAX} of {len(rows):,}" if len(rows) > COLLECTIVES_MAX else ""
    return folded(f"Collectives{more}", table(heads, shown))


def _collective(name: str, group: str, stored: list[tuple[int, int, dict[str, Any]]]) -> tuple[str, ...]:
    most_ns, number, worst = max(stored, key=lambda each: each[:2])
    shortest = [ns for each in stored if (ns := reading.nanoseconds(each[2].get("shortest_ns"))) is not None]
    rates = [rate for each in stored if (rate := reading.rate(each[2].get("bus_bandwidth_bytes_per_second")))]
    count, size = reading.amount(worst.get("count")), reading.amount(worst.get("bytes"))
    least_ns, least_rate = min(shortest, default=None), min(rates, default=None)
    return (
        code(name),
        code(group),
        cell(f"{len(stored):,}", value=len(stored)),
        cell("-" if count is None else f"{count:,.0f}", value=count, is_number=True),
        cell(format_ns(most_ns), value=most_ns),
        cell(str(number), value=number),
        cell(format_ns(least_ns), value=least_ns, is_number=True),
        cell(format_rate(size, "B"), value=size, is_number=True),
        cell(format_rate(least_rate, "B/s"), value=least_rate, is_number=True),
    )
