"""Where the window of each rank goes, in classes that sum to it."""

from collections.abc import Sequence

from lockstep.analysis.report.parts import CLASSES, UNCLASSIFIED, Account, Rank
from lockstep.analysis.report.view import ReportView
from lockstep.html.bars import Stack, stacked
from lockstep.html.markup import Cell, Html, cell, folded, left_out, muted, section, table, tag
from lockstep.html.scales import times
from lockstep.html.svg import legend, sample
from lockstep.html.units import counted, format_ns, format_share

NAME, TITLE = "breakdown", "Step breakdown by rank"
_STEP_RANKS = 2


def breakdown(view: ReportView) -> Html:
    """Return a bar for each rank, the legend with means over all ranks, and the figures as a table."""
    ranks = [rank for rank in view.summary.ranks if rank.account is not None]
    if not ranks:
        return left_out(NAME, TITLE, "No rank has a step breakdown.")
    shown = view.choice.ranks
    mean = _mean(ranks)
    stacks = [
        _stack(rank.label, rank.title, rank.account, is_named=rank.number in view.first)
        for rank in shown
        if rank.account
    ]
    if len(ranks) > 1:
        stacks.append(_stack("mean", f"mean of {counted(len(ranks), 'rank')}", mean))
    axis = times("time in the window", max(sum(value for _, value in each.parts) for each in stacks))
    missing = len(view.summary.ranks) - len(ranks)
    notes = [view.choice.note, f"{counted(missing, 'rank')} without a breakdown." if missing else "", _odd(ranks)]
    return section(
        NAME,
        TITLE,
        muted("At each moment of the window one of these holds, so they sum to it. ", " ".join(filter(None, notes))),
        tag("figure", _legend(mean, len(ranks)), stacked(stacks, axis, f"{TITLE}: parts of the window")),
        folded("Figures", _figures(shown, view)),
        _spread(ranks) if len(ranks) > len(shown) else Html(),
        *(_by_step(rank) for rank in view.focus(list(shown), _STEP_RANKS) if len(rank.steps) > 1),
    )


def _stack(label: str, title: str, account: Account, *, is_named: bool = False) -> Stack:
    return Stack(label=label, title=title, parts=account.stack, total=format_ns(account.window_ns), is_named=is_named)


def _mean(ranks: Sequence[Rank]) -> Account:
    accounts = [rank.account for rank in ranks if rank.account is not None]
    parts = [
        (name, round(sum(each.parts[at][1] or 0 for each in accounts) / len(accounts)))
        for at, name in enumerate(CLASSES)
    ]
    window_ns = round(sum(each.window_ns for each in accounts) / len(accounts))
    return Account(window_ns=window_ns, parts=tuple(parts), memory_ns=None, compute_communication_ratio=None)


def _legend(mean: Account, ranks: int) -> Html:
    of = "mean " if ranks > 1 else ""
    meanings = dict.fromkeys(CLASSES, " alone") | {"overlap": " of two or three", "free": ": none of them"}
    entries = []
    for name, value in mean.stack:
        if name == UNCLASSIFIED and value * 1000 < mean.window_ns:
            continue
        stored = "not in any class" if name == UNCLASSIFIED else name + meanings[name]
        figure = f", {of}{format_ns(value)} ({format_share(value / mean.window_ns)})"
        entries.append((sample(name), stored + figure))
    return legend(entries)


def _odd(ranks: Sequence[Rank]) -> str:
    """Return a warning about classes that do not sum to the window."""
    odd = [
        rank
        for rank in ranks
        if rank.account and sum(ns or 0 for _, ns in rank.account.parts) != rank.account.window_ns
    ]
    return f"On {counted(len(odd), 'rank')} the classes do not sum to the window." if odd else ""


def _figures(shown: Sequence[Rank], view: ReportView) -> Html:
    heads = (
        "rank",
        "host",
        "steps",
        "window",
        *CLASSES,
        "of compute, copies",
        "kernels during collectives",
    )
    rows = []
    for rank in shown:
        account = rank.account
        if account is None:
            continue
        name = tag("strong", str(rank.number)) if rank.number in view.first else str(rank.number)
        rows.append(
            (
                cell(name, value=rank.number),
                rank.host or "-",
                cell(
                    str(rank.step_count) if rank.step_count is not None else "-", is_number=True, value=rank.step_count
                ),
                cell(format_ns(account.window_ns), value=account.window_ns),
                *(_part(ns, account) for _, ns in account.parts),
                _part(account.memory_ns, account),
                cell(
                    format_share(account.compute_communication_ratio),
                    value=account.compute_communication_ratio,
                    is_number=True,
                ),
            )
        )
    return table(heads, rows)


def _part(ns: int | None, account: Account) -> Cell:
    if ns is None:
        return cell("-", is_number=True)
    return cell(f"{format_ns(ns)} ({format_share(ns / account.window_ns)})", value=ns)


def _spread(ranks: Sequence[Rank]) -> Html:
    """Return, by class, the least, the median and the most over all ranks, and where they are."""
    rows = []
    for at, name in enumerate(CLASSES):
        values = sorted((rank.account.parts[at][1] or 0, rank.number) for rank in ranks if rank.account is not None)
        places = (values[0], values[len(values) // 2], values[-1])
        rows.append((name, *(cell(f"{format_ns(ns)} (rank {number})", value=ns) for ns, number in places)))
    return tag(
        "div", tag("h3", f"Over all {counted(len(ranks), 'rank')}"), table(("class", "least", "median", "most"), rows)
    )


def _by_step(rank: Rank) -> Html:
    stacks = [_stack(label, f"{rank.title}, {label}", account) for label, account in rank.steps]
    axis = times("time in the step", max(account.window_ns for _, account in rank.steps))
    more = f", the first {len(rank.steps)}" if (rank.step_count or 0) > len(rank.steps) else ""
    return folded(f"Steps of rank {rank.number}{more}", tag("figure", stacked(stacks, axis, f"steps of {rank.title}")))
