"""Renders the summary of a run, and the comparison of two, as self-contained documents. Pure."""

from typing import TYPE_CHECKING

from coordinator.page.incident_report import STYLE
from coordinator.page.layout import format_seconds, moment
from lockstep.html.markup import Html, items, join, muted, table, tag
from lockstep.html.units import counted, format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coordinator.record.run_comparison import PartChange, StepLogComparison
    from coordinator.record.run_summary import RunSummary

_HOUR_S = 3600.0


def render_summary(summary: "RunSummary") -> str:
    """Return the document of a run's summary."""
    total = sum(summary.device_seconds.values())
    account = [
        (name, format_seconds(seconds), f"{seconds / total:.2%}" if total else "-")
        for name, seconds in summary.device_seconds.items()
    ]
    days = [(day.date, f"{day.steps:,}", f"{day.goodput_ratio:.2%}", _lost(day.device_seconds)) for day in summary.days]
    incidents = [
        (str(each["kind"]), str(each["cause"]), format_ranks(each["ranks"]) if each["ranks"] else "-",
         "-" if each["onset_step"] is None else str(each["onset_step"]), f"{each['lost_device_hours']:.2f}")
        for each in summary.incidents
    ]  # fmt: skip
    body = (
        tag("h1", f"Run {summary.run}"),
        muted(moment(summary.begin_unix_s), " to ", moment(summary.end_unix_s)),
        items(summary_facts(summary)),
        tag("h2", "Where the device time went"),
        table(("category", "device time", "share"), account),
        tag("h2", "Time by part of the step"),
        table(("part", "mean", "share"), _part_rows(summary)),
        tag("h2", "By day (UTC)"),
        table(("day", "steps", "goodput", "lost to"), days),
        tag("h2", "Incidents"),
        table(("kind", "cause", "ranks", "from step", "device hours"), incidents) if incidents else muted("None."),
    )
    return _document(f"Run {summary.run}", body)


def render_comparison(comparison: "StepLogComparison") -> str:
    """Return the document of a comparison."""
    before, after = comparison.runs
    body = (
        tag("h1", f"Run {after} against {before}"),
        tag("p", comparison_headline(comparison)),
        tag("h2", "Slower"),
        _change_table(comparison.slower),
        tag("h2", "Faster"),
        _change_table(comparison.faster),
        muted(f"Measured by one run only: {', '.join(comparison.missing_parts)}.")
        if comparison.missing_parts
        else Html(),
    )
    return _document(f"Run {after} against {before}", body)


def summary_facts(summary: "RunSummary") -> list[str]:
    """Return the main figures of a run as lines; those that were not measured are omitted."""
    steps = f"{counted(summary.steps, 'step')} of {format_seconds(summary.step_seconds)}"
    hours = sum(summary.device_seconds.values()) / _HOUR_S
    shown = [
        f"Goodput {summary.goodput_ratio:.2%} of {hours:,.2f} device hours",
        f"{steps}, {counted(summary.ranks, 'rank')}, {counted(summary.attempts, 'attempt')}",
    ]
    if summary.tokens_per_second is not None:
        shown.append(f"{summary.tokens_per_second:,.0f} tokens/s")
    if summary.samples_per_second is not None:
        shown.append(f"{summary.samples_per_second:,.1f} samples/s")
    if summary.mfu_ratio is not None:
        shown.append(f"MFU {summary.mfu_ratio:.1%}")
    return shown


def comparison_headline(comparison: "StepLogComparison") -> str:
    """Return the result of a comparison in one sentence."""
    before_s, after_s = comparison.step_seconds
    steps = f"step {format_seconds(before_s)} to {format_seconds(after_s)} ({after_s / before_s - 1:+.1%})"
    if not comparison.slower:
        return f"Nothing is slower beyond noise; {steps}."
    worst = comparison.slower[0]
    return f"{worst.part} is slower on {ranks_text(worst)} by {worst.step_ratio:.1%} of a step; {steps}."


def ranks_text(change: "PartChange") -> str:
    """Return the ranks of a change."""
    one = "rank" if len(change.ranks) == 1 else "ranks"
    return f"all ranks ({len(change.ranks)})" if change.is_all else f"{one} {format_ranks(change.ranks)}"


def _part_rows(summary: "RunSummary") -> list[tuple[str, ...]]:
    return [(part.name, format_seconds(part.seconds), f"{part.share_ratio:.1%}") for part in summary.parts]


def _lost(device_seconds: "Mapping[str, float]") -> str:
    lost = {name: seconds for name, seconds in device_seconds.items() if name != "productive" and seconds > 0}
    return ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in lost.items()) or "-"


def _change_table(changes: "Iterable[PartChange]") -> Html:
    rows = [
        (each.part, ranks_text(each), format_seconds(each.before_seconds), format_seconds(each.after_seconds),
         f"{each.step_ratio:+.1%}", f"{each.deviate:.1f}")
        for each in changes
    ]  # fmt: skip
    heads = ("part", "ranks", "before", "after", "of a step", "deviations of its noise")
    return table(heads, rows) if rows else muted("Nothing beyond noise.")


def _document(title: str, body: "Iterable[Html]") -> str:
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} - Lockstep"),
        Html(f"<style>{STYLE}</style>"),
    )
    return f"<!DOCTYPE html>{tag('html', tag('head', *head), tag('body', tag('main', join(body))), lang='en')}\n"
