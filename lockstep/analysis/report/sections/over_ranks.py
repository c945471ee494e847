"""One function's beta over the ranks, for the functions in which ranks differ most."""

from collections import defaultdict
from statistics import median

from lockstep.analysis.report import reading
from lockstep.analysis.report.parts import FunctionKey, FunctionUsage, Rank, function_key
from lockstep.analysis.report.view import ReportView
from lockstep.html.markup import Html, code, cut, muted, tag
from lockstep.html.scales import Axis, numbers, shares
from lockstep.html.scatter import SMALL, Line, Point, scatter
from lockstep.html.units import counted, format_share

FUNCTIONS_MAX = 6
FLAGGED_MAX = 128
DRAWN_MAX = 256
"""Ranks that have a point each in a picture; more are drawn as spans from the least to the most."""

Flags = dict[tuple[FunctionKey, int], None]
"""Functions and the ranks to look at, in the order of localisation."""
Placed = list[tuple[Rank, FunctionUsage]]


def flagged(view: ReportView) -> Flags:
    """Return functions and ranks that localisation names."""
    return {
        (function_key(each), number): None
        for each in view.summary.localisation
        for number in reading.ranks(each.get("outliers")) or reading.ranks(each.get("ranks"))
    }


def over_ranks(placed: Placed, flags: Flags) -> list[Html]:
    """Return a small picture for each of the functions that localisation names, then of those with most difference."""
    by_function: dict[FunctionKey, Placed] = defaultdict(list)
    for rank, each in placed:
        by_function[each.key].append((rank, each))
    place = {key: at for at, (key, _) in reversed(list(enumerate(flags)))}
    worth = [key for key, rows in by_function.items() if len(rows) > 1 or key in place]
    ranks = {rank.number for rank, _ in placed}
    if not worth or len(ranks) == 1:
        return [muted("No function is known of two ranks: there is nothing to compare over ranks.")]
    worth.sort(key=lambda key: (place.get(key, len(place)), -_spread(by_function[key])))
    more = f", {FUNCTIONS_MAX} of {counted(len(worth), 'function')}" if len(worth) > FUNCTIONS_MAX else ""
    heading = f"beta (up) over ranks (right){more}: named by localisation first, then by how far ranks differ"
    axis = numbers("rank", ranks)
    drawn = (_function(key, by_function[key], flags, axis, len(ranks)) for key in worth[:FUNCTIONS_MAX])
    return [tag("h3", heading), tag("div", *drawn, class_="side-by-side")]


def _spread(rows: Placed) -> float:
    betas = [each.beta for _, each in rows]
    return max(betas) - min(betas)


def _function(key: FunctionKey, rows: Placed, flags: Flags, across: Axis, ranks: int) -> Html:
    name = key[2]
    usual = median(each.beta for _, each in rows)
    down = shares("beta", max(each.beta for _, each in rows))
    lines = []
    if len(rows) > 1:
        at_usual = ((across.low, usual), (across.high, usual))
        lines.append(Line(places=at_usual, kind="limit", title=f"median {format_share(usual)}"))
    drawn = rows
    if len(rows) > DRAWN_MAX:
        lines += _spans([pair for pair in rows if (key, pair[0].number) not in flags])
        drawn = [pair for pair in rows if (key, pair[0].number) in flags][:FLAGGED_MAX]
    points = [
        Point(
            x=rank.number,
            y=each.beta,
            kind=each.kind,
            title=f"{rank.title}: beta {format_share(each.beta)}",
            is_flagged=(key, rank.number) in flags,
        )
        for rank, each in drawn
    ]
    description = f"beta of {cut(name)} over ranks"
    return tag(
        "figure", _caption(key, rows, ranks), scatter(points, across, down, description, lines=lines, height=SMALL)
    )


def _caption(key: FunctionKey, rows: Placed, ranks: int) -> Html:
    _, stack, name = key
    caller = ["from ", code(stack[-1]), "; "] if stack else []
    note = f"median {format_share(median(each.beta for _, each in rows))} (dashed)" if len(rows) > 1 else ""
    if len(rows) < ranks:
        note += f"{', ' if note else ''}on {len(rows):,} of {counted(ranks, 'rank')}, on the others too short to report"
    if len(rows) > DRAWN_MAX:
        note += "; lines go from the least to the most of neighbouring ranks"
    return tag("figcaption", code(name), ": ", *caller, note)


def _spans(rows: Placed) -> list[Line]:
    """Return a line from the least to the most beta for each of at most `DRAWN_MAX` runs of neighbours."""
    size = max(-(-len(rows) // DRAWN_MAX), 1)
    lines = []
    for first in range(0, len(rows), size):
        run = rows[first : first + size]
        betas = [each.beta for _, each in run]
        middle = (run[0][0].number + run[-1][0].number) / 2
        span = f"{format_share(min(betas))} to {format_share(max(betas))}"
        title = f"{run[0][0].label} to {run[-1][0].number}: beta {span}"
        space = max((max(betas) - min(betas)) / 2, max(betas) * 0.004)
        centre = (max(betas) + min(betas)) / 2
        lines.append(Line(places=((middle, centre - space), (middle, centre + space)), kind="span", title=title))
    return lines
