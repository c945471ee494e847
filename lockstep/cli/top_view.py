"""The content of `lockstep top` as lines of styled text, the same for a terminal and for a file.

Pure. Names come from messages that anyone on the bus may have written: characters that could move the cursor or reverse
the text are replaced, and overlong names are cut.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lockstep.html.units import format_step

Line = list[tuple[str, str]]
"""Pieces of text, each with its style: a style name of rich's, or empty."""

RUNS_MAX = 32
INCIDENTS_MAX = 8
EVIDENCE_MAX = 3  # lines of an incident
NAME_MAX = 40  # characters of a name in a column
_BAR_WIDTH = 24
_BAR_FULL_RATIO = 0.5  # excess that fills a bar
_HEALTHY = frozenset({"healthy", "finished", "cancelled"})
_UNEASY = frozenset({"warming", "recovering"})
_STILL = frozenset({"hung", "lost", "crashed"})
_LEAST_SHOWN = 0.005  # of a step; less would be shown as +0 %
_MILLISECONDS_MAX = 1.0
_LONG_S, _MINUTES_MAX_S = 600.0, 7200.0
_MINUTE_S, _HOUR_S = 60.0, 3600.0
_NS = 1e9
_HANG, _CRASH, _MEMORY_GROWTH = "hang", "crash", "memory_growth"
_OF_RANKS = frozenset({"rank", "node"})  # scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class TopView:
    """API responses as received; `chosen` names the run that is shown in detail, `trouble` why there is nothing new."""

    url: str
    runs: list[dict[str, Any]] = field(default_factory=list)
    chosen: str = ""
    slowest: list[dict[str, Any]] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    trouble: str = ""


def ordered(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs, those with the most open incidents first, then those that make no steps."""
    return sorted(runs, key=lambda run: (-len(run["incidents_open"]), run["state"] not in _STILL, run["run"]))


def lines(view: TopView, width: int) -> list[Line]:
    """Return the whole screen, no line longer than `width`."""
    made: list[Line] = [[("Lockstep", "bold"), (f"  {printable(view.url)}", "dim")]]
    if view.trouble:
        made += [[(printable(view.trouble), "bold red")]]
        if not view.runs:  # nothing is known, which differs from having no runs
            return [_cut(line, width) for line in made]
    made += [[], *_runs(view)]
    if view.chosen:
        made += [[], [(printable(view.chosen), "bold"), (": own work against peers, worst first", "dim")]]
        made += _slowest(view.slowest)
    made += [[], *_incidents([each for each in view.incidents if each["run"] == view.chosen or not view.chosen])]
    return [_cut(line, width) for line in made]


def printable(text: object, max_chars: int = 500) -> str:
    """Return the text without control characters, at most `max_chars` characters."""
    whole = str(text)[: max_chars + 1]
    shown = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in whole)
    return shown if len(shown) <= max_chars else shown[: max_chars - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _runs(view: TopView) -> list[Line]:
    if not view.runs:
        return [[("no run yet", "dim")]]
    heads = ("", "run", "state", "step", "step time", "healthy", "expected", "ranks", "slow", "open")
    rows = []
    for run in view.runs[:RUNS_MAX]:
        recent, healthy = run["recent_step_seconds"], run["baseline_step_seconds"]
        excess = recent / healthy - 1 if recent and healthy else 0.0
        more = f" {excess:+.0%}" if abs(excess) >= _LEAST_SHOWN else ""
        rows.append(
            [
                (">" if run["run"] == view.chosen else " ", "bold"),
                (printable(run["run"], NAME_MAX), "bold"),
                (printable(run["state"], NAME_MAX), _state_style(run["state"])),
                ("-" if run["step"] is None else str(run["step"]), ""),
                (format_seconds(recent) + more, "red" if run["incidents_open"] else ""),
                (format_seconds(healthy), ""),
                (format_seconds((run.get("expected") or {}).get("step_seconds")), ""),
                (f"{run['ranks_reporting']}/{run['world_size']}", ""),
                (_ranks(run["slow_ranks"]), "red"),
                (str(len(run["incidents_open"])), "red" if run["incidents_open"] else ""),
            ]
        )
    left = len(view.runs) - RUNS_MAX
    return _table(heads, rows) + ([[(f"and {left} more", "dim")]] if left > 0 else [])


def _slowest(ranks: Sequence[dict[str, Any]]) -> list[Line]:
    if not ranks:
        return [[("no undisturbed step yet", "dim")]]
    rows = []
    for each in ranks:
        excess = each["excess_ratio"]
        filled = round(_BAR_WIDTH * min(max(excess or 0.0, 0.0) / _BAR_FULL_RATIO, 1.0))
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        rows.append(
            [
                (f"rank {each['rank']}", ""),
                (printable(each["hostname"], NAME_MAX), "dim"),
                (bar, "blue"),
                ("-" if excess is None else f"{excess:+.1%}", ""),
                (format_seconds(each["self_seconds"]), ""),
                (format_seconds(each["wait_seconds"]), ""),
            ]
        )
    return _table(("", "host", "", "excess", "own work", "waiting"), rows)


def _incidents(incidents: Sequence[dict[str, Any]]) -> list[Line]:
    if not incidents:
        return [[("no open incident", "green")]]
    made: list[Line] = [[(f"open incidents: {len(incidents)}", "bold")]]
    for each in incidents[:INCIDENTS_MAX]:
        made += _incident(each)
    return made


def _incident(each: dict[str, Any]) -> list[Line]:
    root = f", root cause {each['root_cause']}" if each["root_cause"] else ""
    title = f"{each['kind']}: {_where(each)}, cause {each['cause']}{root}{_extent(each)}".replace("_", " ")
    found_at = datetime.fromtimestamp(each["opened_unix_ns"] / _NS, UTC)
    when = f"since {format_step(each['onset_step'])}, found at {format_step(each['detected_step'])}"
    made: list[Line] = [[("* ", "red"), (printable(title), "bold"), (f"  {printable(each['run'])}", "dim")]]
    made.append([(f"    {printable(when)}, {found_at:%Y-%m-%d %H:%M:%S} UTC", "dim")])
    if each["function"]:
        made.append([("    in ", "dim"), (printable(each["function"]), "")])
    made += [[(f"    {printable(line)}", "")] for line in each["evidence"][:EVIDENCE_MAX]]
    gain = each["predicted_gain"]
    gain_text = f" (predicted gain {gain['ratio']:.0%} of a step)" if gain else ""
    if each["advice"]:
        made.append([(f"    do: {printable(each['advice'][0]['suggestion'])}{gain_text}", "green")])
    elif gain:
        made.append([(f"    {gain_text.strip(' ()')}", "green")])
    return made


def _extent(incident: dict[str, Any]) -> str:
    """Return how bad it is; a hang has no step rather than a longer one, and a crashed run has none to compare."""
    if incident["kind"] == _CRASH:
        return ""
    if incident["kind"] == _HANG:
        return f", no step for {format_seconds(incident['excess_seconds'])}"
    if incident["kind"] == _MEMORY_GROWTH:
        return f", {incident['numbers'].get('bytes_per_step', 0.0) / (1 << 20):+.3g} MiB a step"
    return f", {incident['slowdown_ratio']:+.0%}"


def _where(incident: dict[str, Any]) -> str:
    """Return the subject; a group by its name, because its members are not at fault individually."""
    scope, ranks = incident["scope"], incident["ranks"]
    if scope in _OF_RANKS:
        named = f"{'rank' if len(ranks) == 1 else 'ranks'} {_ranks(ranks)}"
        return f"a node, {named}" if scope == "node" else named
    return " ".join((incident["domain"] or {}).values()) or "the whole run"


def format_seconds(seconds: float | None) -> str:
    """Return a time with three digits."""
    if seconds is None:
        return "-"
    if seconds < _MILLISECONDS_MAX:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < _LONG_S:
        return f"{seconds:.3g} s"
    return f"{seconds / _MINUTE_S:.0f} min" if seconds < _MINUTES_MAX_S else f"{seconds / _HOUR_S:.1f} h"


def _ranks(ranks: Sequence[int], most: int = 6) -> str:
    return (", ".join(map(str, ranks[:most])) + (f" and {len(ranks) - most} more" if len(ranks) > most else "")) or "-"


def _state_style(state: str) -> str:
    return "green" if state in _HEALTHY else "yellow" if state in _UNEASY else "red"


def _table(heads: Sequence[str], rows: Sequence[Line]) -> list[Line]:
    widths = [max(len(head), *(len(row[at][0]) for row in rows)) for at, head in enumerate(heads)]
    head: Line = [(f"{name:<{width}}  ", "dim") for name, width in zip(heads, widths, strict=True)]
    body = [[(f"{text:<{width}}  ", style) for (text, style), width in zip(row, widths, strict=True)] for row in rows]
    return [head, *body] if any(heads) else body


def _cut(line: Line, width: int) -> Line:
    left, kept = width, []
    for text, style in line:
        if left > 0:
            kept.append((text[:left], style))
        left -= len(text)
    return kept
