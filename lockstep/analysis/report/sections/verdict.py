"""The first screen: what holds the job back, on which rank, why, and what to do."""

from lockstep.analysis.report.findings import FindingCard
from lockstep.analysis.report.view import ReportView
from lockstep.html.markup import Html, code, cut, join, muted, tag
from lockstep.html.units import counted, format_ns, format_ranks, format_share

_NEXT = 2
_MANY = 8
_SUBJECT_MAX = 100  # characters of a sentence that is read at once


def verdict(view: ReportView) -> Html:
    """Return the card with the answer in one sentence."""
    if view.top is None:
        return _nothing(view)
    top = view.top
    rows = [
        ("Who", _who(view, top)),
        ("What", code(top.subject) if top.subject else "the rank as a whole"),
        (
            "Why",
            join(
                [top.title, ": ", "; ".join(top.evidence[:2]) if top.evidence else "the summary holds no evidence", "."]
            ),
        ),
        ("What to do", _what_to_do(top)),
        ("Gain", _gain(top)),
    ]
    if top.confidence:
        rows.append(("Confidence", top.confidence))
    terms = [part for name, stored in rows for part in (tag("dt", name), tag("dd", stored))]
    return tag(
        "article", tag("h2", _sentence(view, top)), tag("dl", *terms), _next(view, top), class_="verdict", id="verdict"
    )


def _sentence(view: ReportView, top: FindingCard) -> Html:
    subject = [" in ", code(cut(top.subject, _SUBJECT_MAX))] if top.subject else []
    gain = f"; removing it would give back {format_share(top.gain_ratio)} of the window." if top.gain_ratio else "."
    return join([_subject(view, top), ": ", _lowered(top.title), *subject, gain])


def _subject(view: ReportView, top: FindingCard) -> str:
    if not top.ranks:
        return "The job is held back"
    if len(view.summary.ranks) == 1:
        return f"Rank {top.ranks[0]}, compared with no other, loses time"
    if len(top.ranks) == 1:
        return f"Rank {top.ranks[0]} holds the job back"
    if len(top.ranks) >= len(view.summary.ranks):
        return f"All {counted(len(top.ranks), 'rank')} hold the job back"
    if len(top.ranks) <= _MANY:
        return f"Ranks {format_ranks(top.ranks)} hold the job back"
    return f"{counted(len(top.ranks), 'rank')} of {len(view.summary.ranks):,} hold the job back"


def _lowered(title: str) -> str:
    """Return a title inside a sentence: "GC" and "AI" stay as they are."""
    return title if title[1:2].isupper() or "RDMA" in title else title[:1].lower() + title[1:]


def _who(view: ReportView, top: FindingCard) -> str:
    hosts = {rank.host for rank in view.summary.ranks if rank.number in top.ranks and rank.host}
    where = (
        f" on {', '.join(sorted(hosts)[:_MANY])}"
        if 0 < len(hosts) <= _MANY
        else f" on {len(hosts):,} hosts"
        if hosts
        else ""
    )
    return (
        f"rank{'' if len(top.ranks) == 1 else 's'} {format_ranks(top.ranks)}{where}"
        if top.ranks
        else "no rank in particular"
    )


def _what_to_do(top: FindingCard) -> Html:
    if not top.advice:
        return join(["No remedy is known for this cause."])
    best = top.advice[0]
    how = [tag("br"), tag("span", best.how, class_="soft")] if best.how else []
    more = (
        [tag("br"), tag("a", f"{counted(len(top.advice) - 1, 'other way')} below", href="#advice")]
        if top.advice[1:]
        else []
    )
    return join([best.suggestion, ".", *how, *more])


def _gain(top: FindingCard) -> str:
    lost = "" if top.lost_ns is None else f"{format_ns(top.lost_ns)} of the window lost"
    gain = (
        "cannot be predicted from this capture"
        if top.gain_ratio is None
        else f"{format_share(top.gain_ratio)} of the window"
    )
    return f"{gain}; {lost}" if lost else gain


def _next(view: ReportView, top: FindingCard) -> Html:
    others = [each for each in view.findings if each is not top]
    if not others:
        return Html()
    stored = [
        join([each.title, *([" in ", code(each.subject)] if each.subject else []), f" ({_short(each)})"])
        for each in others[:_NEXT]
    ]
    more = f", and {counted(len(others) - _NEXT, 'other')}" if len(others) > _NEXT else ""
    return muted("Next: ", stored[0], *(part for each in stored[1:] for part in ("; ", each)), more, ".")


def _short(found: FindingCard) -> str:
    where = f"rank {found.ranks[0]}" if len(found.ranks) == 1 else counted(len(found.ranks), "rank")
    return where if found.gain_ratio is None else f"{where}, {format_share(found.gain_ratio)}"


def _nothing(view: ReportView) -> Html:
    if not view.summary.ranks:
        heading = "No trace was analysed."
        why = "The summary holds no rank; what was skipped, and why, stands below."
    else:
        heading = "Nothing was found that holds the job back."
        why = f"{counted(len(view.summary.ranks), 'rank')} analysed. Rules that could not be evaluated stand below."
    kind = "verdict good" if view.summary.ranks else "verdict lesser"
    return tag("article", tag("h2", heading), muted(why), class_=kind, id="verdict")


def facts(view: ReportView) -> Html:
    """Return the line on what was analysed."""
    ranks = view.summary.ranks
    hosts = {rank.host for rank in ranks if rank.host}
    devices = sorted({device for rank in ranks for device in rank.devices})
    vendors = sorted({rank.vendor for rank in ranks if rank.vendor})
    windows = [rank.window_ns for rank in ranks if rank.window_ns]
    steps = [rank.step_count for rank in ranks if rank.step_count is not None]
    stored = [view.summary.tool, counted(len(ranks), "rank")]
    stored += [counted(len(hosts), "host")] if hosts else []
    stored += [_span([f"{count}" for count in (min(steps), max(steps))]) + " steps"] if steps else []
    stored += ["window " + _span([format_ns(min(windows)), format_ns(max(windows))])] if windows else []
    stored += [", ".join(devices[:4])] if devices else []
    stored += [", ".join(vendors[:4])] if vendors else []
    stored += [f"{counted(len(view.summary.skipped), 'file')} skipped"] if view.summary.skipped else []
    return muted(" \N{MIDDLE DOT} ".join(stored))


def _span(ends: list[str]) -> str:
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
