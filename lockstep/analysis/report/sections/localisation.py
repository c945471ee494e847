"""Functions that behave abnormally, on which ranks, and how they differ."""

from typing import Any

from lockstep.analysis.report import reading
from lockstep.analysis.report.view import ReportView
from lockstep.html.markup import Html, cell, code, items, join, left_out, muted, section, table, tag
from lockstep.html.units import counted, format_ns, format_number, format_ranks

NAME, TITLE = "localisation", "Localisation"
ROWS_MAX = 50
_DIFFERENCES_MAX = 8
_NS_PER_S = 1e9


def localisation(view: ReportView) -> Html:
    """Return the table of abnormal functions, those that lose most time first."""
    stored = view.summary.localisation
    if not stored:
        return left_out(
            NAME, TITLE, "No function behaves abnormally on any rank, or there were no patterns to compare."
        )
    rows = sorted(stored, key=lambda each: -(_lost_ns(each) or 0))
    note = "Every function's pattern against its expected range and against its peers' (PerfTracker, section 4.3)."
    more = f" The first {ROWS_MAX} of {counted(len(rows), 'function')}." if len(rows) > ROWS_MAX else ""
    heads = ("function", "look at", "abnormal ranks", "how they differ", "lost")
    return section(NAME, TITLE, muted(note, more), table(heads, map(_row, rows[:ROWS_MAX])))


def _row(stored: dict[str, Any]) -> tuple[str, ...]:
    stack, kind = reading.texts(stored.get("stack")), reading.text(stored.get("class"))
    outliers, ranks = reading.ranks(stored.get("outliers")), reading.ranks(stored.get("ranks"))
    function = [code(reading.text(stored.get("function"))), tag("br"), tag("span", kind, class_="soft")]
    function += [tag("span", " from ", code(stack[-1]), class_="soft")] if stack else []
    lost_ns = _lost_ns(stored)
    why = f" outliers of their {reading.text(stored.get('group_kind'))} groups" if outliers else ""
    return (
        join(function),
        join([tag("strong", format_ranks(outliers or ranks)), why]),
        join([counted(len(ranks), "rank"), ": ", format_ranks(ranks, runs_max=4)]) if ranks else "-",
        items(_differences(stored)[:_DIFFERENCES_MAX]) or "-",
        cell(format_ns(lost_ns), value=lost_ns, is_number=True),
    )


def _lost_ns(stored: dict[str, Any]) -> float | None:
    lost_ns, lost_s = reading.amount(stored.get("lost_ns")), reading.amount(stored.get("lost_s"))
    return lost_ns if lost_ns is not None or lost_s is None else lost_s * _NS_PER_S


def _differences(stored: dict[str, Any]) -> list[str]:
    note = stored.get("differences")
    found = reading.texts(note) or reading.texts(stored.get("evidence"))
    for each in reading.records(note):
        value, reference = reading.number(each.get("value")), reading.number(each.get("reference"))
        count = reading.amount(each.get("count"))
        if value is None or reference is None:
            continue
        direction = "above" if value > reference else "below"
        against = f" ({text})" if (text := reading.text(each.get("against"))) else ""
        workers = f" on {counted(int(count), 'rank')}" if count else ""
        dimension = reading.text(each.get("dimension"))
        found.append(f"{dimension} {format_number(value)} {direction} {format_number(reference)}{against}{workers}")
    return found
