"""What was found, with its evidence, and what to do about it; both by predicted gain."""

from lockstep.analysis.report.findings import FindingCard, advice_by_gain
from lockstep.analysis.report.sections.timeline import place_link
from lockstep.analysis.report.view import ReportView
from lockstep.diagnosis.remedies import table as remedies
from lockstep.html.markup import (
    Cell,
    Html,
    cell,
    code,
    folded,
    items,
    join,
    left_out,
    muted,
    section,
    table,
    tag,
)
from lockstep.html.units import counted, format_ns, format_ranks, format_share

ADVICE_MAX = 60
CARDS_MAX = 12
ROWS_MAX = 100
_EVIDENCE_MAX = 8
_WAYS_MAX = 8
_NO_ADVICE = "No advice: "


def advice(view: ReportView) -> Html:
    """Return the table of what to do."""
    title = "What to do"
    found = advice_by_gain(view.findings)
    if not found:
        why = "no finding has a remedy." if view.findings else "nothing was found."
        return left_out("advice", title, _NO_ADVICE + why)
    rows = [
        (
            _share(each.gain_ratio),
            Cell(tag("td", tag("strong", each.suggestion), tag("br"), each.how, class_="wide")),
            join([of.title, *([" in ", code(of.subject)] if of.subject else [])]),
            format_ranks(of.ranks),
            tag("span", each.source, class_="soft"),
        )
        for each, of in found[:ADVICE_MAX]
    ]
    heads = ("gain", "what to do", "against", "ranks", "source")
    note = "By predicted gain, the share of the window that goes with what the remedy removes; a dash: not predicted."
    more = f" The first {ADVICE_MAX} of {len(found):,} are shown." if len(found) > ADVICE_MAX else ""
    return section("advice", title, muted(note, more), table(heads, rows))


def findings(view: ReportView) -> Html:
    """Return what was found, each with its evidence."""
    title = "Findings"
    if not view.findings:
        return left_out("findings", title, "No rule found a cause.")
    cards = [_card(view, at, each) for at, each in enumerate(view.findings[:CARDS_MAX], start=1)]
    rest = view.findings[CARDS_MAX:]
    stored = counted(len(view.findings), "finding")
    note = f"{stored}, by predicted gain, then by lost time; one cause and subject on several ranks is one."
    return section("findings", title, muted(note), *cards, _others(rest))


def _card(view: ReportView, at: int, found: FindingCard) -> Html:
    subject = [" in ", code(found.subject)] if found.subject else []
    gain = "" if found.gain_ratio is None else f", {format_share(found.gain_ratio)} to gain"
    lost = "" if found.lost_ns is None else f"{format_ns(found.lost_ns)} lost on the slowest, "
    ranks = f"rank{'' if len(found.ranks) == 1 else 's'} {format_ranks(found.ranks)}"
    shown = [*found.evidence[:_EVIDENCE_MAX]]
    if len(found.evidence) > _EVIDENCE_MAX:
        shown.append(f"and {counted(len(found.evidence) - _EVIDENCE_MAX, 'other line')} in the JSON summary")
    stored = items(shown) or muted("The summary holds no evidence.")
    about = f"{lost}confidence {found.confidence or 'unknown'}, {_kind(found.bottleneck)}"
    ways = items(
        join(
            [
                each.suggestion,
                ": " if each.how else "",
                each.how,
                "" if each.gain_ratio is None else f" ({format_share(each.gain_ratio)} to gain)",
            ]
        )
        for each in found.advice[:_WAYS_MAX]
    )
    what_to_do = folded(f"What to do ({len(found.advice)})", ways) if found.advice else muted("No remedy is known.")
    heading = tag("h3", f"{at}. {found.title}", *subject, f": {ranks}{gain}")
    kind = "finding" if found is view.top else "finding lesser"
    link = place_link(view, found.ranks, found.subject)
    return tag("article", heading, muted(about), stored, link, what_to_do, class_=kind)


def _kind(bottleneck: str) -> str:
    known = remedies().bottlenecks.get(bottleneck)
    return f"bottleneck {known.title if known else bottleneck or 'unknown'}"


def _others(found: tuple[FindingCard, ...]) -> Html:
    if not found:
        return Html()
    rows = [
        (
            _share(each.gain_ratio),
            cell(format_ns(each.lost_ns), value=each.lost_ns, is_number=True),
            each.title,
            code(each.subject) if each.subject else "",
            format_ranks(each.ranks),
            each.evidence[0] if each.evidence else "",
        )
        for each in found[:ROWS_MAX]
    ]
    more = f", the first {ROWS_MAX} of them" if len(found) > ROWS_MAX else ""
    heads = ("gain", "lost", "cause", "subject", "ranks", "evidence")
    return folded(f"{counted(len(found), 'other finding')}{more}", table(heads, rows))


def _share(ratio: float | None) -> Cell:
    return cell(format_share(ratio), value=-1 if ratio is None else ratio)
