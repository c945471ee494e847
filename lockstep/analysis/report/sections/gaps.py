"""What could not be evaluated, what was skipped, and how each figure is defined."""

from lockstep.analysis.report import reading
from lockstep.analysis.report.view import ReportView
from lockstep.diagnosis.communication_causes.thresholds import WAIT_RATIO
from lockstep.diagnosis.parallelism import OVERLAP_RATIO
from lockstep.diagnosis.roofline.roofline_limits import UTILISATION
from lockstep.html.markup import Html, code, left_out, muted, section, table, tag
from lockstep.html.units import counted, format_ranks

ROWS_MAX = 100


def not_evaluated(view: ReportView) -> Html:
    """Return which rules had too little to go by, and why: no finding of theirs is no all-clear."""
    name, title = "not-evaluated", "What could not be evaluated"
    stored = view.summary.not_evaluated
    if not stored:
        return left_out(
            name, title, "Every rule had the evidence that it needs." if view.summary.ranks else "No rule was asked."
        )
    rows = [
        (
            reading.text(each.get("rule")) or "unnamed rule",
            reading.text(each.get("reason")) or "no reason given",
            format_ranks(ranks) if (ranks := reading.ranks(each.get("ranks"))) else "all",
        )
        for each in stored[:ROWS_MAX]
    ]
    more = f" The first {ROWS_MAX} of {len(stored):,}." if len(stored) > ROWS_MAX else ""
    note = "A rule without enough evidence is listed here; that is no all-clear."
    return section(name, title, muted(note, more), table(("rule", "why not", "ranks"), rows))


def skipped(view: ReportView) -> Html:
    """Return the files that were not read, and why."""
    name, title = "skipped", "What was skipped"
    stored = view.summary.skipped
    if not stored:
        return left_out(name, title, "No file was skipped.")
    rows = [
        (code(reading.text(each.get("path"))), reading.text(each.get("error")) or "no reason given")
        for each in stored[:ROWS_MAX]
    ]
    more = f", the first {ROWS_MAX} of them" if len(stored) > ROWS_MAX else ""
    return section(name, title, muted(counted(len(stored), "file"), more, "."), table(("file", "why"), rows))


def definitions(_: ReportView) -> Html:
    """Return how each figure is defined."""
    rows = {
        "window": "From the beginning of a rank's first captured step to the end of its last.",
        "compute, communication, host": "The time in which only this class is active: kernels and copies of the "
        "device; collectives, waiting for other ranks included; the training thread, unless it waits itself.",
        "overlap": f"Two or three of them at once. Kernels during collectives below {OVERLAP_RATIO.value:.0%} of the "
        "window take turns (Hermes, section 4.2.1).",
        "free": "Not one of them is active.",
        "critical path": "From the end of the window back to its beginning, always to what was waited for: recorded "
        "waits where the trace has them, alignment in time (a guess) where not. It covers the whole window.",
        "R_wait": f"1 - T_avg / T_max over the ranks' own times between two collectives (Hermes, equation 2); a "
        f"finding above {WAIT_RATIO.value:.0%}.",
        "roofline": f"FLOP per byte against FLOP/s over the operator's time on the device; underutilised "
        f"below {UTILISATION.value:.0%} of the roof (Hermes, appendix B).",
        "beta, mu, sigma": "Share of the window on the critical path; mean and deviation of the use of the hardware in "
        "the critical durations (PerfTracker, section 4.2).",
        "lost": "What a finding costs in the window, on the slowest of its ranks.",
        "gain": "min(lost, window) / window, where the remedy removes what was lost. In a synchronous job a rank's "
        "loss is the job's until the next slowest rank decides, so gains do not add up.",
    }
    terms = [part for term, stored in rows.items() for part in (tag("dt", term), tag("dd", stored))]
    return section("definitions", "How each figure is defined", tag("dl", *terms))
