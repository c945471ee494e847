"""Behaviour patterns as pictures: how long a function is on the critical path, and how it used its hardware."""

from collections import defaultdict

from lockstep.analysis.report.parts import FunctionKey, FunctionUsage, Rank
from lockstep.analysis.report.sections.over_ranks import FLAGGED_MAX, Flags, Placed, flagged, over_ranks
from lockstep.analysis.report.view import ReportView
from lockstep.html.markup import Html, cut, left_out, muted, section, tag
from lockstep.html.scales import shares
from lockstep.html.scatter import Point, scatter
from lockstep.html.svg import legend, sample
from lockstep.html.units import counted, format_share

NAME, TITLE = "patterns", "Behaviour patterns"
POINTS_MAX = 600
_KINDS = ("compute", "memory", "communication", "host", "other")


def behaviour(view: ReportView) -> Html:
    """Return beta against mu, and beta over ranks of the functions that differ most."""
    placed: Placed = [(rank, each) for rank in view.summary.ranks for each in rank.patterns]
    if not placed:
        return left_out(NAME, TITLE, "No rank has behaviour patterns.")
    flags = flagged(view)
    note = (
        "beta is the share of the window that a function is on the critical path, mu the mean use of its hardware "
        "meanwhile (PerfTracker, section 4.2). Ranks that localisation names are diamonds."
    )
    legend_ = legend(
        [
            *((sample(kind), kind) for kind in _KINDS if any(each.kind == kind for _, each in placed)),
            *([(sample("", is_flagged=True), "named by localisation")] if flags else []),
        ]
    )
    return section(NAME, TITLE, muted(note), legend_, _beta_mu(placed, flags), *over_ranks(placed, flags))


def _beta_mu(placed: Placed, flags: Flags) -> Html:
    known = [(rank, each) for rank, each in placed if each.mu is not None]
    if not known:
        return muted("No use of the hardware was sampled, so no function has a mu: beta over ranks alone.")
    shown = _spread_out(known, flags)
    points = [
        Point(
            x=each.beta,
            y=each.mu or 0.0,
            kind=each.kind,
            title=_title(rank, each),
            is_flagged=(each.key, rank.number) in flags,
        )
        for rank, each in shown
    ]
    across = shares("beta, share of the window", max(point.x for point in points))
    down = shares("mu, share of the peak", max(1.0, *(point.y for point in points)))
    part = f"{len(shown)} of {counted(len(known), 'pattern')}: those that localisation names, others evenly by beta. "
    more = part if len(shown) < len(known) else ""
    without = len(placed) - len(known)
    left = f"{counted(without, 'pattern')} without samples of the hardware." if without else ""
    return tag(
        "figure",
        tag("h3", "How long, and how well used"),
        tag("figcaption", more, left),
        scatter(points, across, down, "beta and mu"),
    )


def _spread_out(known: Placed, flags: Flags) -> Placed:
    """Return at most about `POINTS_MAX` patterns: the flagged ones, and of each function as many, evenly by beta."""
    if len(known) <= POINTS_MAX:
        return known
    marked = [pair for pair in known if (pair[1].key, pair[0].number) in flags][:FLAGGED_MAX]
    by_function: dict[FunctionKey, Placed] = defaultdict(list)
    for pair in sorted(known, key=lambda pair: pair[1].beta):
        by_function[pair[1].key].append(pair)
    wanted = max(POINTS_MAX // len(by_function), 2)
    for rows in list(by_function.values())[-POINTS_MAX:]:
        places = {round(at * (len(rows) - 1) / (wanted - 1)) for at in range(wanted)}
        marked += [rows[at] for at in sorted(places) if (rows[at][1].key, rows[at][0].number) not in flags]
    return marked


def _title(rank: Rank, each: FunctionUsage) -> str:
    mu = "" if each.mu is None else f", mu {format_share(each.mu)}"
    sigma = "" if each.sigma is None else f", sigma {format_share(each.sigma)}"
    return f"{cut(each.name)}, {rank.title}: beta {format_share(each.beta)}{mu}{sigma}"
